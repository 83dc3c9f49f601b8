"""The table of `docs/performance.md`, from `benchmarks/results`.

python -m benchmarks.table                 writes it into the document
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import RESULTS, ROOT, holds

DOCUMENT = ROOT / "docs" / "performance.md"
BEGIN, END = "<!-- table: python -m benchmarks.table -->", "<!-- end -->"
HEAD = "| benchmark | what | target | measured | target met | commit |\n|---|---|---|---|---|---|"
MISSING = "not measured"


@dataclass(frozen=True, slots=True)
class Row:
    benchmark: str
    figure: str
    target: str
    what: str


ROWS = (
    Row(
        "loop_limit",
        "0ms/ratio",
        ">= 0.9",
        "speed of the loop divided by that of its slower half, tools that answer at once",
    ),
    Row("loop_limit", "slow/ratio", ">= 0.9", "the same, slow tools"),
    Row(
        "loop_limit",
        "0ms/ratio_plain",
        "",
        "the same, tools that answer at once, each half measured on an idle machine",
    ),
    Row("loop_limit", "slow/ratio_plain", "", "the same, slow tools, each half measured on an idle machine"),
    Row(
        "loop_limit",
        "0ms/halves",
        "<= 1.5",
        "speed of the faster half divided by that of the slower, tools that answer at once",
    ),
    Row("loop_limit", "slow/halves", "<= 1.5", "the same, slow tools"),
    Row("loop_sync", "speedup_4", ">= 3.2", "speed at staleness 4 divided by that at staleness 0, slow tools"),
    *(Row("loop_sync", f"speedup_{n}", "", f"the same, staleness {n} and 0") for n in (1, 2, 3, 8)),
    Row("loop_sync", "reward_0", "", "reward after a fixed number of samples, staleness 0"),
    Row("loop_sync", "reward_4", "", "the same, staleness 4"),
    Row(
        "loop_sync",
        "reward_4_uncorrected",
        "",
        "the same, staleness 4, without clipping or weights for a sample's age",
    ),
    Row(
        "loop_sync",
        "rewards_overlap",
        ">= 1",
        "1 if the intervals of the reward at staleness 0 and 4 overlap, three seeds",
    ),
    Row("loop_trl", "ratio_0ms", ">= 1.5", "samples per second divided by TRL's, tools that answer at once"),
    Row("loop_trl", "ratio_slow", ">= 5", "the same, slow tools"),
    Row(
        "engine",
        "large/ratio",
        ">= 0.85",
        "tokens per second of the agent loop divided by those of offline `generate`, 32M parameters",
    ),
    Row("engine", "tiny/ratio", "", "the same, the tiny model"),
    Row("engine", "large/ratio_alike", "", "the same, 32M parameters, requests with seeds and log-probs on both sides"),
    Row(
        "learner",
        "tiny/ratio",
        ">= 0.95",
        "speed of the learner divided by that of a bare training loop, the tiny model",
    ),
    Row("learner", "large/ratio", ">= 0.95", "the same, 32M parameters"),
    Row("learner", "memory_ratio", "<= 1.05", "peak memory of the learner divided by the bare loop's, 32M parameters"),
    Row(
        "sft_learner",
        "ratio_to_bare",
        ">= 0.95",
        "speed of the fine-tuning learner divided by that of a bare training loop",
    ),
    Row("sft_learner", "ratio_to_trl", ">= 1.0", "the same, divided by TRL's SFTTrainer"),
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
    Row("weights", "pause_to_reload", "<= 1.2", "the same, the pause in it without 50 ms"),
    *(
        Row("weights", f"{size}/host", "", f"seconds of a whole update, {size} MB, one engine")
        for size in (50, 150, 500)
    ),
    *(Row("weights", f"150/host/{engines}", "", f"the same, 150 MB, {engines} engines") for engines in (2, 4)),
    Row("weights", "ipc_to_host", "", "seconds of an update by ipc (shared memory of a CPU) divided by host's, 500 MB"),
    Row("weights", "pause_s", "", "seconds for which an engine under load pauses to load 500 MB"),
    Row(
        "weights",
        "heartbeat_added_ms",
        "<= 20",
        "milliseconds by which syncs delay an engine's event loop, 99.9th percentile",
    ),
    Row(
        "data",
        "overhead",
        "<= 0.03",
        "share of its time that a learner loses to data, 1,000 trajectories of 8k tokens a step",
    ),
    Row("data", "driver_cpu", "<= 0.03", "share of a CPU core that the driver uses meanwhile"),
    Row("data", "growth", "<= 0.02", "memory that the driver keeps of each trajectory, as a share of the trajectory"),
    Row("rollout", "ratio_64", ">= 0.9", "episodes per second of the pool divided by the runner's alone, 64 at once"),
    Row("rollout", "ratio_256", ">= 0.9", "the same, 256 at once"),
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
    Row("serve_agent", "ratio_small", ">= 0.8", "episodes per second divided by the rollout pool's, 32M parameters"),
    Row("serve_agent", "ratio_streamed_small", "", "the same, streamed"),
    Row("serve_agent", "ratio_tiny", ">= 0.8", "episodes per second divided by the rollout pool's, the tiny model"),
    Row(
        "serve_cancel",
        "cancel_p99_s_plain",
        "<= 0.5",
        "seconds until a cancelled request's slot is free, 99th percentile, the model alone",
    ),
    Row("serve_cancel", "cancel_p99_s_agent", "<= 0.5", "the same, the agent"),
    Row(
        "serve_cancel",
        "freed_1000_s_plain",
        "<= 5",
        "seconds until 64 new requests are served after 1,000 clients leave at once, the model alone",
    ),
    Row("serve_cancel", "freed_1000_s_agent", "<= 5", "the same, the agent"),
    Row("plan", "worst_error", "<= 0.2", "largest relative error of seven predictions by `coa plan`'s simulation"),
    Row(
        "plan",
        "by_run/error",
        "<= 0.2",
        "relative error of `coa plan --run`, which knows one other run and no latencies",
    ),
)


def lines(results: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """results: by the benchmark's name."""
    yield HEAD
    for row in ROWS:
        result = results.get(row.benchmark, {})
        figures = result.get("figures", {})
        found = figures.get(row.figure)
        shown = MISSING if found is None else f"{found:.3g}"
        verdict = ""
        if found is not None and row.target:
            verdict = "yes" if holds(figures, {row.figure: row.target}) else "**no**"
        commit = result.get("commit", "") if found is not None else ""
        yield f"| `{row.benchmark}` | {row.what} | {row.target} | {shown} | {verdict} | {commit} |"


def read(folder: Path = RESULTS) -> dict[str, Any]:
    """Those of whole runs; a smoke run's are elsewhere."""
    paths = {name: folder / f"{name}.json" for name in {row.benchmark for row in ROWS}}
    return {name: json.loads(path.read_text()) for name, path in paths.items() if path.exists()}


def filled(document: str, table: str, begin: str = BEGIN) -> str:
    """The document with that table, between the line `begin` and the next END."""
    before, _, rest = document.partition(begin)
    return f"{before}{begin}\n{table}\n{END}{rest.partition(END)[2]}"


def main() -> None:
    DOCUMENT.write_text(filled(DOCUMENT.read_text(), "\n".join(lines(read()))))


if __name__ == "__main__":
    main()
