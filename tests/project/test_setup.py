"""`scripts/setup.sh`, with programs that do nothing in place of Python, pip and the driver."""

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def program(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_a_machine_that_has_got_a_gpu_since_gets_other_packages(tmp_path: Path) -> None:
    tree, programs = tmp_path / "tree", tmp_path / "bin"
    (tree / "scripts").mkdir(parents=True)
    shutil.copy(ROOT / "scripts/setup.sh", tree / "scripts")
    shutil.copy(ROOT / "pyproject.toml", tree)
    program(tree / ".venv/bin/python")
    for name in ("python3.11", "bwrap", "g++", "ninja"):
        program(programs / name)

    def setup() -> str:
        words = ["bash", str(tree / "scripts/setup.sh")]
        variables = {**os.environ, "PATH": f"{programs}:/usr/bin:/bin", "PYTHON": ""}
        return subprocess.run(words, capture_output=True, text=True, check=True, env=variables).stderr

    program(programs / "nvidia-smi", "exit 9")  # its driver is not loaded
    assert "Installing PyTorch (CPU build)" in setup()
    assert setup() == ""
    program(programs / "nvidia-smi")
    said = setup()
    assert said.index("Making .venv anew") < said.index("Installing the Python packages for this machine's GPUs")
    assert setup() == ""
    program(programs / "nvidia-smi", "exit 9")
    assert setup() == "", "a driver that fails once does not take the packages away"
    (programs / "nvidia-smi").unlink()
    said = setup()
    assert said.index("Making .venv anew") < said.index("Installing PyTorch (CPU build)")
