"""The progressive filter between teachers and student: stages in this order (four of them in the paper, 3.2.1).

    contamination  tasks of an evaluation set                                         coa.distill.contamination
    complexity     too few interactions                                               coa.distill.stages
    quality        malformed, out of steps, wrong or disobedient, repeated tool input, transition violation
    reflection     keeps a share of the runs without a reflection, and none of them under some profiles
    duplicates     near-duplicates of another task, or the same chain again           coa.distill.duplicates
    correction     repeats runs that first doubted an answer and were right in the end

A run passes the stages until one drops it. Of a debate, each line that agreed on the answer goes through them: the run
is kept if one passes, and those behind the first are further demonstrations. Duplicates depend on the runs kept before,
all other stages on the run alone. So a stream may be cut into any chunks, and a job that resumes tells the filter what
was kept (`remember`). Answers are graded (`coa.distill.grade`) and a judge's objections found (`coa.distill.obedience`)
before the filter.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from coa.agent.grammar import ANSWER, Chain, parse
from coa.distill.contamination import Contamination
from coa.distill.convert import to_chain
from coa.distill.drop_report import Dropped, FilterReport
from coa.distill.duplicates import Duplicates
from coa.distill.stages import (
    FilterConfig,
    copies_of,
    detail_of,
    lack_of_complexity,
    lack_of_quality,
    lack_of_reflection,
)
from coa.teams.transcript import Graded, Transcript


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A run to imitate, `copies` times."""

    transcript: Transcript
    chain: Chain
    copies: int
    further: bool = False
    """Whether it is another line of a run that is kept already, whose usage is counted there."""


class Filter:
    """Applies all stages to a stream, chunk by chunk: `kept, report = Filter(config).take(runs)`.

    Its memory has a fixed size, independent of the number of runs.
    """

    def __init__(
        self, config: FilterConfig, contamination: Contamination | None = None, *, further: bool = True
    ) -> None:
        """contamination: the tasks of evaluation sets; None if there are none. further: whether other lines than the
        winner's are looked at; False where a judge has seen the winner's alone."""
        self._config, self._further = config, further
        self._contamination = contamination
        self._seen = Duplicates(config.duplicates)
        self.dropped: list[Dropped] = []
        """The runs that the last `take` dropped, in order."""

    def take(self, runs: Iterable[Graded]) -> tuple[list[Kept], FilterReport]:
        """The runs to imitate, in order, and the counts of all runs."""
        kept: list[Kept] = []
        self.dropped = []
        for run in runs:
            kept += self._take(run)
        further = sum(run.further for run in kept)
        report = FilterReport(
            transcripts=len(kept) - further + len(self.dropped),
            kept=len(kept) - further,
            dropped=dict(Counter(one.reason for one in self.dropped)),
            further=further,
            upsampled=sum(run.copies - 1 for run in kept),
        )
        return kept, report

    def _take(self, run: Graded) -> list[Kept]:
        """What is kept of a run; if nothing is, records it as dropped for the reason of its winner's line."""
        kept: list[Kept] = []
        dropped: list[Dropped] = []
        for line in self._lines(run):
            transcript, chain = line.transcript, to_chain(line.transcript)
            if reason := self._reason(line, chain):
                detail = detail_of(reason, transcript, chain)
                dropped.append(Dropped(transcript.task.id, transcript.attempt, reason, detail))
            else:
                copies = copies_of(line, chain, self._config)
                kept.append(Kept(transcript=transcript, chain=chain, copies=copies, further=bool(kept)))
        self.dropped += [] if kept else dropped[:1]
        return kept

    def _lines(self, run: Graded) -> list[Graded]:
        """The run by each line that may become a chain, the winner's first."""
        lines = run.transcript.settled if self._further else (run.transcript.winner,)
        return [replace(run, transcript=replace(run.transcript, winner=line)) for line in lines]

    def remember(self, task_id: str, question: str, answer: str, text: str) -> None:
        """Remembers a run that was kept earlier. answer: its `compared_answer`; text: its chain's tag text."""
        self._seen.remember(task_id, question, answer, parse(text).chain)

    def flaw(self, run: Graded) -> str | None:
        """The reason to drop the run, apart from duplicates of runs kept before; None if there is none."""
        flaws = self._flaws(run)
        return flaws[0] if all(flaws) else None

    def demonstrations(self, run: Graded) -> int:
        """Number of demonstrations that the run is worth, duplicates apart."""
        return self._flaws(run).count(None)

    def _flaws(self, run: Graded) -> list[str | None]:
        """The flaw of each line that may become a chain."""
        return [self._flaw(line, to_chain(line.transcript)) for line in self._lines(run)]

    def _flaw(self, run: Graded, chain: Chain) -> str | None:
        transcript, config = run.transcript, self._config
        return (
            (self._contamination and self._contamination.reason(transcript.task.question))
            or lack_of_complexity(transcript, config)
            or lack_of_quality(run, chain, config)
            or lack_of_reflection(transcript, chain, config)
        )

    def _reason(self, run: Graded, chain: Chain) -> str | None:
        """The first reason to drop the run; if there is none, remembers the run and returns None."""
        if flaw := self._flaw(run, chain):
            return flaw
        task = run.transcript.task
        return self._seen.take(task.id, task.question, compared_answer(task.answers, chain), chain)


def compared_answer(answers: Sequence[str], chain: Chain) -> str:
    """The answer by which duplicates are compared: the first accepted one, or the chain's own if there is none."""
    if answers:
        return answers[0]
    return chain[-1].text if chain and chain[-1].tag == ANSWER else ""


def filter_runs(
    runs: Iterable[Graded], config: FilterConfig, contamination: Contamination | None = None
) -> tuple[list[Kept], FilterReport]:
    """Filters a whole stream; searches for duplicates among these runs only."""
    return Filter(config, contamination).take(runs)
