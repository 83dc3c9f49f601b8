"""The report of what the filter dropped: exact on a set whose flaws are known, whole and stage by stage."""

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coa.distill import FilterConfig, FilterReport
from coa.distill.contamination import OWN_EXACT, OWN_NGRAM, Contamination
from coa.distill.drop_report import HEADER, STAGES, StageCounts, markdown, rows, write_drops
from coa.distill.duplicates import DuplicateConfig
from coa.distill.filters import Filter
from coa.teams.transcript import AgentStep, Ending, Graded, Step, ToolStep, Transcript
from coa.tools.base import ToolCall
from coa.types import Task

ASKED = "In which year did the town of Arden by the long river elect its very first mayor ?"
LONG = " ".join(f"word{chr(97 + n // 26)}{chr(97 + n % 26)}".replace("word", "w") for n in range(150))
PLAN, REFLECTION, ANSWER = "<plan> p</plan>", "<reflection> r</reflection>", "<answer> Berg</answer>"
CHECKED = ("<suggested_answer> Berg</suggested_answer>", "<double_check> 4 right</double_check>")
DOUBTED = ("<suggested_answer> Moss</suggested_answer>", "<double_check> 1 wrong</double_check>")


def searched(query: str) -> tuple[Step, Step]:
    return (
        AgentStep("searcher", f"<web_search> {query}</web_search>"),
        ToolStep(ToolCall("web_search", query), "seen"),
    )


def made(question: str, *steps: Step | str, task: str = "", ending: Ending = Ending.ANSWERED) -> Graded:
    """A right run of a task that is known by its question."""
    asked = Task(id=task or question, question=question, answers=("Berg",), profile="web", family="web")
    said = tuple(AgentStep("agent", step) if isinstance(step, str) else step for step in steps)
    return Graded(Transcript(task=asked, attempt=0, seed=0, steps=said, ending=ending), True)


def good(question: str, query: str = "a", task: str = "") -> Graded:
    return made(question, PLAN, *searched(query), REFLECTION, *CHECKED, ANSWER, task=task)


def corrected(question: str) -> Graded:
    return made(question, PLAN, *searched("a"), *DOUBTED, *searched("b"), REFLECTION, *CHECKED, ANSWER)


def flawed() -> list[tuple[Graded, str | None]]:
    """Runs, each with the reason for which it is dropped; some have several flaws, of which the first counts."""
    wrong = replace(good("Wrong ?"), correct=False)
    short = made("Short ?", PLAN, ANSWER)
    return [
        (good("In the clear ?"), None),
        (good(ASKED.upper()), "in an evaluation set: exact"),
        (made(ASKED, PLAN, ANSWER), "in an evaluation set: exact"),
        (good(f"Now, {ASKED.lower()} Say it ."), "in an evaluation set: n-gram"),
        (short, "too few interactions"),
        (replace(made("Short too ?", PLAN, ANSWER), correct=False), "too few interactions"),
        (made("Odd ?", PLAN, *searched("a"), REFLECTION, "Berg", ending=Ending.MALFORMED), "malformed"),
        (made("Endless ?", PLAN, *searched("a"), REFLECTION, PLAN, ending=Ending.OUT_OF_STEPS), "out of steps"),
        (wrong, "wrong answer"),
        (replace(wrong, objection="made it up"), "wrong answer"),
        (replace(good("Who knows ?"), correct=None), "ungraded"),
        (replace(good("Disobedient ?"), objection="made it up"), "instructions disobeyed"),
        (
            made("Again ?", PLAN, *searched("Vexon  Labs?"), *searched("vexon labs"), REFLECTION, *CHECKED, ANSWER),
            "repeated tool input",
        ),
        (made("Astray ?", *searched("a"), PLAN, REFLECTION, *CHECKED, ANSWER), "transition violation"),
        (made("Thoughtless ?", PLAN, *searched("a"), *CHECKED, ANSWER), "no reflection"),
        (good("in the  clear", task="other"), "same question and answer as another task"),
        (good(f"Town {LONG}"), None),
        (good(f"Town {LONG}".replace("wab", "once")), "near-duplicate of another task"),
        (good("In the clear ?"), "same chain for the same task"),
        (good("In the clear ?", "b"), None),
        (good("In the clear ?", "c"), "more solutions than wanted"),
        (corrected("Doubtful ?"), None),
        (corrected("Doubtful too ?"), None),
    ]


CONFIG = FilterConfig(
    keep_without_reflection=0.0,
    correction_copies=3.0,
    duplicates=DuplicateConfig(solutions_per_task=2, documents=100),
)
KNOWN = Contamination.of([ASKED], CONFIG.contamination_words)


def all_of(runs: list[Graded]) -> FilterReport:
    return Filter(CONFIG, KNOWN).take(runs)[1]


def test_a_set_of_known_flaws_is_accounted_for_to_the_last_run_and_stage():
    runs = flawed()
    kept, report = Filter(CONFIG, KNOWN).take(run for run, _ in runs)
    assert [one.transcript for one in kept] == [run.transcript for run, reason in runs if reason is None]
    assert [one.copies for one in kept] == [1, 1, 1, 3, 3]
    assert report.dropped == {
        "in an evaluation set: exact": 2,
        "in an evaluation set: n-gram": 1,
        "too few interactions": 2,
        "malformed": 1,
        "out of steps": 1,
        "wrong answer": 2,
        "ungraded": 1,
        "instructions disobeyed": 1,
        "repeated tool input": 1,
        "transition violation": 1,
        "no reflection": 1,
        "same question and answer as another task": 1,
        "near-duplicate of another task": 1,
        "same chain for the same task": 1,
        "more solutions than wanted": 1,
    }
    every = {reason for reasons in STAGES.values() for reason in reasons}
    assert set(report.dropped) == every - {OWN_EXACT, OWN_NGRAM}
    assert [(stage, one.taken, sum(one.dropped.values()), one.passed) for stage, one in report.stages.items()] == [
        ("contamination", 23, 3, 20),
        ("complexity", 20, 2, 18),
        ("quality", 18, 8, 10),
        ("reflection", 10, 1, 9),
        ("duplicates", 9, 4, 5),
        ("correction", 5, 0, 9),
    ]


@pytest.mark.parametrize("at", range(len(flawed())))
def test_each_run_meets_its_own_reason(at: int):
    """After those before it, which are what it may be a duplicate of."""
    filter = Filter(CONFIG, KNOWN)
    filter.take(run for run, _ in flawed()[:at])
    run, reason = flawed()[at]
    assert filter.take([run])[1].dropped == ({reason: 1} if reason else {})


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, len(flawed())), max_size=4).map(sorted))
def test_a_stream_may_be_cut_anywhere_with_all_stages_at_work(cuts: list[int]):
    runs = [run for run, _ in flawed()]
    whole, report = Filter(CONFIG, KNOWN).take(runs)
    filter = Filter(CONFIG, KNOWN)
    parts = [filter.take(runs[a:b]) for a, b in pairwise([0, *cuts, len(runs)])]
    assert [one for kept, _ in parts for one in kept] == whole
    assert sum((counts for _, counts in parts), FilterReport()) == report


@settings(deadline=None, max_examples=30)
@given(st.permutations(range(len(flawed()))))
def test_whatever_the_order_every_run_is_kept_or_has_a_reason(order: list[int]):
    runs = [run for run, _ in flawed()]
    kept, report = Filter(CONFIG, KNOWN).take(runs[at] for at in order)
    assert report.transcripts == len(runs) == len(kept) + sum(report.dropped.values())
    taken = report.transcripts
    for counts in report.stages.values():
        assert counts.taken == taken
        taken = counts.passed
    assert taken == report.kept + report.upsampled == sum(one.copies for one in kept)


def test_a_report_is_read_back_and_what_else_stands_there_is_not_minded():
    report = all_of([run for run, _ in flawed()])
    counts = json.loads(json.dumps({**report.to_json(), "seconds": 3.0}))
    assert FilterReport.from_json(counts) == report
    assert counts["stages"]["duplicates"]["in"] == 9
    assert counts["stages"]["reflection"] == {"in": 10, "dropped": {"no reflection": 1}, "out": 9}


def test_the_table_says_what_every_stage_did(tmp_path: Path):
    report = FilterReport(
        transcripts=10, kept=6, dropped={"wrong answer": 2, "malformed": 1, "no reflection": 1}, further=3, upsampled=2
    )
    assert rows(report) == [
        ("contamination", "10", "none", "10"),
        ("complexity", "10", "none", "10"),
        ("quality", "10", "malformed: 1, wrong answer: 2", "7"),
        ("reflection", "7", "no reflection: 1", "6"),
        ("duplicates", "6", "none", "6"),
        ("correction", "6", "none, 3 further lines added, 2 copies added", "11"),
    ]
    assert markdown(report).splitlines()[:5] == [
        "6 of 10 transcripts kept, 11 demonstrations with further lines and copies.",
        "",
        f"| {' | '.join(HEADER)} |",
        "|---|---:|---|---:|",
        "| contamination | 10 | none | 10 |",
    ]
    write_drops(tmp_path / "data", report)
    assert FilterReport.from_json(json.loads((tmp_path / "data" / "drops.json").read_text())) == report
    assert (tmp_path / "data" / "drops.md").read_text() == markdown(report)
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["drops.json", "drops.md"]


def test_nothing_taken_is_a_report_too():
    assert FilterReport() + FilterReport() == FilterReport()
    assert FilterReport().stages["quality"] == StageCounts(taken=0, dropped={}, passed=0)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: FilterReport(transcripts=3, kept=1, dropped={"wrong answer": 1}), "3 transcripts, but 1 kept"),
        (lambda: FilterReport(transcripts=1, dropped={"bad luck": 1}), "no stage drops a run for 'bad luck'"),
    ],
)
def test_counts_that_can_not_be_are_refused(make: Callable[[], FilterReport], match: str):
    with pytest.raises(ValueError, match=match):
        make()
