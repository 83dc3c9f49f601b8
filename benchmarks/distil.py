"""Converts stored transcripts to training data on one core: transcripts per second, and the growth of memory.

    python -m benchmarks.distil

    rules        Parquet -> transcript -> chain -> the filter's stages, without duplicates and contamination
    tokens       the chain as a demonstration, by a tokenizer of the `tokenizers` library, trained in the benchmark
    duplicates   MinHash and Bloom filters over question and answer
    n-grams      against 5,000 evaluation questions

The transcripts are synthetic: 6 calls with observations of 200 words, about 2,000 tokens, all tasks different.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from benchmarks.harness import report
from coa.agent.codec import Codec
from coa.agent.profiles import profile as find_profile
from coa.agent.tokenizer import BEGIN, END, train_tokenizer
from coa.distill.contamination import Contamination
from coa.distill.duplicates import DuplicateConfig, Duplicates
from coa.distill.filters import Filter
from coa.distill.stages import FilterConfig
from coa.teams.store import read_transcripts, write_transcripts
from coa.teams.transcript import AgentStep, Ending, Graded, Step, ToolStep, Transcript
from coa.tools.base import ToolCall
from coa.types import Task

RUNS, FILE, EVALUATION, ROUNDS, SEED = 1_000, 250, 5_000, 5, 0
CHUNK = 64
PROFILE = "web"
TARGETS = {
    "rules_per_s": ">= 1000",
    "all_per_s": ">= 150",
    # Were the further runs kept in memory, it would be 1.5 and more.
    "growth": "<= 1.15",
}


class Words:
    """Words of a made-up language, frequent ones first, and texts of them."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        syllables = [a + b for a in "bcdfghjklmnprstvz" for b in "aeiou"]
        vocabulary = random.Random(SEED)
        self.all = sorted({"".join(vocabulary.choices(syllables, k=1 + n % 3)) for n in range(4000)}, key=len)

    def text(self, count: int) -> str:
        return " ".join(self.all[int(self._draw.paretovariate(0.6)) % len(self.all)] for _ in range(count))

    def question(self, n: int) -> str:
        return f"In {n} , {self.text(12)} of {self.text(1).title()} {self.text(10)} ?"


def make_run(words: Words, n: int) -> Graded:
    """A right one of 20 interactions that doubted itself once."""
    steps: list[Step] = [AgentStep("planner", f"<think> {words.text(20)}</think><plan> {words.text(40)}</plan>")]
    for call in range(6):
        query = f"{words.text(5)} {call}"
        steps += [
            AgentStep("searcher", f"<think> {words.text(20)}</think><web_search> {query}</web_search>"),
            ToolStep(ToolCall("web_search", query), words.text(200)),
        ]
    checks = ("2", "4")
    for number, score in enumerate(checks):
        steps += [
            AgentStep("critic", f"<reflection> {words.text(40)}</reflection>"),
            AgentStep("searcher", f"<suggested_answer> {words.text(2)}</suggested_answer>"),
            AgentStep("verifier", f"<double_check> {score} {words.text(30)}</double_check>"),
        ]
        if number < len(checks) - 1:
            query = f"{words.text(5)} again"
            steps += [
                AgentStep("searcher", f"<web_search> {query}</web_search>"),
                ToolStep(ToolCall("web_search", query), words.text(200)),
            ]
    answer = f"{words.text(2)} {n}"
    steps.append(AgentStep("planner", f"<answer> {answer}</answer>"))
    task = Task(id=f"t-{n}", question=words.question(n), answers=(answer,), profile=PROFILE, family="made")
    return Graded(Transcript(task=task, attempt=0, seed=0, steps=tuple(steps), ending=Ending.ANSWERED), True)


def write_runs(folder: Path, count: int, *, first: int = 0) -> None:
    for start in range(first, first + count, FILE):
        words = Words(start)
        write_transcripts(
            folder / f"transcripts-{start:06}.parquet", (make_run(words, n) for n in range(start, start + FILE))
        )


def chunks(runs: Iterable[Graded]) -> Iterator[list[Graded]]:
    runs = iter(runs)
    while chunk := list(islice(runs, CHUNK)):
        yield chunk


def rules_only() -> FilterConfig:
    return FilterConfig(duplicates=DuplicateConfig(threshold=None))


def evaluation() -> Contamination:
    words = Words(SEED + 1)
    return Contamination.of((words.question(-n) for n in range(EVALUATION)), 13)


def make_codec() -> Codec:
    words = Words(SEED + 2)
    tokenizer = train_tokenizer((words.text(200) for _ in range(500)), words.all[:500], vocabulary=8000)
    return Codec(tokenizer, opening=f"{BEGIN}user\n", closing=f"{END}\n{BEGIN}assistant\n")


def measure(folder: Path) -> dict[str, float]:
    """Milliseconds a run of each part, of one core's time, the least of some rounds: what else the machine does only
    ever adds to it."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    profile, codec, known = find_profile(PROFILE), make_codec(), evaluation()
    best: dict[str, float] = {}
    tokens = 0

    def took(name: str, since: float) -> float:
        at = time.process_time()
        best[name] = min(best.get(name, float("inf")), 1000 * (at - since) / RUNS)
        return time.process_time()

    for _ in range(ROUNDS):
        at = time.process_time()
        graded = list(read_transcripts(folder))
        at = took("read_ms", at)
        kept, report = Filter(rules_only()).take(graded)
        at = took("rules_ms", at)
        assert report.kept == RUNS, report
        tokens = sum(
            len(codec.demonstration(run.transcript.task, run.chain, profile, instructed=False).token_ids)
            for run in kept
        )
        at = took("tokens_ms", at)
        tasks = [run.transcript.task for run in kept]
        seen = Duplicates(DuplicateConfig())
        at = time.process_time()
        for task, run in zip(tasks, kept, strict=True):
            assert not seen.take(task.id, task.question, task.answers[0], run.chain)
        at = took("duplicates_ms", at)
        for task in tasks:
            assert not known.reason(task.question)
        took("ngrams_ms", at)
    one = best["read_ms"] + best["rules_ms"]
    rest = best["tokens_ms"] + best["duplicates_ms"] + best["ngrams_ms"]
    return {
        "rules_per_s": 1000 / one,
        "all_per_s": 1000 / (one + rest),
        "tokens_a_run": tokens / RUNS,
        **best,
        "duplicates_mib": Duplicates(DuplicateConfig()).nbytes / 2**20,
    }


def resident_mib() -> float:
    """Of this process at this moment."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def stream(folder: Path) -> dict[str, float]:
    """All of a folder through the whole filter in chunks, and the most memory taken after one of them."""
    filter = Filter(FilterConfig(), evaluation())
    levels: list[float] = []
    for chunk in chunks(read_transcripts(folder)):
        kept, report = filter.take(chunk)
        assert report.kept == len(kept) == len(chunk), report
        levels.append(resident_mib())
    return {"mib": max(levels)}


def apart(part: str, folder: Path) -> dict[str, float]:
    """A part in a process of its own, so that its memory is its own too."""
    command = [sys.executable, "-m", "benchmarks.distil", part, str(folder)]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout.splitlines()[-1])


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_runs(folder, RUNS)
        figures = apart("measure", folder)
        once = apart("stream", folder)
        write_runs(folder, 3 * RUNS, first=RUNS)
        four = apart("stream", folder)
    figures["resident_mib"], figures["resident_4x_mib"] = once["mib"], four["mib"]
    figures["growth"] = four["mib"] / once["mib"]
    report("distil", {name: round(value, 3) for name, value in figures.items()}, TARGETS)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(json.dumps({"measure": measure, "stream": stream}[sys.argv[1]](Path(sys.argv[2]))))
    else:
        main()
