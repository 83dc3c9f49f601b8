"""What is installed from a wheel is what the tree has: recipes, pages, templates and manifests too."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.project.test_repository import PACKAGES, ROOT

MANIFEST = """
from setuptools import Distribution
from setuptools.config.pyprojecttoml import apply_configuration

build = apply_configuration(Distribution({"script_name": "setup.py"}), "pyproject.toml").get_command_obj("build_py")
build.ensure_finalized()
print(*(module[-1] for module in build.find_all_modules()), sep="\\n")
print(*(f"{folder}/{name}" for _, folder, _, names in build.data_files for name in names), sep="\\n")
"""


def files_of(package: str) -> set[str]:
    every = (path for path in (ROOT / package).rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {str(path.relative_to(ROOT)) for path in every}


def test_a_wheel_has_every_file_of_the_packages() -> None:
    done = subprocess.run([sys.executable, "-c", MANIFEST], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    packed = {str(Path(line)) for line in done.stdout.splitlines()}
    there = set[str]().union(*map(files_of, PACKAGES))
    assert packed == there


def run(folder: Path, *words: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_an_installed_wheel_works_without_the_tree(tmp_path: Path) -> None:
    source, outside = tmp_path / "source", tmp_path / "outside"
    for package in PACKAGES:  # of a copy: setuptools builds in the tree
        shutil.copytree(ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    run(source, *pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path), ".")
    [wheel] = tmp_path.glob("*.whl")
    venv = tmp_path / "venv"
    run(tmp_path, sys.executable, "-m", "venv", "--without-pip", str(venv))
    # What the project needs is this environment's; a folder that a .pth file names is searched, and its own .pth
    # files, the tree's among them, are not read.
    [site] = venv.glob("lib/python3.*/site-packages")
    (site / "needs.pth").write_text(sysconfig.get_path("purelib") + "\n")
    python, coa = str(venv / "bin/python"), str(venv / "bin/coa")
    run(tmp_path, *pip, "--python", python, "install", "--no-deps", "--no-index", str(wheel))
    outside.mkdir()
    found = run(outside, python, "-c", "import coa, jobs; print(coa.__file__, jobs.__file__)").split()
    assert all(path.startswith(str(site)) for path in found)
    plan = run(outside, coa, "train", "--recipe", "tiny", "--dry-run")
    assert plan.endswith("no problem found in what was looked at; nothing was started\n")
    assert "rl.window.max_staleness=2" in run(outside, coa, "recipe", "rl.window.max_staleness")
    assert "world.stale=0.65" in run(outside, coa, "recipe", "--search", "snippet", "--recipe", "tiny")
    assert "sandbox" in run(outside, coa, "doctor")
    run(outside, python, "-c", "from coa.reporting.page import _template; _template()")
    assert not list(outside.iterdir()), "nothing was written"
