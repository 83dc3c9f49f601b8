"""Selects one of several episodes that were played for one answer (arXiv 2508.13167, section 5.3, best-of-N)."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from coa.grading.normalise import normalise
from coa.serving.chain import Closed
from coa.serving.events import Event, Finished, total
from coa.teams.router import score_of

Course = Sequence[Event]
"""All events of one episode, its end last."""


def majority(courses: Sequence[Course]) -> int:
    """The first of the episodes whose answer is given most often, as graders compare words; of equally frequent answers
    the one that came first. Episodes without an answer have no vote."""
    answers = [normalise(_end(course).answer) for course in courses]
    votes = Counter(answer for answer in answers if answer)
    return answers.index(votes.most_common(1)[0][0]) if votes else 0


def double_check(courses: Sequence[Course]) -> int:
    """The first of the episodes whose last own check of the answer gave the highest score; an answer without a check
    comes after all scores, and no answer after that."""

    def worth(course: Course) -> int:
        scores = [score_of(event.text) for event in course if isinstance(event, Closed) and event.tag == "double_check"]
        return -1 if not _end(course).answer else (scores[-1] or 0) if scores else 0

    worths = list(map(worth, courses))
    return worths.index(max(worths))


SELECTORS = {"majority": majority, "double_check": double_check}


def selected(courses: Sequence[Course], how: str) -> Course:
    """The chosen episode, with the usage of all. how: a key of SELECTORS."""
    *before, end = courses[SELECTORS[how](courses)]
    assert isinstance(end, Finished)
    return [*before, replace(end, usage=total(_end(course).usage for course in courses))]


def _end(course: Course) -> Finished:
    end = course[-1]
    assert isinstance(end, Finished)
    return end
