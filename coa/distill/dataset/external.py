"""Writes rows that were distilled elsewhere as shards of a run, and lists the rows that are left out, with reasons."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from coa.distill.contamination import REASONS, Contamination
from coa.distill.dataset.rows import NO_COLUMNS, PROGRAM, Decision, Demonstration, OwnColumns
from coa.distill.dataset.shards import read_reports, read_rows, write_shard
from coa.distill.stages import VIOLATION
from coa.storage.chunks import chunks
from coa.storage.files import replacing

QUALITY = "quality"
BREAKS_TABLE = Decision(QUALITY, VIOLATION)
"""Decision on a row that is kept although its chain violates its profile's table of transitions."""
OF_PROGRAM = "the context of a program, of which only the run that recorded it has the tokens"
MOST_REASONS = 3
"""Reasons that a message shows at most."""
Read = tuple[int, Demonstration | str]
"""Row number from 1, and the demonstration or the reason why the row is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalCounts:
    """Counts of rows by outcome; the counts of chunks can be added."""

    rows: int = 0
    kept: int = 0
    violations: int = 0
    """Kept rows whose chains violate their profile's table of transitions."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Counts of dropped rows by reason."""

    def __add__(self, other: "ExternalCounts") -> "ExternalCounts":
        return ExternalCounts(
            rows=self.rows + other.rows,
            kept=self.kept + other.kept,
            violations=self.violations + other.violations,
            dropped=dict(Counter(self.dropped) + Counter(other.dropped)),
        )

    @property
    def contaminated(self) -> Mapping[str, int]:
        """Counts of the dropped rows that are in an evaluation set."""
        return {reason: self.dropped[reason] for reason in REASONS if reason in self.dropped}

    @property
    def none_kept(self) -> str:
        """The sentence for counts without a kept row, with the commonest reasons."""
        common = Counter(self.dropped).most_common(MOST_REASONS)
        reasons = "; ".join(f"{n} x {reason}" for reason, n in common)
        return f"none of its {self.rows} rows can be trained on{f' ({reasons})' if reasons else ''}"


def read_run(folder: Path, contamination: Contamination) -> Iterator[Read]:
    """Each row of another run's data set; not those of a program, whose tokens are another model's."""
    for number, row in enumerate(read_rows(folder), start=1):
        yield number, contamination.reason(row.task.question) or (OF_PROGRAM if row.source == PROGRAM else row)


def add_rows(
    read: Iterable[Read],
    folder: Path,
    listing: Path,
    *,
    first: int = 0,
    shard_rows: int = 1000,
    own: OwnColumns = NO_COLUMNS,
) -> ExternalCounts:
    """Writes the kept rows as shards, numbered from `first`, and {"row", "reason"} of each dropped row to `listing`.

    Raises UserError if the source can't be read to its end; the shards before that place remain.
    """
    counts = ExternalCounts()
    with replacing(listing) as part, part.open("w", encoding="utf-8") as lines:
        for index, some in enumerate(chunks(read, shard_rows), start=first):
            kept = [one for _, one in some if isinstance(one, Demonstration)]
            dropped = [(row, reason) for row, reason in some if isinstance(reason, str)]
            lines.writelines(json.dumps({"row": row, "reason": reason}) + "\n" for row, reason in dropped)
            chunk = ExternalCounts(
                rows=len(some),
                kept=len(kept),
                violations=sum(BREAKS_TABLE in one.decisions for one in kept),
                dropped=dict(Counter(reason for _, reason in dropped)),
            )
            write_shard(folder, index, kept, asdict(chunk), own)
            counts += chunk
    return counts


def external_counts(folder: Path) -> ExternalCounts:
    """Counts of all external rows, summed over the metadata of the shards."""
    return sum((ExternalCounts(**report) for report in read_reports(folder)), ExternalCounts())
