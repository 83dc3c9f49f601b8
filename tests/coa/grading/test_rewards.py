"""Rewards: a formula over the outcome, the form and the fine for length, and whatever else it names."""

import asyncio
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coa import config
from coa.agent.episode import AgentConfig, run_episode
from coa.agent.grammar import Chain, Span
from coa.errors import InfrastructureError, JudgeDown, ToolDown, UserError
from coa.grading import graders, rewards
from coa.grading.rewards import Played, RewardConfig, overlong_fine, score
from coa.grading.toolset import ToolsConfig, standard_tools
from coa.registry import Registry
from coa.tools.base import ToolCall, UseTool
from coa.types import Scored, Status, Task, Trajectory
from tests.support.fakes import ROOMY, ScriptedPolicy, tag_codec

# The formula.


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a", 2.0),
        ("a * b + 1", 7.0),
        ("a * (b + 1)", 8.0),
        ("-a + +b - 0.5", 0.5),
        ("1e-1 * a", 0.2),
        ("a - b - b", -4.0),
        (" a\n", 2.0),
    ],
)
def test_a_formula_is_sums_and_products(text: str, value: float) -> None:
    assert rewards.parse_formula(text, "ab").value({"a": 2, "b": 3}) == pytest.approx(value)


def test_a_formula_tells_its_terms_once() -> None:
    assert rewards.parse_formula("b * a + b + 3", "abc").terms == ("a", "b")


@pytest.mark.parametrize(
    "text",
    [
        "a / b",
        "a ** 2",
        "a if b else a",
        "f(a)",
        "a.b",
        "a[0]",
        "'a'",
        "True",
        "1e999",
        "a > b",
        "~a",
        "[a]",
        "a and b",
    ],
)
def test_a_formula_holds_nothing_but_arithmetic(text: str) -> None:
    with pytest.raises(ValueError, match="is not allowed; a formula has terms, numbers"):
        rewards.parse_formula(text, "ab")


@pytest.mark.parametrize("text", ["", "a +", "a b", "(a", "a = b", "a\x00", "(" * 1000])
def test_what_is_no_expression_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(ValueError, match=r"\A.*is not a formula: .*\Z"):
        rewards.parse_formula(text, "ab")


EXPRESSIONS = st.recursive(
    st.one_of(st.sampled_from("ab"), st.integers(0, 99).map(str), st.floats(0, 9).map(repr)),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from("+-*"), inner).map(lambda three: f"({' '.join(three)})"),
        inner.map(lambda text: f"-{text}"),
    ),
)


@given(EXPRESSIONS, st.floats(-9, 9), st.floats(-9, 9))
def test_a_formula_is_worth_what_python_says(text: str, a: float, b: float) -> None:
    assert rewards.parse_formula(text, "ab").value({"a": a, "b": b}) == pytest.approx(eval(text, {"a": a, "b": b}))


def test_an_unknown_term_is_a_users_mistake_and_names_the_nearest() -> None:
    with pytest.raises(UserError, match=r"\Arl\.formula=x: 'grade \* frm': unknown term frm; .* is form, all are .*\Z"):
        raise_as_config("grade * frm")
    with pytest.raises(UserError, match="the nearest known term is overlong"):
        raise_as_config("grade + overlogn")


def raise_as_config(text: str) -> None:
    config.from_plain(RewardConfig, {"formula": text}, "rl.formula=x")


# The fine.


@pytest.mark.parametrize(
    ("length", "fine"), [(0, 0.0), (87, 0.0), (700, 0.0), (701, -0.01), (750, -0.5), (800, -1.0), (9999, -1.0)]
)
def test_the_fine_grows_over_the_last_eighth_of_the_budget(length: int, fine: float) -> None:
    assert overlong_fine(length, 800, 0.125) == fine


def test_without_a_buffer_or_a_budget_there_is_no_fine() -> None:
    assert overlong_fine(900, 800, 0.0) == 0.0
    assert overlong_fine(0, 0, 0.125) == 0.0
    assert overlong_fine(0, -5, 0.125) == 0.0


# The score.


async def no_tool(call: ToolCall) -> str:
    raise AssertionError(f"{call.tool} was called")


def scored(
    answer: str = "Berg",
    *,
    status: Status = Status.ANSWERED,
    holds: bool = True,
    formula: str = RewardConfig().formula,
    grader: str = "exact",
    length: int = 10,
    use_tool: UseTool = no_tool,
) -> Scored:
    """Of a trajectory with 5 tokens of prompt and a budget of 80 after it."""
    n = 5 + length
    trajectory = Trajectory(
        task_id="t",
        sample=0,
        token_ids=np.zeros(n, np.int32),
        action_mask=np.arange(n) >= 5,
        logprobs=np.zeros(n, np.float32),
        versions=np.zeros(n, np.int32),
        prompt_length=5,
        turns=1,
        tool_calls=("code", "code"),
        status=status,
        answer=answer,
        text="",
        transitions_hold=holds,
    )
    task = Task(id="t", question="?", answers=("Berg", "2"), profile="mhqa", family="f", grader=grader)
    return asyncio.run(score(trajectory, task, RewardConfig(formula=formula), budget=80, use_tool=use_tool))


def verdict(it: Scored) -> tuple[bool, bool, float]:
    return it.correct, it.well_formed, it.reward


def test_a_right_answer_in_form_earns_one() -> None:
    assert verdict(scored()) == (True, True, 1.0)
    assert verdict(scored("Lind")) == (False, True, 0.0)


def test_a_right_answer_out_of_form_earns_nothing_unless_form_is_not_asked_for() -> None:
    assert verdict(scored(holds=False)) == (True, False, 0.0)
    assert verdict(scored(holds=False, formula="grade")) == (True, False, 1.0)
    assert verdict(scored(holds=False, formula="0.9 * grade + 0.1 * form")) == (True, False, 0.9)


@pytest.mark.parametrize("status", [Status.MALFORMED, Status.TRUNCATED, Status.OUT_OF_TURNS])
def test_an_episode_without_an_answer_is_neither_right_nor_in_form(status: Status) -> None:
    assert verdict(scored(status=status)) == (False, False, 0.0)
    assert verdict(scored(status=status, formula="grade + form + judge + f1")) == (False, False, 0.0)


def test_the_fine_counts_tokens_after_the_prompt_and_falls_on_right_and_wrong_alike() -> None:
    assert verdict(scored(length=70)) == (True, True, 1.0)
    assert verdict(scored(length=75)) == (True, True, 0.5)
    assert verdict(scored(length=80)) == (True, True, 0.0)
    assert verdict(scored(length=80, status=Status.TRUNCATED)) == (False, False, -1.0)


def test_the_tasks_grader_decides_what_is_correct() -> None:
    assert scored("4/2", grader="math").correct
    assert not scored("4/2", grader="exact").correct
    assert verdict(scored("Berg", formula="0 - form")) == (True, True, -1.0)


def test_the_grade_is_the_task_graders_whatever_the_reward_is() -> None:
    assert scored("Mr Berg", formula="exact - 0.5", grader="f1").grade == pytest.approx(2 / 3)
    assert scored("Berg", formula="0.25 * grade", grader="exact").grade == 1.0
    assert scored(status=Status.MALFORMED, formula="form - 1").grade == 0.0


def test_any_grader_is_a_term_whatever_the_tasks_is() -> None:
    assert verdict(scored("Mr Berg", formula="f1 - exact", grader="exact")) == (False, True, pytest.approx(2 / 3))
    assert verdict(scored("4/2", formula="math - exact")) == (False, True, 1.0)


def test_a_partial_grade_is_not_correct() -> None:
    assert verdict(scored("Mr Berg", grader="f1")) == (False, True, pytest.approx(2 / 3))
    assert verdict(scored("Berg", grader="f1")) == (True, True, 1.0)


@pytest.mark.parametrize("down", [ToolDown("gone"), JudgeDown("mute"), InfrastructureError("out")])
@pytest.mark.parametrize(("formula", "grader"), [("grade", "judge"), ("grade + judge", "exact"), ("form", "judge")])
def test_a_grade_that_can_not_be_found_out_is_no_zero(down: InfrastructureError, formula: str, grader: str) -> None:
    async def fails(call: ToolCall) -> str:
        raise down

    with pytest.raises(type(down), match=str(down)):
        scored(formula=formula, grader=grader, use_tool=fails)


def test_a_term_that_the_formula_does_not_name_is_not_computed() -> None:
    assert scored(formula="grade").reward == 1.0  # `no_tool` fails the test for one who asks the judge


# Terms and graders of one's own.


@pytest.fixture
def restored() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rewards, "TERMS", Registry("term", rewards.TERMS))
        patch.setattr(graders, "GRADERS", Registry("grader", graders.GRADERS))
        patch.setattr(rewards, "GRADERS", graders.GRADERS)
        yield


@pytest.mark.usefixtures("restored")
def test_the_term_of_the_docstring_works_as_it_stands() -> None:
    assert rewards.__doc__ is not None
    lines = rewards.__doc__[rewards.__doc__.index("    from coa") :]
    exec(re.sub("^    ", "", lines, flags=re.MULTILINE), {})
    assert scored(formula="grade * form - 0.1 * calls").reward == 0.8


@pytest.mark.usefixtures("restored")
def test_a_registered_grader_grades_and_is_a_term() -> None:
    async def half(answer: str, task: Task, use_tool: UseTool) -> float:
        return 0.5

    graders.register("half", half)
    assert verdict(scored(grader="half", formula="grade - 2 * half")) == (False, True, -0.5)
    with pytest.raises(ValueError, match="half"):
        graders.register("half", rewards.GRADERS["exact"])

    async def mine(played: Played) -> float:
        return 1.0

    for taken in ("grade", "form", "exact"):
        with pytest.raises(ValueError, match=taken):
            rewards.register(taken, mine)


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize(
    ("value", "said"),
    [
        (float("nan"), "nan at task t, expected a finite number"),
        (float("-inf"), "-inf at task t, expected a finite number"),
        (np.float32("nan"), "nan at task t, expected a finite number"),
        (None, "None at task t, expected a number"),
        ("good", "'good' at task t, expected a number"),
        (10**400, f"{10**400} at task t, expected a number"),
        ([1.0, 2.0], "[1.0, 2.0] at task t, expected a number"),
    ],
)
def test_a_term_or_a_grade_that_is_no_finite_number_is_named_with_its_task(value: Any, said: str) -> None:
    async def mean_of_nothing(played: Played) -> float:
        return value

    async def odd(answer: str, task: Task, use_tool: UseTool) -> float:
        return value

    rewards.register("mean_of_nothing", mean_of_nothing)
    graders.register("odd", odd)
    with pytest.raises(UserError) as refused:
        scored(formula="grade + 0.1 * mean_of_nothing")
    assert str(refused.value) == f"the reward's term mean_of_nothing is {said}"
    for grader, text in (("odd", "grade"), ("exact", "odd")):
        with pytest.raises(UserError) as refused:
            scored(grader=grader, formula=text)
        assert str(refused.value) == f"the grade by odd is {said}"


@pytest.mark.usefixtures("restored")
def test_a_grade_is_from_0_to_1() -> None:
    async def points(answer: str, task: Task, use_tool: UseTool) -> float:
        return 5.0

    graders.register("points", points)
    with pytest.raises(UserError, match=r"^the grade by points is 5 at task t, expected from 0 \(wrong\) to 1 "):
        scored(grader="points")


@pytest.mark.usefixtures("restored")
def test_a_formula_whose_value_overflows_is_told_with_the_values_of_its_terms() -> None:
    async def large(played: Played) -> float:
        return 1e200

    rewards.register("large", large)
    with pytest.raises(UserError, match=r"^the reward 'large \* large' of \{'large': 1e\+200\} is inf at task t, "):
        scored(formula="large * large")


# Through a group.

SOLVES = (Span("plan", "p"), Span("answer", "```py\nprint(int(input()) * 2)\n```"))
LOOPS = (Span("plan", "p"), Span("answer", "print(3)"))
DOUBLE = Task(
    id="double",
    question="Double it.",
    answers=('{"stdin": [{"input": "4", "output": "8"}, {"input": "5", "output": "10"}]}',),
    profile="code",
    family="f",
    grader="tests",
)


def play_group(task: Task, use_tool: UseTool, *chains: Chain) -> list[Scored]:
    agent = AgentConfig(instructed=False, limits=ROOMY)

    async def one(sample: int, chain: Chain) -> Scored:
        policy = ScriptedPolicy(tag_codec(), [chain])
        made = await run_episode(task, sample, codec=tag_codec(), generate=policy, use_tool=use_tool, agent=agent)
        return await score(made, task, RewardConfig(), budget=ROOMY.max_tokens, use_tool=use_tool)

    async def all_of_them() -> list[Scored]:
        return await asyncio.gather(*(one(sample, chain) for sample, chain in enumerate(chains)))

    return asyncio.run(all_of_them())


def test_a_group_of_programs_is_rewarded_by_its_tests() -> None:
    tools = standard_tools(ToolsConfig())

    async def use_tool(call: ToolCall) -> str:
        return await tools[call.tool](call)

    assert [scored.reward for scored in play_group(DOUBLE, use_tool, SOLVES, LOOPS)] == [1.0, 0.0]


@pytest.mark.parametrize("down", [ToolDown("no sandbox"), JudgeDown("mute")])
def test_a_group_of_which_one_answer_can_not_be_graded_has_no_rewards_at_all(down: ToolDown) -> None:
    asked = []

    async def breaks_at_the_second(call: ToolCall) -> str:
        asked.append(call.tool)
        if len(asked) > 1:
            raise down
        return '{"why": "wrong", "detail": ""}'

    with pytest.raises(type(down), match=str(down)):
        play_group(DOUBLE, breaks_at_the_second, LOOPS, SOLVES)
    assert asked == ["run_test", "run_test"]


def test_a_maths_comparison_that_breaks_is_no_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(self: object, answer: str, accepted: tuple[str, ...]) -> bool:
        raise InfrastructureError("gone")

    monkeypatch.setattr("coa.grading.equivalence.Comparer.equal", gone)
    with pytest.raises(InfrastructureError, match="gone"):
        scored("2", grader="math")
