"""Learner ranks as plain processes over gloo, without Ray: what they lose and which gradients they have.

python -m tests.support.ranks FOLDER RANK RANKS        plays FOLDER/cases.pkl; rank 0 writes FOLDER/outcomes.pt
"""

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actors.learner.config import LearnerConfig, Objective
from coa.types import Sample
from tests.support.patience import PATIENCE_S

LIMIT_S = 3 * PATIENCE_S


@dataclass(frozen=True, kw_only=True)
class Case:
    model: Path
    config: LearnerConfig
    objective: Objective
    shares: tuple[tuple[Sample, ...], ...]
    """A rank's samples."""
    steps: int = 1
    """How often the shares are trained."""
    model_settings: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    reports: list[Any]
    gradients: list[dict[str, Tensor]]
    """Of each update, by the parameters' names, gathered from all ranks; clipped."""
    weights: dict[str, Tensor]
    """After the last step."""


def on_ranks(folder: Path, cases: Mapping[str, Case]) -> dict[str, Outcome]:
    """Plays the cases one after another on as many processes as each has shares; raises with a rank's own words."""
    [ranks] = {len(case.shares) for case in cases.values()}
    (folder / "cases.pkl").write_bytes(pickle.dumps(dict(cases)))
    command = [sys.executable, "-m", "tests.support.ranks", str(folder)]
    processes = [
        subprocess.Popen([*command, str(rank), str(ranks)], stderr=(folder / f"rank-{rank}.log").open("w"))
        for rank in range(ranks)
    ]
    try:
        codes = [process.wait(LIMIT_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
    if any(codes):
        said = [(folder / f"rank-{rank}.log").read_text()[-2000:] for rank in range(ranks)]
        raise RuntimeError("\n".join(said))
    return torch.load(folder / "outcomes.pt", weights_only=False)


def distance(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> float:
    """Relative L2 distance of all tensors together: 0 between equal ones, infinite from zeros to anything else."""
    assert found.keys() == expected.keys()
    apart = sum(float((found[name].double() - expected[name].double()).square().sum()) for name in expected)
    size = sum(float(tensor.double().square().sum()) for tensor in expected.values())
    return (apart / size if size else inf) ** 0.5 if apart else 0.0


def outcome_of(case: Case, samples: Sequence[Sample]) -> Outcome:
    """Runs in each rank; collective."""
    from safetensors.torch import load

    from actors.learner.config import ModelConfig
    from actors.learner.learner import Learner

    model = ModelConfig(**(case.model_settings or {}))
    learner = Learner(case.model, model, case.config, steps=case.steps, objective=case.objective)
    # AdamW's first moment is the one place where every stage of ZeRO leaves the whole batch's gradient. Where it is a
    # mean, a gradient taken out of it again has the rounding errors of those before it.
    assert case.config.optimizer.beta1 == 0
    gradients: list[dict[str, Tensor]] = []
    step = learner.engine.step

    def noted() -> None:
        step()
        if (zero := learner.engine.optimizer) and hasattr(zero, "_hp_optimizer_states_linked"):
            zero._hp_optimizer_states_linked = False  # it links all groups when the first of them has a state
            zero._lazy_init_hp_params_optimizer_state()
        for name, parameter in learner.policy.named_parameters():
            if parameter.requires_grad:
                found[name.removeprefix("model.")] = moment_of(parameter)
        gradients.append(dict(found))

    found: dict[str, Tensor] = {}
    learner.engine.step = noted
    reports = [learner.step(samples, version) for version in range(case.steps)]
    weights = weights_of(learner)
    return Outcome(reports=reports, gradients=gradients, weights={} if weights is None else load(weights.tobytes()))


def weights_of(learner: Any) -> NDArray[np.uint8] | None:
    """All weights as a safetensors file, whole in the memory of rank 0; None on the others. Collective."""
    from actors.weights.ranks import from_first, write_whole

    with tempfile.NamedTemporaryFile() as file:
        path = from_first(Path(file.name))
        write_whole(path, learner.parts())
        return np.fromfile(path, np.uint8) if torch.distributed.get_rank() == 0 else None


def save(learner: Any, folder: Path) -> None:
    """A checkpoint in a folder, at once; every rank writes its part. Collective."""
    from pyarrow.fs import LocalFileSystem

    learner.snapshot().write(LocalFileSystem(), str(folder))


def moment_of(parameter: torch.nn.Parameter) -> Tensor:
    from deepspeed.utils import safe_get_full_optimizer_state

    moment = safe_get_full_optimizer_state(parameter, "exp_avg")
    assert moment is not None
    return moment.detach().clone()


def main(folder: Path, rank: int, ranks: int) -> None:
    import torch.distributed as dist

    os.environ["LOCAL_RANK"] = "0"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    cases: dict[str, Case] = pickle.loads((folder / "cases.pkl").read_bytes())
    outcomes = {name: outcome_of(case, case.shares[rank]) for name, case in cases.items()}
    if rank == 0:
        torch.save(outcomes, folder / "outcomes.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    from tests.support import ranks  # under its own name, by which others read what is pickled

    ranks.main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    # At a usual end C++ aborts now and then, where a thread of a process group has not been joined.
    os._exit(0)
