"""Hypothetical clusters: `4x8xH200` is four nodes of eight H200."""

import re
from dataclasses import dataclass

from coa.errors import UserError

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU; speeds are from the maker's data sheet."""

    name: str
    memory: int
    """Approximate bytes that CUDA offers: a little less than the nominal size."""
    flops: float
    """Peak dense bfloat16 FLOPs per second."""
    bandwidth: float
    """Peak memory bandwidth in bytes per second."""
    float32_flops: float
    """Peak float32 FLOPs per second, without TF32, which PyTorch does not use by default."""

    def peak(self, dtype: str) -> float:
        return self.float32_flops if dtype == "float32" else self.flops


DEVICES = {
    one.name: one
    for one in (
        Device("B200", 178 * GIB, 2250e12, 8.0e12, 75e12),
        Device("H200", 139 * GIB, 989e12, 4.8e12, 67e12),
        Device("H100", 79 * GIB, 989e12, 3.35e12, 67e12),
        Device("A100-80", 79 * GIB, 312e12, 2.0e12, 19.5e12),
        Device("A100-40", 39 * GIB, 312e12, 1.55e12, 19.5e12),
        Device("L40S", 44 * GIB, 362e12, 0.86e12, 91.6e12),
        Device("A10G", 22 * GIB, 70e12, 0.6e12, 31.5e12),
        Device("L4", 22 * GIB, 121e12, 0.3e12, 30.3e12),
        Device("RTX4090", 23 * GIB, 165e12, 1.0e12, 82.6e12),
    )
}
"""Devices by name; H100 and H200 are the SXM versions."""
OTHER_NAMES = {"A100": "A100-40", "A100-40G": "A100-40", "A100-80G": "A100-80", "GeForce-RTX-4090": "RTX4090"}
"""Ray's names of some devices (`ray.util.accelerators`), and `A100` for the 40 GB version."""


@dataclass(frozen=True, slots=True)
class Node:
    gpus: int
    device: Device | None
    """None if the node has no GPU, or an unknown GPU."""
    cpus: float = float("inf")
    """Number of CPUs; unlimited in a hypothetical cluster."""

    @property
    def resources(self) -> dict[str, float]:
        return {"CPU": self.cpus, "GPU": float(self.gpus)}


def parse_cluster(text: str) -> tuple[Node, ...]:
    """The nodes of `4x8xH200`, of `8xH100` (one node), of `H100` (one GPU) or of several, as in `2x8xH100+1x4xL4`.
    Raises UserError."""
    nodes: list[Node] = []
    for part in text.split("+"):
        match = re.fullmatch(r"(?:(?:([1-9]\d{0,4})x)?([1-9]\d{0,2})x)?([A-Za-z][\w-]*)", part.strip())
        device = device_of(match[3]) if match else None
        if match is None or device is None:
            known = ", ".join(DEVICES)
            raise UserError(
                f"--cluster {text}: expected NODESxGPUSxDEVICE, such as 4x8xH200; known devices are {known}"
            )
        nodes += [Node(int(match[2] or 1), device)] * int(match[1] or 1)
    return tuple(nodes)


def device_of(name: str) -> Device | None:
    """A device by its name, in any case."""
    wanted = {other.lower(): DEVICES[known] for other, known in OTHER_NAMES.items()}
    wanted |= {known.lower(): device for known, device in DEVICES.items()}
    return wanted.get(name.lower())


OTHER_SIZE = 0.12
"""Relative difference of the memory from which on a card is another one of the same name, or a part of it: a laptop's
RTX 4090, an H100 NVL, a slice of MIG."""


def device_called(name: str, memory: int) -> Device | None:
    """A device by the name that its driver gives it, such as "NVIDIA A100 80GB PCIe", and its bytes of memory; None if
    it is not in the table."""
    words = re.sub(r"(?i)rtx ", "RTX", name).replace("-", " ").split()
    named = [DEVICES[word] for word in words if word in DEVICES]
    if "A100" in words:
        named = [DEVICES["A100-80"], DEVICES["A100-40"]]
    return next((one for one in named if abs(memory / one.memory - 1) < OTHER_SIZE), None)
