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
    Row("loop_limit", "0ms/ratio", ">= 0.9", "the loop over its slower half, tools at once"),
    Row("loop_limit", "slow/ratio", ">= 0.9", "the same, slow tools"),
    Row("loop_limit", "0ms/ratio_plain", "", "tools at once, halves alone on an idle machine"),
    Row("loop_limit", "slow/ratio_plain", "", "slow tools, halves alone on an idle machine"),
    Row("loop_limit", "0ms/halves", "<= 1.5", "the faster half over the slower, tools at once"),
    Row("loop_limit", "slow/halves", "<= 1.5", "the same, slow tools"),
    Row("loop_sync", "speedup_4", ">= 3.2", "staleness 4 over staleness 0, slow tools"),
    *(Row("loop_sync", f"speedup_{n}", "", f"staleness {n} over staleness 0") for n in (1, 2, 3, 8)),
    Row("loop_sync", "reward_0", "", "reward after as many samples, staleness 0"),
    Row("loop_sync", "reward_4", "", "the same, staleness 4"),
    Row("loop_sync", "reward_4_uncorrected", "", "the same, without clips or weights for a sample's age"),
    Row("loop_sync", "rewards_overlap", ">= 1", "intervals of the reward at staleness 0 and 4 overlap, three seeds"),
    Row("loop_trl", "ratio_0ms", ">= 1.5", "samples per second over TRL's, tools at once"),
    Row("loop_trl", "ratio_slow", ">= 5", "the same, slow tools"),
    Row("engine", "large/ratio", ">= 0.85", "the agent loop over offline `generate`, 32M parameters"),
    Row("engine", "tiny/ratio", "", "the same, the tiny model"),
    Row("engine", "large/ratio_alike", "", "32M parameters, requests with seeds and log-probs on both sides"),
    Row("learner", "tiny/ratio", ">= 0.95", "the learner over a bare loop, the tiny model"),
    Row("learner", "large/ratio", ">= 0.95", "the same, 32M parameters"),
    Row("learner", "memory_ratio", "<= 1.05", "its peak memory over the bare loop's, 32M parameters"),
    Row("sft_learner", "ratio_to_bare", ">= 0.95", "the fine-tuning learner over a bare loop"),
    Row("sft_learner", "ratio_to_trl", ">= 1.0", "the same over TRL's SFTTrainer"),
    Row("weights", "host_gb_s", "", "500 MB from a learner into an engine's process, digests on both sides, GB/s"),
    Row("weights", "memcpy_gb_s", "", "the same bytes, copied once, GB/s"),
    Row("weights", "pause_s", "", "seconds in which an engine stood for them"),
    Row("weights", "heartbeat_added_ms", "<= 20", "what an engine's event loop notices of syncs"),
    Row("data", "overhead", "<= 0.03", "time that a learner lost to data, 1,000 trajectories of 8k tokens a step"),
    Row("data", "driver_cpu", "<= 0.03", "of a core, what the driver computed meanwhile"),
    Row("data", "growth", "<= 0.02", "what the driver keeps of each trajectory that went through it, as a share of it"),
    Row(
        "rollout",
        "ratio_64",
        ">= 0.9",
        "episodes through pool, actors and tool executors over the runner alone, 64 at once",
    ),
    Row("rollout", "ratio_256", ">= 0.9", "the same, 256 at once"),
    Row("teachers", "capacity_used", ">= 0.9", "of an endpoint's 320 requests a second, used by a team on two cores"),
    Row("serve_plain", "throughput_smollm", ">= 0.9", "tokens per second over vLLM's own server, 135M parameters"),
    Row("serve_plain", "first_token_smollm", "<= 1.2", "median time to the first token over that of vLLM's own server"),
    Row("serve_plain", "throughput_tiny", "", "tokens per second over vLLM's own server, the tiny model"),
    Row("serve_plain", "first_token_tiny", "", "median time to the first token, the tiny model"),
    Row("serve_agent", "ratio_small", ">= 0.8", "episodes per second over the rollout pool's, 32M parameters"),
    Row("serve_agent", "ratio_streamed_small", "", "the same, streamed"),
    Row("serve_agent", "ratio_tiny", ">= 0.8", "episodes per second over the rollout pool's, the tiny model"),
    Row("serve_cancel", "cancel_p99_s_plain", "<= 0.5", "seconds to free a cancelled request's slot, 99th percentile"),
    Row("serve_cancel", "cancel_p99_s_agent", "<= 0.5", "the same of the agent"),
    Row("serve_cancel", "freed_1000_s_plain", "<= 5", "seconds until 64 others are served where 1,000 leave at once"),
    Row("serve_cancel", "freed_1000_s_agent", "<= 5", "the same of the agent"),
    Row("plan", "worst_error", "<= 0.2", "the worst of seven predictions of `coa plan`'s simulation"),
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


def filled(document: str, table: str) -> str:
    before, _, rest = document.partition(BEGIN)
    return f"{before}{BEGIN}\n{table}\n{END}{rest.partition(END)[2]}"


def main() -> None:
    DOCUMENT.write_text(filled(DOCUMENT.read_text(), "\n".join(lines(read()))))


if __name__ == "__main__":
    main()
