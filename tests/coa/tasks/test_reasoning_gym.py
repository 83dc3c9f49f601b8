"""Tasks of reasoning-gym: disjoint sides, entries made again, scores of the package, and no answer that runs."""

import asyncio
import re
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import pytest

from coa.errors import UserError
from coa.grading.graders import GRADERS, grade_by
from coa.tasks.questions import question_key
from coa.tasks.reasoning_gym import scoring
from coa.tasks.reasoning_gym.entries import Reference
from coa.tasks.reasoning_gym.scoring import CHECKS, FORMULAS, LITERALS, is_formula, is_literal, score
from coa.tasks.reasoning_gym.world import NAME, ReasoningGym, ReasoningGymSettings
from coa.tasks.worlds import find_world
from coa.types import Task

SHORT: dict[str, Any] = {"chain_sum": {"max_terms": 3}, "gcd": {}}
NO_TOOL = cast(Any, None)


def world(datasets: dict[str, Any] = SHORT, **settings: Any) -> ReasoningGym:
    found = find_world(NAME)
    assert found is ReasoningGym
    return ReasoningGym(ReasoningGymSettings(datasets=datasets, **settings))


def graded(task: Task, answer: str) -> float:
    return asyncio.run(grade_by(task.grader, answer, task, NO_TOOL))


@pytest.fixture(autouse=True, scope="module")
def scorer() -> Iterator[None]:
    yield
    scoring._scorer().close()


def test_tasks_take_turns_and_are_the_same_in_every_process() -> None:
    first, again = world(), world()
    tasks = [first.training_task("rl", index, seed=3) for index in range(40)]
    assert tasks == [again.training_task("rl", index, seed=3) for index in range(40)]
    assert [task.family for task in tasks[:4]] == ["chain_sum", "gcd", "chain_sum", "gcd"]
    assert len({task.id for task in tasks}) == 40
    assert tasks[0].question != first.training_task("rl", 0, seed=4).question
    assert tasks[0].question != first.training_task("distill", 0, seed=3).question
    assert (tasks[0].profile, tasks[0].grader) == ("code", NAME)


def test_no_question_is_in_training_and_held_out() -> None:
    few = world({"gcd": {"max_value": 12}}, held_out=0.3)
    trained = {question_key(few.training_task("rl", index, seed=0).question) for index in range(600)}
    held_out = [question_key(task.question) for task in few.evaluation_tasks(20, seed=0)]
    assert len(set(held_out)) == 20
    assert not trained & set(held_out)


def test_a_data_set_with_too_few_questions_is_refused_in_a_line() -> None:
    tiny = world({"gcd": {"min_value": 2, "max_value": 3}}, held_out=0.3)
    with pytest.raises(UserError, match=r"^world\.datasets\.gcd: too few different questions for world\.held_out=0\.3"):
        tiny.evaluation_tasks(50, seed=0)


def test_evaluation_tasks_are_shared_between_the_data_sets() -> None:
    families = [task.family for task in world().evaluation_tasks(5, seed=0)]
    assert families == ["chain_sum"] * 3 + ["gcd"] * 2


@pytest.mark.parametrize(
    ("datasets", "level", "told"),
    [
        ({}, None, "tasks.world=reasoning_gym needs world.datasets, such as world.datasets="),
        ({"chain_sums": {}}, None, "world.datasets.chain_sums: reasoning-gym has no such data set; the nearest is"),
        ({"composite": {}}, None, "world.datasets.composite: reasoning-gym has no such data set"),
        ({"gcd": 3}, None, "world.datasets.gcd is 3, expected its settings: {} for the defaults"),
        ({"gcd": {"maximum": 3}}, None, "world.datasets.gcd: unknown key maximum; known are min_numbers, max_numbers"),
        ({"gcd": {"size": 3}}, None, "world.datasets.gcd: unknown key size; known are"),
        ({"gcd": {"min_value": 9, "max_value": 2}}, None, "world.datasets.gcd: max_value must be"),
        ({"acre": {}}, 1, "world.level=1: acre has no curriculum; leave the level out"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(datasets: dict[str, Any], level: int | None, told: str) -> None:
    assert world(datasets, level=level).mistake().startswith(told)


def test_a_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coa.tasks.reasoning_gym.entries.find_spec", lambda name: None)
    assert 'pip install "chain-of-agents[reasoning-gym]"' in world().mistake()
    assert find_spec("reasoning_gym") is not None


def test_a_level_makes_tasks_harder() -> None:
    def terms(level: int) -> float:
        questions = (world({"chain_sum": {}}, level=level).training_task("rl", n, seed=0).question for n in range(30))
        return sum(len(re.findall(r"\d+", question)) for question in questions) / 30

    assert terms(0) < terms(2)


def test_grades_are_those_of_the_package_partial_ones_included() -> None:
    [right, task] = world({"gcd": {}, "countdown": {}}).evaluation_tasks(2, seed=0)
    assert [graded(right, answer) for answer in (right.answers[0], "0", "")] == [1.0, 0.0, 0.0]
    assert graded(task, task.answers[0]) == 1.0
    assert graded(task, "1 + 1") == 0.05


def test_a_set_without_an_answer_of_its_own_has_a_scorer() -> None:
    [task] = world({"propositional_logic": {}}).evaluation_tasks(1, seed=0)
    assert task.answers == ()
    assert graded(task, "(P") < 1


def test_no_answer_is_run_as_a_program(tmp_path: Path) -> None:
    mark = tmp_path / "run"
    attack = f"__import__('pathlib').Path({str(mark)!r}).touch()"
    for dataset in CHECKS:
        [task] = world({dataset: {}}).evaluation_tasks(1, seed=0)
        for answer in (attack, f"[{attack}]", f"sin({attack!r})", f"[{attack!r}]", f"{attack}!", f"x + {attack}"):
            assert graded(task, answer) < 0.5, (dataset, answer)
    assert not mark.exists()


def test_an_answer_that_takes_for_ever_is_wrong_and_the_next_one_is_scored() -> None:
    [task] = world({"countdown": {}}).evaluation_tasks(1, seed=0)
    assert graded(task, "9**9**9**9") == 0.0
    assert graded(task, task.answers[0]) == 1.0


@pytest.mark.parametrize("answer", ["2*x**3/3 + C", "sqrt(2)*sin(x) - pi", "(4 + 4) * 3", "1.5e3", "x^2", "5!"])
def test_formulas_are_scored(answer: str) -> None:
    assert is_formula(answer)


@pytest.mark.parametrize(
    "answer",
    ["x.y", "'x'", "open(1)", "[x for x in y]", "sin(x=1)", "lambda: 1", "exit", "__x__", "sin('1')", "f'{x}'"],
)
def test_nothing_else_is_a_formula(answer: str) -> None:
    assert not is_formula(answer)


def test_literals_are_scored_and_nothing_that_runs() -> None:
    assert all(map(is_literal, ("[[1, 2], [3, 4]]", "['A', 'B']", "1 2 3\n4 5 6", "A B#", "def f(")))
    assert not any(map(is_literal, ("f()", "[f()]", "x.y", "ABC", " f()", "\x0cf()")))


def test_a_scorer_that_fails_at_an_answer_says_wrong_and_one_that_always_fails_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reference = Reference("gcd", None, {}, 3, 1)
    entry, instance = reference.entry(), reference.instance()

    def scorer(broken: bool) -> Any:
        def scored(answer: str, entry: Any) -> float:
            if broken or answer == "odd":
                raise KeyError("numbers")
            return float("nan") if answer == "nan" else 1.0

        return scored

    monkeypatch.setattr(instance, "score_answer", scorer(broken=False), raising=False)
    assert [score(answer, reference, entry) for answer in ("odd", "nan", "7")] == [
        {"score": 0.0}, {"score": 0.0}, {"score": 1.0},
    ]  # fmt: skip
    monkeypatch.setattr(instance, "score_answer", scorer(broken=True), raising=False)
    assert score("7", reference, entry) == {"problem": "KeyError: 'numbers'"}


def test_the_data_sets_that_evaluate_answers_are_known() -> None:
    """A new version of the package may have more."""
    from reasoning_gym.factory import DATASETS

    found = set[str]()
    for name, (kind, _) in DATASETS.items():
        method = kind.score_answer
        if method.__module__ != "reasoning_gym.dataset":
            names = method.__code__.co_names
            found |= {name} if {"eval", "exec", "parse_expr", "sympify"} & set(names) else set()
    assert found - {"number_sorting"} == FORMULAS | LITERALS, "number_sorting evaluates its own answer alone"


def test_a_task_without_its_entry_is_a_mistake_of_the_user() -> None:
    assert NAME in GRADERS
    task = replace(world().evaluation_tasks(1, seed=0)[0], metadata="")
    with pytest.raises(UserError, match=r"^task chain_sum-evaluate-0 can't be scored: its metadata names no entry"):
        graded(task, "7")
