"""Times of wiki_search over 100,000 passages on one core: building the index, opening it in a new process, searching.

    python -m benchmarks.wiki

The passages are synthetic: 100 words each, drawn from a vocabulary whose frequencies follow Zipf's law. A query is 3 to
8 consecutive words of one passage, so that it is known whether the right passage was found.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.harness import report, seconds
from coa.http.client import HttpConfig
from coa.tools.base import ToolCall
from coa.tools.search.wiki import WikiConfig, open_index, wiki_search

PASSAGES, WORDS, VOCABULARY, QUERIES, SEED = 100_000, 100, 50_000, 1_000, 0
TARGETS = {"load_s": "<= 1.0", "search_ms": "<= 5"}
LOADS = 5


def write_corpus(path: Path) -> list[tuple[str, str]]:
    """Writes the passages; returns queries, each with the title of the passage that it comes from."""
    draw = np.random.default_rng(SEED)
    vocabulary = np.array(make_vocabulary(draw))
    frequencies = 1 / np.arange(1, VOCABULARY + 1)
    texts = vocabulary[draw.choice(VOCABULARY, size=(PASSAGES, WORDS), p=frequencies / frequencies.sum())]
    with path.open("w") as file:
        for row, words in enumerate(texts):
            file.write(json.dumps({"id": str(row), "contents": f'"Passage {row}"\n{" ".join(words)}'}) + "\n")
    queries = []
    for row in draw.integers(PASSAGES, size=QUERIES):
        size = draw.integers(3, 9)
        start = draw.integers(WORDS - size + 1)
        queries.append((" ".join(texts[row, start : start + size]), f"Passage {row}"))
    return queries


def make_vocabulary(draw: np.random.Generator) -> list[str]:
    """Different words of up to four syllables, shortest first, as frequent words are."""
    syllables = np.array([a + b for a in "bcdfghjklmnprstvz" for b in "aeiou"])
    words: set[str] = set()
    while len(words) < VOCABULARY:
        words.add("".join(draw.choice(syllables, size=draw.integers(1, 5))))
    return sorted(words, key=lambda word: (len(word), word))


def measure(corpus: str, queries: Sequence[tuple[str, str]]) -> dict[str, float]:
    """In a fresh process: seconds to open, with what only that imports; milliseconds of searches through the tool."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    started = time.perf_counter()
    tool = wiki_search(WikiConfig(corpus=corpus), HttpConfig())
    load_s = time.perf_counter() - started
    found, searches = 0, []

    async def search() -> None:
        nonlocal found
        for query, title in queries:
            started = time.perf_counter()
            shown = await tool(ToolCall("wiki_search", query, layout="json"))
            searches.append(1000 * (time.perf_counter() - started))
            found += title in (passage["title"] for passage in json.loads(shown))

    asyncio.run(search())
    return {
        "load_s": load_s,
        "first_search_ms": searches[0],
        "search_ms": float(np.median(searches)),
        "search_p95_ms": float(np.percentile(searches, 95)),
        "recall_at_3": found / len(queries),
    }


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        corpus, asked = Path(folder) / "corpus.jsonl", Path(folder) / "queries.json"
        asked.write_text(json.dumps(write_corpus(corpus)))
        build_s = seconds(lambda: open_index(WikiConfig(corpus=str(corpus))))
        size = sum(path.stat().st_size for path in Path(f"{corpus}.index").rglob("*"))
        command = [sys.executable, "-m", "benchmarks.wiki", str(corpus), str(asked)]
        runs = [json.loads(subprocess.run(command, check=True, capture_output=True).stdout) for _ in range(LOADS)]
    figures = {name: round(float(np.median([run[name] for run in runs])), 3) for name in runs[0]}
    # The least of some processes, since whatever else the machine does only adds to the time of one.
    figures["load_median_s"], figures["load_s"] = figures["load_s"], round(min(run["load_s"] for run in runs), 3)
    report("wiki", {**figures, "build_s": round(build_s, 1), "index_mib": round(size / 2**20)}, TARGETS)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(json.dumps(measure(sys.argv[1], json.loads(Path(sys.argv[2]).read_text()))))
    else:
        main()
