"""Where the gain comes from, on the tiny world: sampled pass@1 on held-out tasks after SFT and after RL, by what the
chains lack and by which stages are left out.

    python -m benchmarks.ablations [--only "no_plan"] [--seeds 0 1 2]

The demonstrations of a seed are those of the tiny recipe; an ablation drops spans from them, and the agent's rules lose
these tags, so that RL plays without them, too. Tasks, steps and samples are the recipe's. `search_r1` is the form of
Search-R1 (arXiv 2503.09516): thoughts, calls and an answer. Each ablation takes about ten minutes on two cores; an
interrupted run is resumed, and results are kept in `results/ablations/`.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import TypedDict

from benchmarks.ablations.agents import profile_without, shortened
from benchmarks.harness import MIXED, refuse_mixed, report
from benchmarks.tiny_runs import RUNS, coa, commits_of, compared, kept, rates
from coa.agent.grammar import parse, render
from coa.demo.questions import FAMILIES
from coa.distill.dataset.rows import Demonstration
from coa.distill.dataset.shards import read_rows, write_shard
from jobs.recipe.find import find_recipe

EXTENSION = "benchmarks.ablations.extension"
FOLDER = RUNS / "ablations"
AT_ONCE = 5000
"""Rows of a shard."""
CHECKS = "suggested_answer", "double_check"


@dataclass(frozen=True)
class Way:
    without: tuple[str, ...] = ()
    """Tags that the chains lack."""
    overrides: tuple[str, ...] = ()


WAYS: Mapping[str, Way] = {
    "whole": Way(),
    "no_plan": Way(("plan",)),
    "no_reflection": Way(("reflection",)),
    "no_checks": Way(CHECKS),
    "search_r1": Way(("plan", "reflection", *CHECKS)),
    # In place of RL: its 36 steps of 256 episodes are 144 batches of SFT.
    "more_sft": Way(overrides=("sft.steps=844", "rl.steps=1")),
    "little_sft": Way(overrides=("sft.steps=70",)),
}


class Found(TypedDict):
    """What a run came to: each task's sampled pass rate, by family."""

    sft: dict[str, dict[str, float]]
    rl: dict[str, dict[str, float]]
    tokens: float
    """Of the model after RL, per right answer."""


def ablated(rows: Iterator[Demonstration], without: Sequence[str]) -> Iterator[Demonstration]:
    for row in rows:
        profile = profile_without(row.task.profile, without)
        chain = shortened(parse(row.text).chain, without)
        yield replace(row, task=replace(row.task, profile=profile), text=render(chain))


def write_data(source: Path, folder: Path, without: Sequence[str]) -> Path:
    """The data set with these tags dropped from its chains."""
    if not folder.exists():
        part, rows = folder.with_suffix(".part"), list(ablated(read_rows(source), without))
        part.mkdir(parents=True, exist_ok=True)
        for index in range(0, len(rows), AT_ONCE):
            write_shard(part, index // AT_ONCE, rows[index : index + AT_ONCE], {})
        part.rename(folder)
    return folder


def demonstrations(seed: int) -> Path:
    """The data of the tiny recipe."""
    run = FOLDER / f"demonstrations-{seed}"
    if not (run / "checkpoints" / "distill.json").exists():
        coa("distill", "--recipe", str(find_recipe("tiny")), f"run_dir={run}", f"seed={seed}")
    return run / "data"


def run(name: str, seed: int) -> Found:
    way, folder = WAYS[name], FOLDER / f"{name}-{seed}"
    if not (folder / "report.json").exists():
        data = write_data(demonstrations(seed), folder.with_name(f"{folder.name}-data"), way.without)
        world = "tasks.world=ablated", f"world.without=[{','.join(way.without)}]"
        settings = f"run_dir={folder}", f"seed={seed}", f"sft.data=[{data}]", *world, *way.overrides
        coa("train", "--recipe", "tiny", *settings, extensions=EXTENSION)
    return found_in(folder)


def found_in(folder: Path) -> Found:
    def by_family(stage: str) -> dict[str, dict[str, float]]:
        path = folder / "trajectories" / f"evaluation-{stage}.parquet"
        return {family: rates(path, "sampled", family) for family in FAMILIES}

    cost = json.loads((folder / "report.json").read_text())["cost"]["afm"]
    return Found(sft=by_family("sft"), rl=by_family("rl"), tokens=cost["tokens_per_success"])


def figures_of(found: Mapping[str, Sequence[Found]]) -> dict[str, float]:
    """For each way, pass@1 after SFT and RL with the gain, by family and in all; after RL also against the whole."""
    figures: dict[str, float] = {}
    for name, seeds in found.items():
        for family in ("all", *FAMILIES):
            sft, rl = (_rates(seeds, stage, family) for stage in ("sft", "rl"))
            figures |= compared(f"{name}_{family}", rl, sft)
        figures[f"{name}_tokens"] = fmean(one["tokens"] for one in seeds)
        if name != "whole" and "whole" in found:
            whole = _rates(found["whole"], "rl", "all")
            figures |= compared(f"{name}_against_whole", _rates(seeds, "rl", "all"), whole)
    return figures


def _rates(seeds: Sequence[Found], stage: str, family: str) -> list[float]:
    """The rate of each task, as its mean over seeds."""
    by_seed = [one["sft"] if stage == "sft" else one["rl"] for one in seeds]
    families = FAMILIES if family == "all" else (family,)
    every = [[rate for name in families for rate in rates_of[name].values()] for rates_of in by_seed]
    return [fmean(rates_of_task) for rates_of_task in zip(*every, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--mixed", action="store_true", help=MIXED)
    given = parser.parse_args()
    commits = {
        f"{name}, {seed}": commit
        for name in given.only
        for seed, commit in commits_of(f"ablations/{name}", given.seeds).items()
    }
    if not given.mixed:
        refuse_mixed("ablations", commits)
    found = {
        name: [kept(f"ablations/{name}", seed, lambda seed, name=name: run(name, seed)).found for seed in given.seeds]
        for name in given.only
    }
    report("ablations", figures_of(found), {}, commits)


if __name__ == "__main__":
    main()
