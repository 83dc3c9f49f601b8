"""What one GPU gives: `make gpu-proof`, in eight minutes at most.

    python -m benchmarks.gpu [--tiny]        all parts, each in a process of its own; the last line is one JSON object
    python -m benchmarks.gpu NAME [--tiny]   one part: attention, adapters, whole, engine or loop

--tiny: a tiny model on the CPU, to check that the parts run; nothing is written. A part that fails, or takes too long,
is said with its reason, and the others are measured. Parts whose libraries (DeepSpeed, vLLM, Ray) are missing are left
out.
"""

import argparse
import importlib
import inspect
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.harness import RESULTS, ROOT, surroundings

PARTS = {
    "attention": ((), 60),
    "adapters": (("deepspeed", "peft"), 90),
    "engine": (("vllm",), 150),
    "loop": (("ray", "vllm", "deepspeed"), 270),
    "whole": (("deepspeed",), 120),
}
"""For each part, the libraries that it needs, and its maximum seconds."""
ENDS_S = 10.0
"""Seconds in which the processes of a part that takes too long may end by themselves."""
LIMIT_S = 480.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=PARTS)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--folder", type=Path, help="of the model, which parts share")
    asked = parser.parse_args()
    if not asked.tiny and asked.folder is None and not sees_gpu():
        said = "gpu-proof: PyTorch sees no GPU on this machine (coa doctor says why); nothing was measured"
        print(said, file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as made:
        folder = asked.folder or Path(made)
        if asked.part:
            print(json.dumps(measure(asked.part, asked.tiny, folder)))
            return 0
        return all_parts(asked.tiny, folder)


def measure(part: str, tiny: bool, folder: Path) -> dict[str, float]:
    from benchmarks.gpu.models import chosen

    module = "learner" if part in ("adapters", "whole") else part
    found: Any = importlib.import_module(f"benchmarks.gpu.{module}").measure
    given = (chosen(tiny), folder, part)
    return found(*given[: len(inspect.signature(found).parameters)])


def all_parts(tiny: bool, folder: Path) -> int:
    ends, figures, left_out = time.monotonic() + LIMIT_S, dict[str, float](), dict[str, str]()
    for part, (needs, limit_s) in PARTS.items():
        if lacking := [name for name in needs if find_spec(name) is None]:
            left_out[part] = f"{lacking[0]} is not installed"
            continue
        print(f"gpu-proof: {part} ...", file=sys.stderr, flush=True)
        words = [sys.executable, "-m", "benchmarks.gpu", part, "--folder", str(folder), *(["--tiny"] if tiny else [])]
        found = play(words, max(1.0, min(limit_s, ends - time.monotonic())))
        if isinstance(found, str):
            left_out[part] = found
        else:
            figures |= {f"{part}_{name}": round(value, 4) for name, value in found.items()}
    result = {"name": "gpu", "figures": figures, "left_out": left_out, "card": card()}
    if not tiny:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "gpu.json").write_text(json.dumps({**result, **surroundings()}, indent=1) + "\n")
    print(json.dumps(result))
    return 1 if left_out else 0


def play(words: Sequence[str], limit_s: float) -> dict[str, float] | str:
    """The figures of a part; what is wrong if there are none. Its processes end with it."""
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True) as child:
        try:
            said, _ = child.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            end(child)
            return f"took longer than {limit_s:.0f} s"
    if child.returncode:
        return f"ended with status {child.returncode}; its error is above"
    # Libraries log there too, also while they are shut down.
    lines = [line for line in said.splitlines() if line.startswith("{")]
    return json.loads(lines[-1]) if lines else "gave no figures"


def end(child: "subprocess.Popen[str]") -> None:
    """Ends a process and what it has started."""
    for number in (signal.SIGINT, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        with suppress(subprocess.TimeoutExpired):
            child.communicate(timeout=ENDS_S)
            return


def sees_gpu() -> bool:
    """Asked in a process of its own: this one would no longer be able to fork others that use the GPU."""
    code = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def card() -> str:
    """The name of the card, its memory and its driver; empty without one."""
    asked = ("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")
    try:
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return ""


if __name__ == "__main__":
    sys.exit(main())
