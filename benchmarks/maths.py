"""Error rates of the grader of mathematics and of plain Math-Verify, on gold answers rewritten by rules.

COA_BENCHMARKS=folder/with/benchmarks python -m benchmarks.maths

The gold answers are those of math500, aime24 and aime25; `benchmarks/rewriting` has the rules. No row is stored: the
result contains only counts. Plain Math-Verify compares like published evaluations: the gold in a box, the answer
unchanged.
"""

import logging
import os
import time
import zlib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pyarrow.parquet

from benchmarks.harness import report
from benchmarks.rewriting.answers import Rewriting, kind_of, rewritings
from coa.grading.equivalence import equality
from coa.grading.mathematics.equal import Equal
from coa.grading.mathematics.formulas import published_comparison

BENCHMARKS = Path(os.environ.get("COA_BENCHMARKS", "../shared/benchmarks"))
FILES = ("math500", "aime24", "aime25")
OF_INTEGERS = 5
"""Of the rewritings of whole numbers, which are most golds, one in so many is compared."""
ONE_BOX = ("boxed", "boxed sentence", "boxed display", "boxed with blanks")
"""Frames with one box and nothing else that could be the answer."""
TARGET = 0.3
"""Percent of equal answers that may be rejected; of others, none may be accepted."""


def golds(folder: Path = BENCHMARKS) -> list[str]:
    """The different gold answers of the three benchmarks; raises FileNotFoundError without the files."""
    tables = (pyarrow.parquet.read_table(folder / f"{name}.parquet", columns=["reward_model"]) for name in FILES)
    return list(
        dict.fromkeys(str(row["reward_model"]["ground_truth"]) for table in tables for row in table.to_pylist())
    )


def sample(golds: Iterable[str], of_integers: int = OF_INTEGERS) -> list[Rewriting]:
    """All rewritings of these golds, but for whole numbers one in `of_integers`."""

    def drawn(one: Rewriting) -> bool:
        digest = zlib.crc32(f"drawn {one.gold} {one.answer}".encode())
        return kind_of(one.gold) != "integer" or digest % of_integers == 0

    return [one for gold in golds for one in rewritings(gold) if drawn(one)]


def wrong(equal: Equal, every: Iterable[Rewriting]) -> list[Rewriting]:
    """The rewritings on which a comparison errs."""
    return [one for one in every if equal(one.answer, one.gold) != one.same]


def rates(name: str, missed: list[Rewriting], every: list[Rewriting]) -> dict[str, float]:
    """False rejections and acceptances in percent of what they may befall: all answers, those in one box, each kind."""
    found: dict[str, float] = {}
    for part in ("", "boxed", *sorted({kind_of(one.gold) for one in every})):
        for same, what in ((True, "rejected"), (False, "accepted")):
            of, its = ([one for one in some if one.same is same and _belongs(one, part)] for some in (every, missed))
            found[f"{name}_{what}{f'_{part}' if part else ''}"] = round(100 * len(its) / max(1, len(of)), 2)
    return found


def _belongs(one: Rewriting, part: str) -> bool:
    return part in ("", kind_of(one.gold)) or (part == "boxed" and one.frame in ONE_BOX)


def main() -> None:
    logging.disable(logging.CRITICAL)
    every = sample(golds())
    same = sum(one.same for one in every)
    figures: dict[str, float] = {"same": same, "other": len(every) - same}
    for name, equal in (("plain", published_comparison()), ("ours", equality())):
        equal("1", "2")
        began = time.process_time()
        missed = wrong(equal, every)
        figures[f"{name}_ms"] = round(1000 * (time.process_time() - began) / len(every), 2)
        figures |= rates(name, missed, every)
        for rule, count in Counter((one.rule, one.same) for one in missed).most_common():
            print(f"{name}: {'rejects' if rule[1] else 'accepts'} {count} of {rule[0]}")
        if path := os.environ.get("COA_MISSED"):
            Path(f"{path}.{name}").write_text("".join(f"{one}\n" for one in missed))
    figures["ms_ratio"] = round(figures["ours_ms"] / figures["plain_ms"], 2)
    targets = {"ours_rejected": f"<= {TARGET}", "ours_accepted": "<= 0"}
    report("maths", figures, {**targets, "same": ">= 4000", "other": ">= 4000"})


if __name__ == "__main__":
    main()
