"""The table of `docs/performance.md`, from `benchmarks/results`.

python -m benchmarks.table                 writes it into the document
python -m benchmarks.table --mixed         also if a benchmark's results are of several commits
"""

import argparse
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import MIXED, RESULTS, ROOT, holds, refuse_mixed

DOCUMENT = ROOT / "docs" / "performance.md"
BEGIN, END = "<!-- table: python -m benchmarks.table -->", "<!-- end -->"
COLUMNS = ("benchmark", "what", "target", "measured", "target met")
MISSING = "not measured"


@dataclass(frozen=True, slots=True)
class Row:
    benchmark: str
    figure: str
    target: str
    what: str
    result: str = ""
    """Name of the file that has the figure, if it is not the benchmark's."""

    @property
    def source(self) -> str:
        return self.result or self.benchmark


RATIO = "loop throughput / throughput of the slower component (engine or learner) alone"
HALVES = "throughput of the faster component (engine or learner) alone / throughput of the slower"
SYNC = "loop throughput at staleness {} / loop throughput at staleness 0, slow tools"
REWARD = "reward after a fixed number of samples, staleness {}"
DIFFERENCE = "reward at staleness 4 minus that at 0, on the same tasks"
ENGINE = "tokens per second of the agent loop / those of offline `generate`"
SHARED = "a learner's step with each sample computed whole / with shared tokens computed once, 32M parameters"
LEARNER = "tokens per second of the learner / those of a bare training loop"
ROLLOUT = "episodes per second of the pool / those of the runner alone"
SERVED = "episodes per second of `coa serve` / those of the rollout pool"
CANCELLED = "seconds until a cancelled request's slot is free, 99th percentile"
FREED = "seconds until 64 new requests are served after 1,000 clients leave at once"
ROWS = (
    Row("loop_limit", "0ms/ratio", ">= 0.9", f"{RATIO}, tools that answer at once"),
    Row("loop_limit", "slow/ratio", ">= 0.9", f"{RATIO}, slow tools"),
    Row("loop_limit", "0ms/ratio_plain", "", f"{RATIO} on an otherwise idle machine, tools that answer at once"),
    Row("loop_limit", "slow/ratio_plain", "", f"{RATIO} on an otherwise idle machine, slow tools"),
    Row("loop_limit", "0ms/halves", "<= 1.5", f"{HALVES}, tools that answer at once"),
    Row("loop_limit", "slow/halves", "<= 1.5", f"{HALVES}, slow tools"),
    Row("loop_sync", "speedup_4", ">= 3.2", SYNC.format(4)),
    *(Row("loop_sync", f"speedup_{n}", "", SYNC.format(n)) for n in (1, 2, 3, 8)),
    Row("loop_sync", "reward_0", "", REWARD.format(0), "loop_sync_reward"),
    Row("loop_sync", "reward_4", "", REWARD.format(4), "loop_sync_reward"),
    Row(
        "loop_sync",
        "reward_4_uncorrected",
        "",
        f"{REWARD.format(4)}, without clipping or weights for a sample's age",
        "loop_sync_reward",
    ),
    Row(
        "loop_sync",
        "rewards_overlap",
        ">= 1",
        "1 if the intervals of the reward at staleness 0 and 4 overlap, three seeds",
        "loop_sync_reward",
    ),
    Row("loop_sync", "reward_difference", ">= -0.03", DIFFERENCE, "loop_sync_reward"),
    *(
        Row(
            "loop_sync",
            f"reward_difference_{end}",
            "",
            f"{of} end of the 95 % interval of the {DIFFERENCE}",
            "loop_sync_reward",
        )
        for end, of in (("low", "lower"), ("high", "upper"))
    ),
    Row("loop_trl", "ratio_0ms", ">= 1.5", "samples per second / TRL's samples per second, tools that answer at once"),
    Row("loop_trl", "ratio_slow", ">= 5", "samples per second / TRL's samples per second, slow tools, staleness 4"),
    Row(
        "loop_trl",
        "reward_difference",
        "",
        "reward on held-out tasks minus that of TRL's policy, equal samples, tools that answer at once",
    ),
    Row(
        "loop_trl",
        "reward_difference_high",
        ">= 0",
        "upper end of the 95 % interval of the reward on held-out tasks minus that of TRL's policy",
    ),
    Row(
        "engine",
        "large/ratio",
        ">= 0.85",
        f"{ENGINE}, 32M parameters",
    ),
    Row("engine", "tiny/ratio", "", f"{ENGINE}, the tiny model"),
    Row(
        "engine", "large/ratio_alike", "", f"{ENGINE}, 32M parameters, requests with seeds and log-probs on both sides"
    ),
    Row(
        "learner",
        "tiny/ratio",
        ">= 0.95",
        f"{LEARNER}, the tiny model",
    ),
    Row("learner", "large/ratio", ">= 0.95", f"{LEARNER}, 32M parameters"),
    Row("learner", "memory_ratio", "<= 1.05", "peak memory of the learner divided by the bare loop's, 32M parameters"),
    Row("prefix_trees", "own_tasks/speedup", ">= 1", f"{SHARED}, prompts of 45 tokens"),
    Row("prefix_trees", "mhqa/speedup", ">= 1.5", f"{SHARED}, prompts of 220 tokens"),
    Row("prefix_trees", "multi/speedup", ">= 1.5", f"{SHARED}, prompts of 400 tokens"),
    Row("prefix_trees", "memory_ratio", "<= 1", "peak memory of the two, prompts of 400 tokens"),
    Row(
        "sft_learner",
        "ratio_to_bare",
        ">= 0.95",
        "tokens per second of the fine-tuning learner / those of a bare training loop",
    ),
    Row(
        "sft_learner",
        "ratio_to_bare_busy",
        ">= 0.95",
        "tokens per second of the fine-tuning learner / those of a bare training loop, beside a busy core",
    ),
    Row(
        "sft_learner",
        "ratio_to_trl",
        ">= 1.0",
        "tokens per second of the fine-tuning learner / those of TRL's SFTTrainer",
    ),
    Row("sft_learner", "demo_sft_s", "<= 180", "seconds of the SFT stage of a finished run of the tiny recipe"),
    Row("weights", "host_gb_s", "", "GB/s from a learner into an engine's process, 500 MB, digests on both sides"),
    Row("weights", "memcpy_gb_s", "", "GB/s of one plain copy of the same bytes"),
    Row(
        "weights", "transfer_share", ">= 0.35", "GB/s of the transfer without digests divided by those of a plain copy"
    ),
    Row(
        "weights",
        "update_to_reload",
        "<= 1.7",
        "seconds of a whole update, digests included, divided by those of vLLM's own reload from shared memory, 500 MB",
    ),
    Row(
        "weights",
        "pause_to_reload",
        "<= 1.2",
        "seconds of the pause of an update, without 50 ms, divided by those of the reload",
    ),
    *(
        Row("weights", f"{size}/host", "", f"seconds of a whole update, {size} MB, one engine")
        for size in (50, 150, 500)
    ),
    *(
        Row("weights", f"150/host/{engines}", "", f"seconds of a whole update, 150 MB, {engines} engines")
        for engines in (2, 4)
    ),
    Row("weights", "ipc_to_host", "", "seconds of an update by ipc (shared memory of a CPU) divided by host's, 500 MB"),
    Row("weights", "pause_s", "", "seconds for which an engine under load pauses to load 500 MB"),
    Row(
        "weights",
        "heartbeat_added_ms",
        "<= 20",
        "milliseconds by which syncs delay an engine's event loop, 99.9th percentile",
    ),
    Row(
        "kv_on_update",
        "recompute/recomputed",
        "",
        "share of prefill that the engine had computed before, `kv_on_update` recompute, slow tools",
    ),
    Row(
        "kv_on_update",
        "keep/recomputed",
        "",
        "share of prefill that the engine had computed before, `kv_on_update` keep, slow tools",
    ),
    Row("kv_on_update", "ratio", "", "trajectories per second with keep divided by those with recompute"),
    Row(
        "data",
        "overhead",
        "<= 0.03",
        "share of its time that a learner loses to data, 1,000 trajectories of 8k tokens a step",
    ),
    Row("data", "driver_cpu", "<= 0.03", "share of a CPU core that the driver uses meanwhile"),
    Row("data", "growth", "<= 0.02", "memory that the driver keeps of each trajectory, as a share of the trajectory"),
    Row("rollout", "ratio_64", ">= 0.9", f"{ROLLOUT}, 64 at once"),
    Row("rollout", "ratio_256", ">= 0.9", f"{ROLLOUT}, 256 at once"),
    Row(
        "teachers",
        "capacity_used",
        ">= 0.9",
        "share of an endpoint's 320 requests a second that a team uses, on two cores",
    ),
    Row(
        "serve_plain",
        "throughput_smollm",
        ">= 0.9",
        "tokens per second divided by those of vLLM's own server, 135M parameters",
    ),
    Row(
        "serve_plain",
        "first_token_smollm",
        "<= 1.2",
        "median time to the first token divided by that of vLLM's own server, 135M parameters",
    ),
    Row(
        "serve_plain",
        "throughput_tiny",
        "",
        "tokens per second divided by those of vLLM's own server, the tiny model",
    ),
    Row(
        "serve_plain",
        "first_token_tiny",
        "",
        "median time to the first token divided by that of vLLM's own server, the tiny model",
    ),
    Row("serve_agent", "ratio_small", ">= 0.8", f"{SERVED}, 32M parameters"),
    Row("serve_agent", "ratio_streamed_small", "", f"{SERVED}, 32M parameters, streamed"),
    Row("serve_agent", "ratio_tiny", ">= 0.8", f"{SERVED}, the tiny model"),
    Row(
        "serve_cancel",
        "cancel_p99_s_plain",
        "<= 0.5",
        f"{CANCELLED}, the model alone",
    ),
    Row("serve_cancel", "cancel_p99_s_agent", "<= 0.5", f"{CANCELLED}, the agent"),
    Row(
        "serve_cancel",
        "freed_1000_s_plain",
        "<= 5",
        f"{FREED}, the model alone",
    ),
    Row("serve_cancel", "freed_1000_s_agent", "<= 5", f"{FREED}, the agent"),
    Row("plan", "worst_error", "<= 0.2", "largest relative error of seven predictions by `coa plan`'s simulation"),
    Row("plan", "worst_measured_error", "", "standard error of the measured speed there, by its episodes and calls"),
    Row(
        "plan",
        "by_run/error",
        "<= 0.2",
        "relative error of `coa plan --run`, which knows one other run and no latencies",
    ),
)


def lines(results: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """results: by name. Each row has its result's commit; if all have the same, one line says so instead."""
    commits = {result["commit"] for result in results.values()}
    single = len(commits) == 1
    columns = COLUMNS if single else (*COLUMNS, "commit")
    yield f"| {' | '.join(columns)} |"
    yield f"|{'---|' * len(columns)}"
    for row in ROWS:
        result = results.get(row.source, {})
        cells = (f"`{row.benchmark}`", row.what, row.target, *measured(row, result.get("figures", {})))
        commit = () if single else (result["commit"] if row.figure in result.get("figures", {}) else "",)
        yield f"| {' | '.join((*cells, *commit))} |"
    if single:
        yield f"\nAll figures are of commit {commits.pop()}."


def measured(row: Row, figures: Mapping[str, float]) -> tuple[str, str]:
    """The figure, with the least and the greatest of its rounds if the result has them, and whether it is on target."""
    if row.figure not in figures:
        return MISSING, ""
    shown = f"{figures[row.figure]:.3g}"
    if f"{row.figure}_min" in figures:
        shown += f" ({figures[f'{row.figure}_min']:.3g} to {figures[f'{row.figure}_max']:.3g})"
    if not row.target:
        return shown, ""
    return shown, "yes" if holds(figures, {row.figure: row.target}) else "**no**"


def read(folder: Path = RESULTS) -> dict[str, Any]:
    """Those of whole runs; a smoke run's are elsewhere."""
    paths = {name: folder / f"{name}.json" for name in {row.source for row in ROWS}}
    return {name: json.loads(path.read_text()) for name, path in paths.items() if path.exists()}


def check(results: Mapping[str, Mapping[str, Any]]) -> None:
    """Raises SystemExit if the results of a benchmark are of several commits."""
    for name in dict.fromkeys(row.benchmark for row in ROWS):
        found = {row.source: results[row.source] for row in ROWS if row.benchmark == name and row.source in results}
        refuse_mixed(name, {part: commit for one in found for part, commit in commits_of(one, found[one]).items()})


def commits_of(name: str, result: Mapping[str, Any]) -> dict[str, str]:
    """The commit of a result, or of each part that it was made of."""
    return {f"{name} {part}": at for part, at in result.get("commits", {}).items()} or {name: result["commit"]}


def filled(document: str, table: str, begin: str = BEGIN) -> str:
    """The document with that table, between the line `begin` and the next END."""
    before, _, rest = document.partition(begin)
    return f"{before}{begin}\n{table}\n{END}{rest.partition(END)[2]}"


def main() -> None:
    parser = argparse.ArgumentParser(description="The table of docs/performance.md.")
    parser.add_argument("--mixed", action="store_true", help=MIXED)
    results = read()
    if not parser.parse_args().mixed:
        check(results)
    DOCUMENT.write_text(filled(DOCUMENT.read_text(), "\n".join(lines(results))))


if __name__ == "__main__":
    main()
