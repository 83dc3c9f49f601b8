"""Conversion and the progressive filter, on made-up runs with known flaws."""

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coa.agent.grammar import Chain, Span, parse, render
from coa.distill import FilterConfig, FilterReport, Kept, filters, to_chain
from coa.distill.duplicates import DuplicateConfig
from coa.distill.filters import Filter, compared_answer
from coa.distill.grade import grade
from coa.distill.stages import interactions, tool_input
from coa.errors import JudgeDown
from coa.teams.transcript import AgentStep, Ending, Graded, Step, ToolStep, Transcript
from coa.tools.base import ToolCall
from coa.types import Task

PAPER = FilterConfig()
OPEN = FilterConfig(min_interactions=1, keep_without_reflection=1.0, reflection_required=(), correction_copies=1.0)
"""Lets everything pass but what lacks quality."""
LONG = settings(deadline=None, max_examples=30)


def run(profile: str, *steps: Step | str, n: int = 0, ending: Ending = Ending.ANSWERED) -> Transcript:
    """A run whose right answer is Berg; a text is a step of some agent. Tasks of another profile or n differ."""
    task = Task(
        id=f"{profile}-{n}", question=f"Who in {profile} {n} ?", answers=("Berg",), profile=profile, family=profile
    )
    made = tuple(AgentStep("agent", step) if isinstance(step, str) else step for step in steps)
    return Transcript(task=task, attempt=0, seed=0, steps=made, ending=ending)


def used(tool: str, argument: str, observation: str = "seen") -> tuple[Step, Step]:
    return AgentStep("worker", f"<{tool}> {argument}</{tool}>"), ToolStep(ToolCall(tool, argument), observation)


PLAN, REFLECTION, ANSWER = "<plan> p</plan>", "<reflection> r</reflection>", "<answer> Berg</answer>"
SUGGESTED = "<suggested_answer> Berg</suggested_answer>"
DOUBTED, CONFIRMED = "<double_check> 2 outdated</double_check>", "<double_check> 4 right</double_check>"


def good(n: int = 0) -> Transcript:
    return run("mhqa", PLAN, *used("wiki_search", "a"), REFLECTION, ANSWER, n=n)


def without_reflection(n: int = 0) -> Transcript:
    return run("mhqa", PLAN, *used("wiki_search", "a"), *used("wiki_search", "b"), ANSWER, n=n)


def corrected(n: int = 0) -> Transcript:
    searched, crawled = used("web_search", "a"), used("crawl_page", "p1")
    checked = (SUGGESTED, DOUBTED, *crawled, REFLECTION, SUGGESTED, CONFIRMED)
    return run("web", PLAN, *searched, *checked, ANSWER, n=n)


async def no_tool(call: ToolCall) -> str:
    raise AssertionError(call)


def filter_runs(transcripts: Iterable[Transcript], config: FilterConfig) -> tuple[list[Kept], FilterReport]:
    """Graded and filtered."""
    return filters.filter_runs([asyncio.run(grade(transcript, no_tool)) for transcript in transcripts], config)


def reasons(*transcripts: Transcript, config: FilterConfig = PAPER) -> dict[str, int]:
    return dict(filter_runs(transcripts, config)[1].dropped)


# Conversion.


def test_a_run_becomes_the_chain_of_its_agents_spans_and_its_observations():
    transcript = run(
        "mhqa",
        PLAN,
        "<think> town first</think><wiki_search> Nora Lind</wiki_search>",
        ToolStep(ToolCall("wiki_search", "Nora Lind"), "born in <answer> Amber Falls"),
        "done",
        REFLECTION,
        ANSWER,
    )
    assert to_chain(transcript) == (
        Span("plan", "p"),
        Span("think", "town first"),
        Span("wiki_search", "Nora Lind"),
        Span("observation", "born in <answer> Amber Falls"),
        Span("reflection", "r"),
        Span("answer", "Berg"),
    )


def test_a_malformed_reply_leaves_the_spans_before_its_fault():
    transcript = run("mhqa", PLAN, "<think> t</think> and so <answer> x</answer>", ending=Ending.MALFORMED)
    assert to_chain(transcript) == (Span("plan", "p"), Span("think", "t"))


SPANS = st.builds(Span, st.sampled_from(("plan", "think", "reflection", "suggested_answer")), st.text())


@given(st.lists(st.lists(SPANS, min_size=1, max_size=3).map(tuple), max_size=5))
def test_conversion_keeps_every_span_in_order(replies: list[Chain]):
    chain = to_chain(run("web", *(render(reply) for reply in replies)))
    assert chain == tuple(span for reply in replies for span in reply)
    assert parse(render(chain)).chain == chain


# Stage 1: complexity.


def test_runs_of_fewer_than_five_interactions_are_too_simple():
    short = run("mhqa", PLAN, *used("wiki_search", "a"), ANSWER)
    routed = run("mhqa", PLAN, *used("wiki_search", "a"), "done", ANSWER, n=1)
    assert [interactions(transcript) for transcript in (short, routed, good(2))] == [4, 4, 5]
    assert reasons(short, routed, good(2)) == {"too few interactions": 2}
    assert reasons(short, routed, good(2), config=OPEN) == {}


def test_only_interactions_on_the_line_that_becomes_the_chain_count():
    lines = [replace(step, line=at % 2) for at, step in enumerate(good().steps)]
    assert [interactions(replace(good(), steps=tuple(lines), winner=line)) for line in (0, 1, 2)] == [3, 2, 0]


# Stage 2: quality.

FLAWED = {
    "wrong answer": run("mhqa", PLAN, *used("wiki_search", "a"), REFLECTION, "<answer> Moss</answer>"),
    "repeated tool input": run(
        "mhqa", PLAN, *used("wiki_search", "a"), *used("wiki_search", " a "), REFLECTION, ANSWER
    ),
    "transition violation": run("mhqa", *used("wiki_search", "a"), PLAN, REFLECTION, ANSWER),
    "malformed": run("mhqa", PLAN, *used("wiki_search", "a"), REFLECTION, "Berg", ending=Ending.MALFORMED),
    "out of steps": run("mhqa", PLAN, *used("wiki_search", "a"), REFLECTION, PLAN, ending=Ending.OUT_OF_STEPS),
}


@pytest.mark.parametrize("flaw", FLAWED)
def test_each_lack_of_quality_is_its_own_reason(flaw: str):
    assert reasons(FLAWED[flaw]) == reasons(FLAWED[flaw], config=OPEN) == {flaw: 1}


def test_equal_inputs_of_different_tools_are_no_repetition():
    searched = (*used("web_search", "a"), *used("crawl_page", "a"))
    assert reasons(run("web", PLAN, *searched, REFLECTION, SUGGESTED, CONFIRMED, ANSWER)) == {}


def test_an_answer_is_graded_by_its_tasks_grader():
    spelled = run("mhqa", PLAN, *used("wiki_search", "a"), REFLECTION, "<answer> the berg.</answer>")
    assert reasons(spelled) == {}


def test_the_filter_believes_the_grade_that_it_is_given():
    wrong, right = FLAWED["wrong answer"], good()
    assert filters.filter_runs([Graded(wrong, True)], OPEN)[1].kept == 1
    assert filters.filter_runs([Graded(right, False)], OPEN)[1].dropped == {"wrong answer": 1}


def test_a_run_that_can_not_be_graded_is_no_wrong_answer():
    async def mute(call: ToolCall) -> str:
        raise JudgeDown("mute")

    def judged(transcript: Transcript) -> Transcript:
        return replace(transcript, task=replace(transcript.task, grader="judge"))

    with pytest.raises(JudgeDown):
        asyncio.run(grade(judged(good()), mute))
    assert asyncio.run(grade(judged(FLAWED["malformed"]), mute)).correct is False


def test_a_run_of_a_task_without_an_accepted_answer_is_neither_right_nor_wrong():
    unknown = replace(good(), task=replace(good().task, answers=()))
    graded = asyncio.run(grade(unknown, no_tool))
    assert graded == Graded(unknown, None)
    assert filters.filter_runs([graded], PAPER)[1].dropped == {"ungraded": 1}


def test_where_answers_are_not_known_wrong_and_ungraded_runs_are_kept_but_no_others():
    runs = [Graded(good(n), correct) for n, correct in enumerate((True, False, None))]
    assert filters.filter_runs(runs, PAPER)[1].dropped == {"wrong answer": 1, "ungraded": 1}
    anyway = FilterConfig(right_answers_only=False)
    assert filters.filter_runs(runs, anyway)[1].kept == 3
    flawed = [Graded(FLAWED[flaw], None) for flaw in ("malformed", "out of steps", "repeated tool input")]
    assert filters.filter_runs(flawed, anyway)[1].dropped == {
        "malformed": 1,
        "out of steps": 1,
        "repeated tool input": 1,
    }


@pytest.mark.parametrize("correct", [True, None])
def test_what_a_judge_objects_to_is_dropped_though_its_answer_is_right(correct: bool | None):
    disobedient = Graded(good(), correct, "it made up a source")
    config = FilterConfig(right_answers_only=False)
    assert filters.filter_runs([disobedient], config)[1].dropped == {"instructions disobeyed": 1}


@pytest.mark.parametrize(
    ("tag", "one", "other"),
    [
        ("wiki_search", "Vexon Labs owner", "vexon  LABS: owner?"),
        ("web_search", "'Vexon Labs' well-known", " Vexon Labs, well known "),
        ("web_search", "?!", "?!"),
        ("crawl_page", "https://x.org/a|https://x.org/b", " https://x.org/a|https://x.org/b "),
        ("code", "print(1)", "\nprint(1)\n"),
    ],
)
def test_inputs_that_ask_for_the_same_are_repeated(tag: str, one: str, other: str):
    assert tool_input(Span(tag, one)) == tool_input(Span(tag, other))


@pytest.mark.parametrize(
    ("tag", "one", "other"),
    [
        ("web_search", "Vexon Labs owner", "Vexon Labs owners"),
        ("web_search", "C++ vector", "C# vector"),
        ("web_search", "boils at 5", "boils at -5"),
        ("web_search", "version 1.5", "version 15"),
        ("web_search", "?!", "!?"),
        ("crawl_page", "https://x.org/a-b", "https://x.org/a_b"),
        ("crawl_page", "https://x.org/A", "https://x.org/a"),
        ("code", "print(x)", "print(X)"),
        ("code", "print(1)", "print(-1)"),
        ("code", "if x:\n  f()\ng()", "if x:\n  f()\n  g()"),
    ],
)
def test_inputs_that_ask_for_something_else_are_not_repeated(tag: str, one: str, other: str):
    assert tool_input(Span(tag, one)) != tool_input(Span(tag, other))


def test_a_query_in_other_spelling_is_a_repeated_tool_input_and_a_program_is_not():
    queried = run(
        "mhqa", PLAN, *used("wiki_search", "Nora Lind"), *used("wiki_search", "nora lind."), REFLECTION, ANSWER
    )
    programs = (*used("code", "print(x)"), REFLECTION, *used("code", "print(X)"), REFLECTION)
    assert reasons(queried, run("code", PLAN, *programs, ANSWER)) == {"repeated tool input": 1}


# Stage 3: reflection.


def test_runs_without_reflection_are_sampled_down_to_the_share():
    runs = [without_reflection(n) for n in range(1000)]
    kept, report = filter_runs(runs, FilterConfig(keep_without_reflection=0.3))
    assert report.dropped == {"no reflection": 1000 - len(kept)}
    assert 270 < len(kept) < 330
    assert filter_runs(runs, FilterConfig(keep_without_reflection=0.0))[0] == []
    assert len(filter_runs(runs, FilterConfig(keep_without_reflection=1.0))[0]) == 1000
    other = filter_runs(runs, FilterConfig(keep_without_reflection=0.3, seed=1))[0]
    assert [run.transcript.task.id for run in other] != [run.transcript.task.id for run in kept]


@pytest.mark.parametrize("profile", ["code", "math"])
def test_programs_and_proofs_without_reflection_are_dropped_outright(profile: str):
    thoughts = "<think> a</think>", "<think> b</think>", "<think> c</think>"
    silent = [run(profile, PLAN, *thoughts, ANSWER, n=n) for n in range(50)]
    reflective = run(profile, PLAN, *used("code", "print(1)"), REFLECTION, ANSWER, n=50)
    assert reasons(*silent, reflective) == {"no reflection": 50}
    assert reasons(*silent, config=FilterConfig(reflection_required=(), keep_without_reflection=1.0)) == {}


# Stage 4: error correction.


def test_runs_that_corrected_themselves_come_more_often():
    confirmed = run("web", PLAN, *used("web_search", "a"), REFLECTION, SUGGESTED, CONFIRMED, ANSWER)
    kept, report = filter_runs([corrected(1), confirmed], FilterConfig(correction_copies=3.0))
    assert [run.copies for run in kept] == [3, 1]
    assert (report.kept, report.upsampled) == (2, 2)


@pytest.mark.parametrize("correct", [False, None])
def test_a_doubt_is_a_correction_only_where_the_answer_is_known_to_be_right(correct: bool | None):
    config = FilterConfig(right_answers_only=False, correction_copies=3.0)
    assert [run.copies for run in filters.filter_runs([Graded(corrected(), correct)], config)[0]] == [1]


def test_a_broken_number_of_copies_holds_on_average():
    kept, report = filter_runs([corrected(n) for n in range(1000)], FilterConfig(correction_copies=1.5))
    assert {run.copies for run in kept} == {1, 2}
    assert 450 < report.upsampled < 550


def test_a_first_score_of_three_is_no_doubt():
    probable = "<double_check> 3 probable</double_check>"
    kept, _ = filter_runs([run("web", PLAN, *used("web_search", "a"), REFLECTION, SUGGESTED, probable, ANSWER)], PAPER)
    assert [run.copies for run in kept] == [1]


def test_a_doubt_that_came_second_is_no_correction():
    searched = used("web_search", "a"), used("web_search", "b")
    late = (SUGGESTED, CONFIRMED, *searched[1], SUGGESTED, DOUBTED)
    kept, _ = filter_runs([run("web", PLAN, *searched[0], REFLECTION, *late, ANSWER)], PAPER)
    assert [run.copies for run in kept] == [1]


# The lines of a debate.

AGREED = "<double_check> 4 2 of 2 agree</double_check>"


def debated(*lines: tuple[Step | str, ...]) -> Transcript:
    """A debate whose lines all agreed; the first is the winner's."""
    steps = [replace(step, line=line) for line, said in enumerate(lines) for step in run("mhqa", *said).steps]
    ends = [AgentStep("team", AGREED + ANSWER, line) for line in range(len(lines))]
    return replace(run("mhqa"), steps=(*steps, *ends), team="debate")


LONG_LINE = (PLAN, *used("wiki_search", "a"), REFLECTION, *used("wiki_search", "b"))


def test_each_line_that_agreed_is_a_demonstration_and_the_run_counts_once():
    other = (PLAN, *used("wiki_search", "c"), REFLECTION, "<think> t</think>")
    kept, report = filter_runs([debated(LONG_LINE, other, LONG_LINE)], PAPER)
    assert [(one.transcript.winner, one.further, one.transcript.answer) for one in kept] == [
        (0, False, "Berg"),
        (1, True, "Berg"),
    ]
    assert [render(one.chain).count("wiki_search") for one in kept] == [4, 2]
    assert report == FilterReport(transcripts=1, kept=1, further=1)
    limited = FilterConfig(duplicates=DuplicateConfig(solutions_per_task=1))
    assert filter_runs([debated(LONG_LINE, other)], limited)[1] == FilterReport(transcripts=1, kept=1)


def test_a_run_is_kept_if_one_of_its_lines_is_good_and_dropped_for_the_reason_of_the_first():
    short, repeated = (PLAN,), (PLAN, *used("wiki_search", "a"), REFLECTION, *used("wiki_search", "a"))
    kept, report = filter_runs([debated(short, repeated, LONG_LINE)], PAPER)
    assert [(one.transcript.winner, one.further) for one in kept] == [(2, False)]
    assert report == FilterReport(transcripts=1, kept=1)
    assert filter_runs([debated(short, repeated)], PAPER)[1].dropped == {"too few interactions": 1}
    for lines, flaw in (((short, repeated, LONG_LINE), None), ((repeated, short), "repeated tool input")):
        assert Filter(PAPER).flaw(Graded(debated(*lines), True)) == flaw


def test_where_a_judge_saw_the_winners_line_alone_no_other_is_kept():
    run = Graded(debated(LONG_LINE, (PLAN, *used("wiki_search", "c"), REFLECTION, "<think> t</think>")), True)
    kept, report = Filter(PAPER, further=False).take([run])
    assert ([one.transcript.winner for one in kept], report.further) == ([0], 0)


# All of it.


def test_a_made_up_set_is_accounted_for_to_the_last_run():
    short = run("mhqa", PLAN, *used("wiki_search", "a"), ANSWER)
    runs = [short, *FLAWED.values(), good(), good(1), corrected(), without_reflection()]
    kept, report = filter_runs(runs, FilterConfig(keep_without_reflection=0.0))
    assert [run.transcript for run in kept] == [good(), good(1), corrected()]
    assert report == FilterReport(
        transcripts=10,
        kept=3,
        dropped={"too few interactions": 1, **dict.fromkeys(FLAWED, 1), "no reflection": 1},
        upsampled=1,
    )


MANY = [Graded(make(n % 7), True) for n in range(12) for make in (without_reflection, corrected, good)]
"""Every one of them comes twice."""
CUT = FilterConfig(correction_copies=1.5, duplicates=DuplicateConfig(documents=100))


@LONG
@given(st.lists(st.integers(0, len(MANY)), max_size=4).map(sorted))
def test_a_stream_may_be_cut_anywhere(cuts: list[int]):
    whole, report = filters.filter_runs(MANY, CUT)
    stream = Filter(CUT)
    parts = [stream.take(MANY[a:b]) for a, b in pairwise([0, *cuts, len(MANY)])]
    assert [run for part, _ in parts for run in part] == whole
    assert sum((part_report for _, part_report in parts), FilterReport()) == report


@LONG
@given(st.integers(0, len(MANY)))
def test_a_filter_that_is_reminded_of_what_was_kept_goes_on_as_if_nothing_had_happened(cut: int):
    stream, resumed = Filter(CUT), Filter(CUT)
    for run in stream.take(MANY[:cut])[0]:
        task = run.transcript.task
        resumed.remember(task.id, task.question, compared_answer(task.answers, run.chain), render(run.chain))
    assert resumed.take(MANY[cut:]) == stream.take(MANY[cut:])


def test_a_task_without_an_accepted_answer_is_compared_by_the_chains_own():
    chain = (Span("plan", "p"), Span("answer", "Berg"))
    assert compared_answer(("Moss", "Lind"), chain) == "Moss"
    assert compared_answer((), chain) == "Berg"
    assert compared_answer((), chain[:1]) == compared_answer((), ()) == ""
