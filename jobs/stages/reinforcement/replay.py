"""Repeats a run's training in RL: from its start model or a kept checkpoint, over the recorded batches, bit for bit.

    batches/ (digests) ──► the same number of ranks ──► losses, weights ──► compared with metrics.jsonl, step by step
                                       └── log-probs of some trajectories, under the version that sampled each token

Steps that a restart of the learners undid are in neither file, so only the steps that count are replayed.
"""

import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from actors.learner.buffer import Finished, Started, Stepped
from cluster.learner_group import LearnerGroup, Learners
from coa.errors import InfrastructureError, UserError
from coa.json_object import JsonView
from coa.learning.batches import BatchStore
from coa.learning.orders import Train
from coa.reporting.metrics import Record, read_metrics
from coa.storage.checkpoints import CheckpointFolder, open_folder
from coa.storage.keeping import Keeping
from coa.types import Sample
from jobs.recipe.resume import load_recorded
from jobs.recipe.schema import Recipe
from jobs.run.run_dir import RunDir
from jobs.stages.reinforcement.rl_stats import STAGE, learner_metrics

TRAJECTORIES = 12
"""Maximum number of trajectories whose log-probs are recomputed, spread evenly over the steps."""
SHOWN = ("samples", "tokens", "loss", "grad_norm", "weights")


class Different(InfrastructureError):
    """The result of a step differs from that in the run."""


def recipe_of(folder: Path) -> Recipe:
    """The recipe of a run, whose folder may have been moved. Raises UserError if the folder is no run directory."""
    path = folder / "config.yaml"
    if not path.exists():
        raise UserError(f"{folder} is no run directory: it has no config.yaml")
    return replace(load_recorded(path), run_dir=str(folder))


@dataclass(frozen=True)
class Plan:
    store: BatchStore
    records: Mapping[int, Record]
    """Metrics of the run's steps, by step."""
    start: int
    """The version that it begins at."""
    checkpoint: CheckpointFolder | None
    """None at version 0, which is the fine-tuned model."""
    last: int
    trajectories: list[Sample] = field(default_factory=list)

    def check(self) -> None:
        """Reads all batches and chooses the trajectories. Raises DamagedFile for the first batch that was changed."""
        chosen = {int(step) for step in np.linspace(self.start + 1, self.last, TRAJECTORIES)}
        for step in range(self.start + 1, self.last + 1):
            share = max(self.store.read(step), key=len)
            sampled = [sample for sample in share if (sample.loss_mask & (sample.versions >= 0)).any()]
            if step in chosen and sampled:
                self.trajectories.append(sampled[step % len(sampled)])


def plan_replay(run: RunDir, first: int | None, last: int | None) -> Plan:
    """The plan to replay the steps `first` to `last`. Raises UserError if they are not recorded."""
    store = BatchStore(run.batches)
    rows = read_metrics(run.folder / "metrics.jsonl")
    records = {row["step"]: row for row in rows if row["stage"] == STAGE and "loss" in row}
    recorded = records.keys() & set(store.steps())
    if not recorded:
        raise UserError(f"{run.folder}: no batches are recorded there (rl.keep_batches=true records them)")
    begin, end = first or min(recorded), last or max(recorded)
    if begin > end:
        raise UserError(f"--replay {begin}:{end}: the first step is after the last")
    kept = {0: None, **kept_checkpoints(run.storage().below(STAGE))}
    start = max(version for version in kept if version < begin)
    if missing := [step for step in range(start + 1, end + 1) if step not in recorded]:
        raise UserError(
            f"{run.folder}: step {missing[0]} is not recorded, but a replay of {begin}:{end} begins at version {start}"
        )
    return Plan(store, records, start, kept[start], end)


def kept_checkpoints(folder: CheckpointFolder) -> dict[int, CheckpointFolder]:
    """The committed checkpoints that are still there, by version."""
    return {version: folder.below(name) for name, version in folder.versions().items()}


def differences(record: Record, values: JsonView) -> list[str]:
    """A line for each value of a step that is not bit for bit what the run recorded, those in SHOWN first."""
    names = sorted(values.keys() & record.keys(), key=lambda name: (name not in SHOWN, name))
    return [f"{name} is {values[name]}, not {record[name]}" for name in names if not same(values[name], record[name])]


def same(one: Any, other: Any) -> bool:
    """Whether a value is the recorded one. Numbers that are not finite are alike: a record has null for them."""
    return one == other or (_has_no_number(one) and _has_no_number(other))


def _has_no_number(value: Any) -> bool:
    return value is None or (isinstance(value, float) and not math.isfinite(value))


@dataclass
class Gaps:
    """Differences between recomputed log-probs and those at sampling."""

    trajectories: Sequence[Sample]
    largest: float = 0.0
    tokens: int = 0
    versions: set[int] = field(default_factory=set)

    def take(self, version: int, logprobs: Sequence[np.ndarray]) -> None:
        """Takes the tokens that `version` sampled. `logprobs`: of each trajectory, for all tokens but the first, under
        `version`."""
        for sample, found in zip(self.trajectories, logprobs, strict=True):
            theirs = (sample.versions == version) & sample.loss_mask
            gaps = np.abs(found - sample.rollout_logprobs[1:])[theirs[1:]]
            if len(gaps):
                self.largest = float(np.max([self.largest, gaps.max()]))
                self.tokens += len(gaps)
                self.versions.add(version)


async def replay(run: RunDir, plan: Plan) -> None:
    """Replays the steps and shows a row for each. Raises Different at the first step with another result."""

    rows: list[list[Any]] = []
    gaps = Gaps(plan.trajectories)
    own = run.folder / "replay"
    shutil.rmtree(own, ignore_errors=True)
    learning = learning_of(run, plan, own)
    try:
        with run.console.stage("replay", plan.last) as stage:
            stage.phase("starting the learners")
            async with learning:
                async for event in learning.events():
                    match event:
                        case Started():
                            learning.spawn(feed(learning, plan, event.epoch))
                            check(plan, event, {}, gaps)
                        case Stepped():
                            rows.append(row_of(plan, event))
                            check(plan, event, learner_metrics(event.report), gaps)
                            stage.update(event.version)
                        case Finished():
                            pass
    finally:
        shutil.rmtree(own, ignore_errors=True)
        run.console.table(f"steps from version {plan.start} on", ["step", *SHOWN, ""], rows)
    run.console.say(f"steps {plan.start + 1} to {plan.last}: equal, bit for bit")
    run.console.say(
        f"log-probs of {gaps.tokens} tokens in {len(gaps.trajectories)} trajectories, each under the version that "
        f"sampled it ({len(gaps.versions)} in all): at most {gaps.largest:.2g} nats from those at sampling"
    )


def check(plan: Plan, event: Started | Stepped, values: JsonView, gaps: Gaps) -> None:
    """Raises Different if the event's step is not what the run recorded."""
    record = plan.records.get(event.version, {})
    if found := differences(record, {**values, "weights": fingerprint(event)}):
        raise Different(f"step {event.version} differs: {'; '.join(found)}")
    gaps.take(event.version, [probe.logprobs for probe in event.probes[: len(gaps.trajectories)]])


def fingerprint(event: Started | Stepped) -> str:
    assert event.weights is not None, "they are published"
    return event.weights.manifest.fingerprint


def row_of(plan: Plan, event: Stepped) -> list[Any]:
    values = {**learner_metrics(event.report), "weights": fingerprint(event)}
    equal = not differences(plan.records[event.version], values)
    cells = [f"{values[name]:.9g}" if isinstance(values[name], float) else str(values[name])[:16] for name in SHOWN]
    return [event.version, *cells, "equal" if equal else "differs"]


async def feed(learning: Learners, plan: Plan, epoch: int) -> None:
    import ray

    for version in range(plan.start, plan.last):
        shares = tuple((ray.put(tuple(share)),) for share in plan.store.read(version + 1))
        await learning.put(Train(version=version, shares=shares, cursor=0), epoch)


def learning_of(run: RunDir, plan: Plan, own: Path) -> LearnerGroup:
    """The learners of the stage, in a folder of their own."""
    config = run.config.rl
    return LearnerGroup(
        "replay",
        keeping=Keeping(folder=open_folder(own), every=config.steps),
        # A restart would go back to the start, and there is nothing that a user would wait for.
        placement=replace(run.config.placement, learner_restarts=0),
        model_dir=run.sft_model,
        model=run.config.model,
        learner=config.learner,
        objective=config.objective(),
        steps=config.steps,
        publish=True,
        probe=tuple(sample.token_ids for sample in plan.trajectories),
        probe_tokens=2,
        probe_temperature=config.sampling.temperature,
        output=own / "model",
        checkpoint=plan.checkpoint,
        last=plan.last,
    )
