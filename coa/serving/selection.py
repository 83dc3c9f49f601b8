"""Selects one of several episodes that were played for one answer (arXiv 2508.13167, section 5.3, best-of-N)."""

from collections.abc import Sequence
from dataclasses import replace

from coa.agent.best_of import SELECTORS, Candidate
from coa.grading.normalise import normalise
from coa.serving.chain import Closed
from coa.serving.events import Event, Finished, total
from coa.teams.router import score_of

Course = Sequence[Event]
"""All events of one episode, its end last."""


def selected(courses: Sequence[Course], how: str) -> Course:
    """The chosen episode, with the usage, and the versions of the weights, of all. how: a key of SELECTORS."""
    *before, end = courses[SELECTORS[how](list(map(candidate, courses)))]
    assert isinstance(end, Finished)
    ends = [_end(course) for course in courses]
    versions = sorted({version for one in ends for version in one.versions})
    return [*before, replace(end, usage=total(one.usage for one in ends), versions=tuple(versions))]


def candidate(course: Course) -> Candidate:
    """An episode as selectors see it: its answer as graders compare words, and the score of its last check."""
    scores = [score_of(event.text) for event in course if isinstance(event, Closed) and event.tag == "double_check"]
    return Candidate(normalise(_end(course).answer), scores[-1] if scores else None)


def _end(course: Course) -> Finished:
    end = course[-1]
    assert isinstance(end, Finished)
    return end
