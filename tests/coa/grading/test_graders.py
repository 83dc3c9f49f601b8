"""Comparing short answers as words, and which graders there are."""

import asyncio

import pytest

from coa.agent.profiles import PROFILES
from coa.errors import ToolDown, UserError
from coa.grading.graders import GRADERS, check_graders, grader_of, in_place_of
from coa.grading.judge import JudgeConfig
from coa.grading.match import exact_match, parts_of, published_match, token_f1
from coa.grading.normalise import normalise
from coa.grading.toolset import ToolsConfig, standard_tools
from coa.tools.base import ToolCall, ask_hidden
from coa.types import Task


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("Berg", True),
        (" the BERG. ", True),
        ("Nora  Berg", True),
        ("Berg | Nora Berg", True),
        ("Berg|", True),
        ("Berg | Lind", False),
        ("Berg Lind", False),
        ("Bergs", False),
        ("", False),
        (" | ", False),
        ("the", False),
        ("...", False),
        ("P(A|B)", True),
        ("P(A|B) | Berg", True),
        ("P(A", False),
        ("3|x|", True),
        ("|x| | Berg", True),
        ("3|Berg", False),
    ],
)
def test_an_answer_is_right_if_each_of_its_parts_is_accepted(answer: str, right: bool) -> None:
    assert exact_match(answer, ("Berg", "Nora Berg", "P(A|B)", "3|x|", "|x|")) is right


@pytest.mark.parametrize(
    ("answer", "right"),
    [("Berg | Lind", True), ("lind|Berg.", True), ("Berg", False), ("Berg | Ueda", False), ("", False)],
)
def test_an_accepted_answer_of_several_parts_needs_all_of_them(answer: str, right: bool) -> None:
    assert exact_match(answer, ("Berg | Lind",)) is right


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("Berg|Nora Berg | the mayor", ["Berg", "Nora Berg", "the mayor"]),
        ("P(A|B)", ["P(A|B)"]),
        ("{x | x > 0} | (0, 1)", ["{x | x > 0}", "(0, 1)"]),
        ("|x|", ["|x|"]),
        ("2|x - 1| + |y|", ["2|x - 1| + |y|"]),
        ("a) | b)", ["a)", "b)"]),
        (" | ", []),
    ],
)
def test_a_bar_that_is_part_of_an_answer_separates_none(text: str, parts: list[str]) -> None:
    assert parts_of(text) == parts


def test_articles_punctuation_case_and_blanks_do_not_count() -> None:
    assert normalise(" The  U.S. of  an Era ") == "us of era"
    assert normalise("theatre, again") == "theatre again"
    assert exact_match("1,000", ("1000",))
    assert exact_match("7", ("7.0",))
    assert exact_match("7.00 apples", ("7 apples",))
    assert not exact_match("7.01", ("7.0",))
    assert not exact_match("1.7.0", ("1.7",))


@pytest.mark.parametrize(("answer", "gold"), [("the", "A"), ("!", "?"), ("B", "A")])
def test_an_answer_of_which_nothing_else_is_left_counts_as_it_stands(answer: str, gold: str) -> None:
    assert not exact_match(answer, (gold,))
    assert exact_match(f" {gold.lower()} ", (gold,))


@pytest.mark.parametrize(("answer", "gold"), [("-5", "5"), ("35", "3.5"), ("5", "-5")])
def test_a_numbers_sign_and_point_are_not_punctuation(answer: str, gold: str) -> None:
    assert not exact_match(answer, (gold,))
    assert exact_match(f"{gold}.", (gold,))


@pytest.mark.parametrize(
    ("answer", "f1"),
    [
        ("Nora Berg", 1.0),
        ("the nora BERG!", 1.0),
        ("Berg", 2 / 3),
        ("Nora Berg of Arden", 2 * 2 / (4 + 2)),
        ("Nora Nora Berg", 2 * 2 / (3 + 2)),
        ("Lind", 0.0),
        ("", 0.0),
        ("mayor", 1.0),
    ],
)
def test_f1_is_the_best_over_the_accepted_answers_of_words_as_often_as_they_occur(answer: str, f1: float) -> None:
    assert token_f1(answer, ("Nora Berg", "the mayor")) == pytest.approx(f1)


@pytest.mark.parametrize("name", GRADERS)
def test_no_grader_gives_a_point_for_an_empty_answer_or_asks_anybody(name: str) -> None:
    async def no_tool(call: ToolCall) -> str:
        raise AssertionError(call)

    tests = '{"stdin": [{"input": "", "output": "1"}]}'
    task = Task(id="t", question="?", answers=(tests,), profile="mhqa", family="f", grader=name)
    assert asyncio.run(GRADERS[name](" ", task, no_tool)) == 0.0


def test_no_policy_can_call_what_graders_call() -> None:
    tools = standard_tools(ToolsConfig(judge=JudgeConfig(url="http://127.0.0.1:9/v1", model="m")))
    assert {"run_test", "judge"} <= tools.keys()
    assert not {"run_test", "judge"} & {tag.name for profile in PROFILES.values() for tag in profile.tags}


def test_a_tool_that_an_executor_lacks_is_down() -> None:
    async def without(call: ToolCall) -> str:
        return f"there is no tool {call.tool}"

    with pytest.raises(ToolDown, match="judge: there is no tool judge"):
        asyncio.run(ask_hidden(without, "judge", {}))


def test_graders_are_checked_before_a_run() -> None:
    def check(grader: str, judge: JudgeConfig | None = None, call_s: float = 30.0) -> None:
        check_graders([grader], ToolsConfig(judge=judge or JudgeConfig()), lambda tool: call_s)

    check("exact")
    with pytest.raises(UserError, match="unknown grader 'exat': known are exact,"):
        check("exat")
    check("tests", call_s=60.0)
    with pytest.raises(UserError, match=r"may take 44 s by .* stops it after 20 s: set executor\.call_s_of\.run_test"):
        check("tests", call_s=20.0)
    check("judge", JudgeConfig(url="http://127.0.0.1:9/v1", model="m"), call_s=60)
    with pytest.raises(UserError, match=r"a verdict may take 60 s by .* after 59 s: set executor\.call_s_of\.judge"):
        check("judge", JudgeConfig(url="http://127.0.0.1:9/v1", model="m"), call_s=59)
    with pytest.raises(UserError, match=r"^tools\.judge\.url is http://x/v1, expected an address"):
        check("judge", JudgeConfig(url="http://me:s3cret@x/v1?key=s3cret", model="m"))
    with pytest.raises(UserError, match=r"set tools\.judge\.url and tools\.judge\.model, or set tasks\.grader=exact "):
        check("judge", JudgeConfig(url="http://127.0.0.1:9/v1"))
    with pytest.raises(UserError, match="JUDGE_KEY_THAT_NOBODY_SET"):
        check("judge", JudgeConfig(url="http://x/v1", model="m", key_env="JUDGE_KEY_THAT_NOBODY_SET"))


@pytest.mark.parametrize(
    ("profile", "answers", "grader"),
    [
        ("web", ("x",), "judge"),
        ("multi", ("x",), "judge"),
        ("math", ("7",), "math"),
        ("mhqa", ("x",), "exact"),
        ("code", ('{"stdin": []}',), "tests"),
        ("code", (), "tests"),
        ("code", ("7",), "math"),
        ("code", ("{7}", "7.0"), "math"),
        ("code", (r"\frac{1}{2}", "3, 5", "27 miles"), "math"),
        ("code", ("So 6+36=42.\n#### 42",), "math"),
        ("code", ("C",), "math"),
        ("code", ("7", "seven of them"), "exact"),
        ("code", ("12 November",), "exact"),
        ("code", ("Berg",), "exact"),
        ("code", ("7" * 3000,), "exact"),
        ("of an extension", ("x",), "exact"),
    ],
)
def test_a_task_that_names_no_grader_has_its_profiles(profile: str, answers: tuple[str, ...], grader: str) -> None:
    assert grader_of(profile, answers) == grader


@pytest.mark.parametrize(
    ("answer", "grade"),
    [("Arden", 1.0), ("Arden | Berg", 1.0), (" | the arden|Berg", 1.0), ("Berg | Arden", 0.0), ("|", 0.0)],
)
def test_the_published_evaluation_compares_the_first_part_alone(answer: str, grade: float) -> None:
    async def no_tool(call: ToolCall) -> str:
        raise AssertionError(call)

    task = Task(id="t", question="?", answers=("Arden",), profile="mhqa", family="nq")
    assert asyncio.run(GRADERS["exact_first"](answer, task, no_tool)) == grade


@pytest.mark.parametrize(
    ("answer", "gold", "published", "ours"),
    [("-5", "5", True, False), ("35", "3.5", True, False), ("the", "A", True, False), ("The U.S.", "us", True, True)],
)
def test_the_published_metric_normalises_as_squad_does(answer: str, gold: str, published: bool, ours: bool) -> None:
    assert published_match(answer, (gold,)) is published
    assert exact_match(answer, (gold,)) is ours


def test_the_published_f1_is_of_the_first_part() -> None:
    async def no_tool(call: ToolCall) -> str:
        raise AssertionError(call)

    task = Task(id="t", question="?", answers=("3.5 km",), profile="mhqa", family="nq")
    assert asyncio.run(GRADERS["f1_first"]("35 km | 4 miles", task, no_tool)) == 1.0
    assert asyncio.run(GRADERS["f1"]("35 km", task, no_tool)) == 0.5


@pytest.mark.parametrize(
    ("own", "asked", "grader"),
    [
        ("judge", "exact", "exact"),
        ("exact", "judge", "judge"),
        ("exact_first", "f1", "f1"),
        ("f1", None, "f1"),
        ("tests", "exact", "tests"),
        ("math", "judge", "math"),
        ("of an extension", "exact", "of an extension"),
    ],
)
def test_a_recipes_grader_is_for_open_questions_alone(own: str, asked: str | None, grader: str) -> None:
    assert in_place_of(own, asked) == grader
