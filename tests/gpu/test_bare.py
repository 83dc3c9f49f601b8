"""What runs on a rented GPU runs there with little installed."""

import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
THERE = {"torch", "transformers", "numpy", "safetensors", "pytest"}
"""What such a machine has, and with it what they need themselves."""
NAMESPACES = {"tests", "benchmarks", "actors", "cluster", "coa", "jobs", "google", "nvidia"}
"""What is ours, and folders that packages share."""


def needed(packages: set[str]) -> set[str]:
    """These packages, and those that they need, by the names that pip has for them."""
    found, waiting = set[str](), {canonicalize_name(package) for package in packages}
    while waiting:
        name = waiting.pop()
        found.add(name)
        try:
            wants = requires(name) or []
        except PackageNotFoundError:  # for another system, or another device
            continue
        for text in wants:
            want = Requirement(text)
            if want.marker is None or want.marker.evaluate({"extra": ""}):
                waiting |= {str(canonicalize_name(want.name))} - found
    return found


def test_the_checks_of_a_device_need_nothing_that_a_bare_machine_lacks() -> None:
    there = needed(THERE)
    lacking = sorted(
        module
        for module, owners in packages_distributions().items()
        if not {canonicalize_name(owner) for owner in owners} & there and module not in NAMESPACES
    )
    assert {"ray", "vllm", "deepspeed", "omegaconf", "aiohttp", "pyarrow", "psutil", "hypothesis"} <= set(lacking)
    code = (
        f"import sys, pytest\nsys.modules.update(dict.fromkeys({lacking!r}))\n"
        "options = ['-q', '-rs', '-m', 'not gpu', '-p', 'no:cacheprovider']\n"
        "sys.exit(pytest.main([*options, 'tests/gpu/test_one_device.py']))"
    )
    variables = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 passed, 2 skipped" in done.stdout, done.stdout
    assert "[2] tests/gpu/test_one_device.py" in done.stdout
    assert "weights are known by their digests" in done.stdout
