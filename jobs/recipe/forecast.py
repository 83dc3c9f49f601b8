"""Makes the inputs of the simulation from a recipe, and from a run's records or a cluster's devices."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

from actors.learner.packing import packing_of
from actors.rollout.config import KvOnUpdate
from coa.errors import UserError
from coa.json_object import Json
from coa.planning.bottleneck import advice, bottleneck, gains, mean_batch, measured_part
from coa.planning.calibration import Calibration, assumed, recorded
from coa.planning.clusters import Device
from coa.planning.engine import Speeds
from coa.planning.models import Architecture
from coa.planning.simulation import LoopShape, simulate
from coa.planning.workload import Assumed, RecordedCalls, Replay, Workload
from coa.reporting.metrics import read_metrics
from coa.reporting.readable import look_up
from coa.time_accounts import added, shares
from jobs.recipe.memory import processes
from jobs.recipe.resume import load_recorded
from jobs.recipe.schema import Recipe
from jobs.run.trajectories import Outcome, read_groups
from jobs.stages.engines import PLACES

BUDGET = 20_000
"""Approximate number of episode turns in one simulation, which takes less than a second of a CPU core."""


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop that can be simulated."""

    shape: LoopShape
    """The loop's settings, with the number of steps that is simulated."""
    warm: int
    """First weight version that is measured; the versions before are warm-up."""
    speeds: Speeds
    work: Workload
    assumptions: tuple[str, ...]


def loop_of(
    config: Recipe,
    speeds: Speeds,
    work: Workload,
    said: Sequence[str],
    *,
    cached: float = inf,
    engines_per_node: float = inf,
) -> Loop:
    """The loop of a recipe. said: assumptions of `speeds` and `work`; the others as in `LoopShape`."""
    drawn = [work.draw(Random(seed)) for seed in range(64)]
    episodes = [episode for group in drawn for episode in group.episodes]
    lengths = [sum(turn.prompt + turn.sampled for turn in episode) for episode in episodes]
    kept = max(0.2, fmean(group.kept for group in drawn))
    settings, most = config.engine, config.engine.max_concurrent
    assumptions = list(said)
    if (fits := max(1.0, cached / fmean(lengths))) < most:
        most = int(fits)
        assumptions.append(f"an engine's KV cache holds {most} episodes of mean length, which limits its batch")
    shape = LoopShape(
        window=config.rl.window,
        engines=config.placement.engines,
        ranks=config.rl.learner.ranks,
        steps=config.rl.steps,
        max_requests=most,
        places=PLACES * settings.max_concurrent,
        recompute=settings.kv_on_update is KvOnUpdate.recompute,
        sequence_parallel=config.rl.learner.sequence_parallel,
        updates=config.rl.learner.updates_per_batch,
        cache=cached,
        engine_gpus=config.placement.engine_gpus,
        rank_gpus=config.placement.learner_gpus,
        engine_cpus=config.placement.engine_cpus,
        rank_cpus=config.placement.learner_cpus,
        engines_per_node=engines_per_node,
        elastic=len(set(config.placement.engine_range)) > 1,
        takes_turns=settings.sleep_mode,
    )
    played = config.rl.window.groups_per_batch * fmean(len(group.episodes) for group in drawn) / kept
    shape, warm = measured_part(shape, played, fmean(len(episode) for episode in episodes), BUDGET)
    if shape.elastic:
        assumptions.append(f"there are {shape.engines} engines all the time, as at the start")
    if shape.takes_turns:
        assumptions.append("an engine's falling asleep and waking up takes no time beyond loading new weights")
    assumptions.append("each added engine or rank has hardware of its own, and the speed of the existing ones")
    assumptions.append(f"versions {warm} to {shape.steps} are measured, nothing fails, and the driver takes no time")
    return Loop(shape, warm, speeds, work, tuple(assumptions))


def require_recorded(folder: Path) -> None:
    """Raises UserError if the folder holds no run with a finished RL stage."""
    if not _json(folder / "checkpoints" / "rl.json"):
        raise UserError(f"{folder}: its stage rl is not finished (no checkpoints/rl.json)")


def loop_of_run(config: Recipe, folder: Path) -> Loop:
    """The loop of `config`, with the episodes and speeds that the run in `folder` recorded. Raises UserError if it
    recorded too little."""
    require_recorded(folder)
    result, recorder = _json(folder / "checkpoints" / "rl.json"), load_recorded(folder / "config.yaml")
    return loop_recorded(config, recorder, folder, result)


def speeds_of(recorder: Recipe, records: Sequence[Any], result: Any, groups: Sequence[Any]) -> Calibration:
    """The speeds that a run of the recipe `recorder` recorded; arguments and errors as in `recorded`."""
    return recorded(
        records,
        result,
        groups,
        engines=recorder.placement.engines,
        ranks=recorder.rl.learner.ranks,
        max_requests=recorder.engine.max_concurrent,
    )


def loop_recorded(config: Recipe, recorder: Recipe, folder: Path, result: Any) -> Loop:
    """The loop of `config` by a run's records. recorder: the run's recipe; result: of its RL stage."""
    groups = read_groups(folder / "trajectories", config.rl.algorithm_of().keep)
    records = [one for one in read_metrics(folder / "metrics.jsonl") if one["stage"] == "rl"]
    try:
        found = speeds_of(recorder, records, result, groups)
    except ValueError as error:
        raise UserError(f"{folder}: it recorded too little to be simulated ({error})") from error
    if not groups:
        raise UserError(f"{folder}: it recorded no groups")
    calls = {name: RecordedCalls(of["calls"], of["histogram"]) for name, of in result.get("tools", {}).items()}
    said = ["episodes are those of the run, and each tool call takes as long as one of its tool's calls in the run"]
    called = {tool for group in groups for episode in group.episodes for tool in episode.tools}
    if missing := sorted(called - calls.keys()):
        said.append(f"calls of {' and '.join(missing)} take no time: the run did not measure it")
    said.append("moving weights takes as long as in the run, whatever the number of engines")
    return loop_of(config, found.speeds, Replay(groups, calls), (*found.assumptions, *said))


def loop_assumed(config: Recipe, built: Architecture, device: Device, gpus: int = 8) -> Loop:
    """The loop of a recipe that has not been run, on nodes with this number of GPUs of the given kind."""
    limits = config.agent.limits
    work = Assumed(config.rl.group, limits.max_turns, limits.max_tokens, limits.max_observation_tokens)
    if config.rl.algorithm_of().keep([Outcome(1.0, 1.0)] * config.rl.group):  # also groups whose grades are all equal
        work = replace(work, kept=1.0)
    drawn = [episode for seed in range(32) for episode in work.draw(Random(seed)).episodes]
    found = assumed(
        built,
        device,
        config.engine.dtype,
        tensor_parallel=config.engine.tensor_parallel,
        learner_dtype=config.model.dtype,
        passes=passes_of(config),
        episodes=drawn,
        sharing=config.rl.group if packing_of(config.model, config.rl.learner).share_prefixes else 1,
    )
    engine = processes(config, built, device)[-1].engine
    by_node = config.rl.weights.transport == "host"
    return loop_of(
        config,
        found.speeds,
        work,
        (*found.assumptions, *work.in_words()),
        cached=engine.tokens if engine else inf,
        engines_per_node=gpus / config.placement.engine_gpus if by_node and config.placement.engine_gpus else inf,
    )


def passes_of(config: Recipe) -> int:
    """A learner's passes over a token, in forward passes: the backward pass computes the gradients of what goes into a
    layer and, without adapters, of its weights; a pass before the first update scores the policy, one the reference."""
    learner, needs = config.rl.learner, config.rl.algorithm_of().needs
    scored = needs.values or (needs.proximal and learner.updates_per_batch > 1)
    return (2 if learner.lora.rank else 3) + learner.gradient_checkpointing + scored + needs.reference


def bottleneck_of(config: Recipe, folder: Path) -> Json:
    """Returns what a finished run waited for, and which settings would help by simulation: the content of
    `checkpoints/bottleneck.json`. If the run recorded too little, only what it waited for."""
    result = _json(folder / "checkpoints" / "rl.json")
    engines, learner = look_up(result, "time.engines") or [], look_up(result, "time.learner") or {}
    batch = mean_batch(result.get("decoding", []), config.engine.max_concurrent)
    found: Json = {
        "sentence": bottleneck(
            shares(added(engines)), shares(learner), batch, takes_turns=config.engine.sleep_mode
        ).sentence,
        "advice": "",
        "gains": [],
    }
    try:
        loop = loop_of_run(config, folder)
    except UserError:
        return found
    base = simulate(loop.shape, loop.speeds, loop.work, warm=loop.warm)
    moved = gains(loop.shape, loop.speeds, loop.work, base, warm=loop.warm)
    return {
        **found,
        "advice": advice(moved),
        "measured_s": measured_s(folder),
        "simulated_s": base.trajectories_s,
        "simulated_error": base.error,
        "gains": [
            {"setting": g.change.setting, "before": g.change.before, "after": g.change.after, "gain": g.gain}
            for g in moved
        ],
    }


def measured_s(folder: Path) -> float | None:
    """Throughput of a finished run, in trajectories per second; None if its RL stage is not finished."""
    result = _json(folder / "checkpoints" / "rl.json")
    seconds = look_up(result, "seconds")
    return result["trajectories"] / seconds if seconds else None


def _json(path: Path) -> Json:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
