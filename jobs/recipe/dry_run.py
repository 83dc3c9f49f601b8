"""Shows what a command would do, without doing it: no job is started, nothing is written, and no network is needed.

    coa train --recipe web_32b --dry-run

The whole plan is shown first. Then the checks of a real run are made: a missing file or key ends the command with
status 2, after a plan that lists all of them.
"""

import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actors.learner.config import LearnerConfig
from actors.learner.packing import packing_of
from actors.learner.sizes import architecture
from actors.weights.segment import SHARED_MEMORY
from cluster.resources import Demand
from cluster.session import address_of
from coa.errors import UserError
from coa.grading.graders import JUDGE
from coa.grading.toolset import TOOLS
from coa.learning.packing import ONE_SAMPLE, PackingConfig
from coa.learning.schedule import OptimizerConfig, Schedule
from coa.planning.memory import GIB, engine_bytes, shared_memory_bytes
from coa.planning.models import Architecture
from coa.reporting.readable import DASH, in_bytes, number
from coa.tools.sandbox.sandbox import Kind
from jobs.commands.command import Job
from jobs.recipe.checks import check_room
from jobs.recipe.findings import services_in
from jobs.recipe.hub import hub_models
from jobs.recipe.needs import graders_needed, is_finished, longest_sample, memory_of_rank
from jobs.recipe.schema import DistillConfig, Recipe
from jobs.recipe.services import ask_all, services_of
from jobs.recipe.worlds import OF_WORLD, world_of
from jobs.run.console import Console

SET, MISSING, THERE = "set", "MISSING", "there"


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def dry_run(config: Recipe, job: Job, console: Console, arguments: Mapping[str, Any], *, ask: bool) -> None:
    """Shows the plan, then raises the UserErrors that the job would raise: those of its own check and, if this machine
    is the cluster, for lack of resources. Says what was looked at, and what was not. ask: whether each service gets the
    one request that it gets before the job starts."""
    for section in plan_of(config, job) if job.stages else ():
        console.table(section.title, section.columns, section.rows)
    findings = job.check(config, **arguments)
    for remark in world_of(config).remarks() if job.stages else ():
        console.say(remark)
    check_room(config, job.demands(config).values())
    services = services_in(findings)
    if ask and services:
        ask_all(services, console)
    for found in findings:
        if found.caution:
            console.say(found.caution)
    seen = [found for found in findings if found.looked or (ask and found.service is not None)]
    console.say(f"looked at: {'; '.join(found.what for found in seen)}")
    if unseen := [found.what for found in findings if found not in seen]:
        hint = " (--check sends each service one request)" if services and not ask else ""
        console.say(f"not looked at: {'; '.join(unseen)}{hint}")
    address = address_of(config.session)
    cluster = f", but the cluster at {address} was not asked" if address else ""
    console.say(f"no problem found in what was looked at{cluster}; nothing was started")


def plan_of(config: Recipe, job: Job) -> list[Section]:
    stages = job.stages
    built = architecture(config.model)
    learners = {name: learner for name, learner in _learners(config).items() if name in stages}
    sections = [
        Section(f"{job.name}: {config.run_dir}", ("stage", "what", "state"), tuple(_stages(config, stages))),
        Section("model", ("", "value"), tuple(_model(config, built))),
    ]
    if learners:
        rows = zip(*(list(_learner(config, name, one, built)) for name, one in learners.items()), strict=True)
        settings = tuple((several[0][0], *(value for _, value in several)) for several in rows)
        sections.append(Section("learners", ("", *learners), settings))
    sections += [
        Section("resources", ("at one time", "CPU", "GPU"), tuple(_resources(config, job))),
        Section("services and files", ("needed for", "what", "state"), tuple(_needs(config))),
        Section("writes", ("path", "what"), tuple(_writes(config, stages))),
    ]
    return [section for section in sections if section.rows]


# --- stages -----------------------------------------------------------------------------------------------------------


def _stages(config: Recipe, stages: tuple[str, ...]) -> Iterator[tuple[str, str, str]]:
    for stage in stages:
        what = _what(config, stage)
        if stage == "distill" and not config.distils:
            yield stage, what, "left out: sft.steps is 0" if config.sft.skipped else "left out: sft.data is set"
        elif stage == "evaluation-base" and not config.evaluates_base:
            continue
        elif stage == "sft" and config.sft.skipped:
            yield stage, f"reinforcement begins at {config.model.path}", "left out: sft.steps is 0"
        else:
            yield stage, what, "done" if is_finished(config, stage) else "to do"


def _what(config: Recipe, stage: str) -> str:
    sft, rl = config.sft, config.rl
    match stage:
        case "distill":
            keep = config.distill.keep
            enough = f"; {number(keep)} kept ones are enough" if keep < DistillConfig().keep else ""
            return f"{_runs(config)}{enough}"
        case "sft":
            steps = f"{sft.epochs:g} epochs" if sft.epochs is not None else f"{number(sft.steps_of(0))} steps"
            return f"{steps} of {sft.batch} demonstrations"
        case "rl":
            groups = rl.window.groups_per_batch
            helped = f"; scored by {rl.on_policy.teacher}" if rl.on_policy.teacher else ""
            helped += "; the team plays tasks that no episode solved" if rl.teacher_fallback.attempts else ""
            return (
                f"{number(rl.steps)} steps of {groups} groups of {rl.group}: "
                f"{number(rl.steps * groups * rl.group)} episodes, more if groups are dropped because "
                f"their grades are all equal{helped}"
            )
        case _:
            world, count = world_of(config), config.evaluation.tasks
            return world.evaluation_in_words(count if config.tasks.path is not None else count or OF_WORLD)


def _runs(config: Recipe) -> str:
    if config.distill.transcripts is not None:
        return f"the transcripts in {config.distill.transcripts}, no team runs"
    runs = config.distill.runs
    words = world_of(config).runs_in_words() if runs is None else f"{number(runs)} team runs"
    return f"{words}, by the program, answered by {config.team.model}" if config.agent.program.is_set else words


# --- model and learners -----------------------------------------------------------------------------------------------


def _learners(config: Recipe) -> dict[str, LearnerConfig]:
    return {"sft": config.sft.learner, "rl": config.rl.learner}


def _model(config: Recipe, built: Architecture | None) -> Iterator[tuple[str, str]]:
    model = config.model
    yield "from", "new, of the Qwen3 architecture" if model.path is None else model.path
    if built is None:
        yield "parameters", "not known here: its configuration is neither on this machine nor among the published ones"
    else:
        upper = "at most " if model.path is None else ""
        yield "parameters", f"{upper}{_count(built.parameters)}"
        weights = engine_bytes(built, config.engine.dtype, config.engine.tensor_parallel)
        yield "weights on a GPU of an engine", in_bytes(weights)
        store = int(config.session.object_store_gib * GIB)
        shared = shared_memory_bytes(built, config.model.dtype)
        here = in_bytes(shutil.disk_usage(SHARED_MEMORY).total)
        yield "shared memory of a node", f"{in_bytes(shared + store)}, weights and object store (here: {here})"
    yield "weights", model.dtype
    yield "an episode", f"{number(config.agent.limits.max_tokens)} tokens, {config.agent.limits.max_turns} turns"


def _learner(
    config: Recipe, name: str, learner: LearnerConfig, built: Architecture | None
) -> Iterator[tuple[str, str]]:
    offloaded = [
        what
        for what, is_so in (("optimizer", learner.offload_optimizer), ("parameters", learner.offload_parameters))
        if is_so
    ]
    shared = learner.sequence_parallel
    yield "ranks", str(learner.ranks) if shared == 1 else f"{learner.ranks}, each row shared by {shared}"
    yield "ZeRO stage", str(learner.zero_stage)
    yield "offloaded", " and ".join(offloaded) or DASH
    yield "gradient checkpointing", "yes" if learner.gradient_checkpointing else "no"
    yield "adapters", f"rank {learner.lora.rank}" if learner.lora.rank else DASH
    packing = packing_of(config.model, learner)
    yield "tokens of a micro-batch", _micro_batch(packing, longest_sample(config, name))
    alike = "computed once" if packing.share_prefixes else "computed for each sample"
    yield "tokens with which samples begin alike", alike
    yield "updates of a batch", str(config.rl.learner.updates_per_batch if name == "rl" else 1)
    yield "learning rate", rate(learner.optimizer)
    yield "weight decay", f"{learner.optimizer.weight_decay:g}"
    yield "clip range", getattr(config.rl.algorithm_of(), "clip_range", DASH) if name == "rl" else DASH
    yield "memory of a rank", DASH if built is None else _memory(config, name, learner, built)
    yield "checkpoint", f"every {config.rl.checkpoint_every if name == 'rl' else config.sft.checkpoint_every} steps"


def _micro_batch(packing: PackingConfig, longest: int) -> str:
    if packing == ONE_SAMPLE:
        return f"one sample, at most {number(longest)}"
    wider = f", or {packing.rows} x {number(longest)} with the longest sample" if longest > packing.row_tokens else ""
    return f"{packing.rows} x {number(packing.row_tokens)}{wider}"


def _memory(config: Recipe, name: str, learner: LearnerConfig, built: Architecture) -> str:
    """Estimated peak: "about 58.2 GiB of its GPU, 9.4 GiB of its node", or the sum if the rank has no GPU."""
    found = memory_of_rank(config, name, learner, built)
    if not config.placement.learner_gpus:
        return f"about {in_bytes(found.on_device + found.on_host)}"
    return f"about {in_bytes(found.on_device)} of its GPU, {in_bytes(found.on_host)} of its node"


def _count(parameters: int) -> str:
    return f"{parameters / 1e9:.2f} billion" if parameters >= 1e8 else f"{parameters / 1e6:.2f} million"


def rate(config: OptimizerConfig) -> str:
    """The learning rate in words: "1.4e-05 cosine, warm-up 10 %"."""
    shape = config.schedule.value
    if config.schedule is Schedule.wsd:
        shape = "constant" if config.flat_share == 1 else f"flat for {config.flat_share:.3g} of the steps, then linear"
    warm = f"{config.warmup_steps} steps" if config.warmup_steps else f"{100 * config.warmup_ratio:.3g} %"
    return f"{config.lr:g} {shape}" + (f", warm-up {warm}" if config.warmup_steps or config.warmup_ratio else "")


# --- what must be there -----------------------------------------------------------------------------------------------


def _resources(config: Recipe, job: Job) -> Iterator[tuple[str, str, str]]:
    try:
        found = job.demands(config)
    except UserError:  # the tasks, whose profiles determine the team's roles, can't be read: the check says why
        yield f"{job.name}: not known", DASH, DASH
    else:
        yield from (_sum(stage, demands) for stage, demands in found.items() if demands)


def _sum(stage: str, demands: list[Demand]) -> tuple[str, str, str]:
    """The processes of a stage, "rl: 1 to 3 rollout engines, 2 learner ranks", and their maximum CPUs and GPUs."""
    counts, optional = Counter(d.what for d in demands), Counter(d.what for d in demands if d.optional)
    spans = {
        one: f"{count - optional[one]} to {count}" if optional[one] else f"{count}" for one, count in counts.items()
    }
    what = ", ".join(f"{spans[one]} {one}{'s' * (count != 1)}" for one, count in counts.items())
    cpus, gpus = (sum(d.resources.get(name, 0) for d in demands) for name in ("CPU", "GPU"))
    return f"{stage}: {what}", f"{cpus:g}", f"{gpus:g}"


def _needs(config: Recipe) -> Iterator[tuple[str, str, str]]:
    tools = config.tools
    files = [
        ("tasks", config.tasks.path),
        ("distill.transcripts", config.distill.transcripts),
        *(("team.learn_from", path) for path in config.team.learn_from),
        *(("sft.data", path) for path in config.sft.data),
    ]
    yield from ((what, path, _there(path)) for what, path in files if path is not None)
    yield from ((key, name, "not asked") for key, name in hub_models(config) if not key.startswith("models."))
    for service in services_of(config, config.models, {*TOOLS, *tools.mapped}):
        yield service.what, service.where, "not asked"
        if service.key_env is not None:
            yield service.what, f"${service.key_env}", _key(service.key_env)
    for name, model in config.models.items():
        if model.serve.model:
            yield f"models.{name}", f"{model.serve.model}, served here", "not started"
    if tools.judge.url is None:
        yield from _judge(config)
    if tools.wiki.corpus:
        yield "wiki_search", tools.wiki.corpus, _there(tools.wiki.corpus)
    if tools.sandbox.kind is Kind.bubblewrap:
        yield "code", "bwrap", THERE if shutil.which("bwrap") else MISSING


def _judge(config: Recipe) -> Iterator[tuple[str, str, str]]:
    """A row for the judge if it is needed and not set up."""
    try:
        needed = JUDGE in graders_needed(config)
    except UserError:  # the check says why
        yield "judge", "tools.judge.url", "not known whether needed"
    else:
        if needed:
            yield "judge", "tools.judge.url", MISSING


def _key(name: str) -> str:
    return SET if os.environ.get(name, "").strip() else MISSING


def _there(path: str) -> str:
    return THERE if Path(path).exists() else MISSING


def _writes(config: Recipe, stages: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    folder = Path(config.run_dir)
    yield f"{folder}/config.yaml", "all settings"
    yield f"{folder}/metrics.jsonl", "one record per step"
    if "distill" in stages:
        yield f"{folder}/teachers/", "the team's runs, and which were kept"
    if {"distill", "sft"} & set(stages):
        yield f"{folder}/data/", "the data set and its card"
    if {"rl", "evaluation-sft"} & set(stages):
        yield f"{folder}/trajectories/", "episodes"
    kept, storage = config.checkpoints, config.checkpoints.storage
    learners = "learners' checkpoints, and " if storage is None else ""
    yield f"{folder}/checkpoints/", f"{learners}what each stage left"
    if storage is not None:
        yield f"{storage}/{folder.name}/", "learners' checkpoints, and a copy of the run's folder"
    if kept.export_every:
        yield f"{folder}/exports/", f"the model every {kept.export_every} steps"
    if "rl" in stages:
        yield f"{folder}/ledger.jsonl", "the outcome of every attempt at a task"
        if config.rl.keep_batches:
            yield f"{folder}/batches/", "the training batch of each rank in each step of rl"
        yield f"{folder}/model/", "the trained model, Hugging Face layout"
    if len(stages) > 1:
        yield f"{folder}/report.json, report.html", "figures and curves"
