"""Selects one of several episodes that were played for one answer (arXiv 2508.13167, section 5.3, best-of-N)."""

from collections.abc import Sequence
from dataclasses import replace

from coa.agent.best_of import SELECTORS, Candidate
from coa.grading.graders import grader_of
from coa.grading.votes import votes_of
from coa.serving.chain import Closed
from coa.serving.events import Event, Finished, total
from coa.teams.router import score_of

Course = Sequence[Event]
"""All events of one episode, its end last."""


def selected(courses: Sequence[Course], how: str, profile: str) -> Course:
    """The chosen episode, with the usage, and the versions of the weights, of all. how: a key of SELECTORS. profile: of
    the episodes. Formulas are compared as graders do: blocks, and raises InfrastructureError, as `votes_of`."""
    *before, end = courses[SELECTORS[how](candidates_of(courses, profile))]
    assert isinstance(end, Finished)
    ends = [_end(course) for course in courses]
    versions = sorted({version for one in ends for version in one.versions})
    return [*before, replace(end, usage=total(one.usage for one in ends), versions=tuple(versions))]


def candidates_of(courses: Sequence[Course], profile: str) -> list[Candidate]:
    """The episodes as selectors see them: their answers as votes, and the scores of their last checks."""
    answers = [_end(course).answer for course in courses]
    votes = votes_of(answers, grader_of(profile, list(filter(None, answers))))
    return [Candidate(vote, _last_score(course)) for vote, course in zip(votes, courses, strict=True)]


def _last_score(course: Course) -> int | None:
    scores = [score_of(event.text) for event in course if isinstance(event, Closed) and event.tag == "double_check"]
    return scores[-1] if scores else None


def _end(course: Course) -> Finished:
    end = course[-1]
    assert isinstance(end, Finished)
    return end
