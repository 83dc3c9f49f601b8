"""What became of the runs that the filter took, stage by stage, exact to the last run.

    stage           in   dropped            out
    contamination  100   exact 2, n-gram 1   97
    complexity      97   ...

Every reason belongs to one stage, so the counts of reasons tell what each stage was given and passed on.
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from coa.distill import contamination, duplicates, stages
from coa.files import write_atomically
from coa.teachers.transcript import Ending

CORRECTION = "correction"
STAGES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "contamination": contamination.REASONS,
        "complexity": (stages.TOO_SIMPLE,),
        "quality": (
            Ending.MALFORMED.value,
            Ending.OUT_OF_STEPS.value,
            stages.WRONG,
            stages.UNGRADED,
            stages.DISOBEYED,
            stages.REPEATED,
            stages.VIOLATION,
        ),
        "reflection": (stages.NO_REFLECTION,),
        "duplicates": (duplicates.EXACT, duplicates.NEAR, duplicates.SAME_CHAIN, duplicates.ENOUGH),
        CORRECTION: (),
    }
)
"""In the order in which a run meets them, with their reasons to drop it. Correction drops none and adds copies."""
_REASONS = frozenset(reason for reasons in STAGES.values() for reason in reasons)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCounts:
    taken: int
    dropped: Mapping[str, int]
    """By reason, none of them 0."""
    passed: int
    """Copies included where a stage makes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterReport:
    """Counts of runs; reports of chunks add up. Raises ValueError for counts that can not be."""

    transcripts: int = 0
    kept: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    """By reason."""
    upsampled: int = 0
    """Copies beyond the first."""

    def __post_init__(self) -> None:
        if unknown := set(self.dropped) - _REASONS:
            raise ValueError(f"no stage drops a run for {min(unknown)!r}")
        if self.transcripts != self.kept + sum(self.dropped.values()):
            raise ValueError(f"{self.transcripts} transcripts, but {self.kept} kept and {dict(self.dropped)} dropped")

    def __add__(self, other: "FilterReport") -> "FilterReport":
        return FilterReport(
            transcripts=self.transcripts + other.transcripts,
            kept=self.kept + other.kept,
            dropped=dict(Counter(self.dropped) + Counter(other.dropped)),
            upsampled=self.upsampled + other.upsampled,
        )

    @property
    def stages(self) -> dict[str, StageCounts]:
        """In order."""
        found: dict[str, StageCounts] = {}
        taken = self.transcripts
        for stage, reasons in STAGES.items():
            dropped = {reason: n for reason in reasons if (n := self.dropped.get(reason, 0))}
            passed = taken - sum(dropped.values()) + (self.upsampled if stage == CORRECTION else 0)
            found[stage] = StageCounts(taken=taken, dropped=dropped, passed=passed)
            taken = passed
        return found

    def to_json(self) -> dict[str, Any]:
        return {
            "transcripts": self.transcripts,
            "kept": self.kept,
            "dropped": dict(self.dropped),
            "upsampled": self.upsampled,
            "stages": {
                stage: {"in": counts.taken, "dropped": dict(counts.dropped), "out": counts.passed}
                for stage, counts in self.stages.items()
            },
        }

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> "FilterReport":
        """The inverse; what else `told` holds is not looked at. KeyError for a count that is missing."""
        return cls(**{name: told[name] for name in ("transcripts", "kept", "dropped", "upsampled")})


HEADER = ("stage", "in", "dropped", "out")


def rows(report: FilterReport) -> list[tuple[str, str, str, str]]:
    """Cells for any table, a line a stage under HEADER."""
    return [(stage, str(told.taken), _dropped(stage, told), str(told.passed)) for stage, told in report.stages.items()]


def _dropped(stage: str, told: StageCounts) -> str:
    parts = [f"{reason}: {n}" for reason, n in told.dropped.items()]
    if stage == CORRECTION and told.passed > told.taken:
        parts = [f"none, {told.passed - told.taken} copies added"]
    return ", ".join(parts) or "none"


def markdown(report: FilterReport) -> str:
    """The rows as a table, after one line of what it comes to."""
    lines = [
        f"{report.kept} of {report.transcripts} transcripts kept, {report.kept + report.upsampled} with copies.",
        "",
        f"| {' | '.join(HEADER)} |",
        "|---|---:|---|---:|",
        *(f"| {' | '.join(row)} |" for row in rows(report)),
    ]
    return "\n".join(lines) + "\n"


def write_drops(folder: Path, report: FilterReport) -> None:
    """drops.json, which `FilterReport.from_json` reads, and drops.md beside it."""
    write_atomically(folder / "drops.json", json.dumps(report.to_json(), indent=1) + "\n")
    write_atomically(folder / "drops.md", markdown(report))
