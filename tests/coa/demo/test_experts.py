"""The scripted experts: how they play the tiny world, and questions of one's own, on each team."""

import ast
from collections import defaultdict

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from coa.agent.grammar import Chain, parse, render
from coa.agent.profiles import PROFILES
from coa.demo import World, WorldConfig, training_task
from coa.demo.experts import ExpertConfig, ScriptedMind
from coa.demo.general import find_expression
from coa.demo.questions import KINDS, Birthplace, Current, Sum, read_question
from coa.demo.strategy import DECISION, careful_route, strategy_of
from coa.demo.tasks import to_task
from coa.distill import to_chain
from coa.teams.teams import TeamConfig
from coa.teams.transcript import Ending, Transcript
from coa.types import Task
from tests.support.teams import TASKS, WORLD, asks, play_one, uses


def chain_by(config: ExpertConfig, task: Task) -> Chain:
    return to_chain(play_one(task, ask=asks(ScriptedMind(WORLD, config))))


ALWAYS_LAZY = ExpertConfig(lazy_calc=(1.0,) * 4, lazy_mhqa=(1.0,) * 4, lazy_web=(1.0,) * 4)


@pytest.fixture(scope="module")
def transcripts() -> list[Transcript]:
    return [play_one(task) for task in TASKS]


# The first task of each family of evaluation_tasks(WORLD, 30, seed=0).
CAREFUL = {
    "calc": (
        "<plan> compute by code</plan><code> print( 48 * 3 - 21 )</code><observation> 123</observation>"
        "<reflection> it prints 123</reflection><answer> 123</answer>"
    ),
    "mhqa": (
        "<plan> find town first</plan><wiki_search> Adam Rook</wiki_search>"
        "<observation> Adam Rook was born in Iron Grove .</observation>"
        "<think> next look up Iron Grove</think><wiki_search> Iron Grove</wiki_search>"
        "<observation> Iron Grove : mayor Dahl , judge Holt , doctor Jung , baker Kerr .</observation>"
        "<reflection> page says baker Kerr</reflection><answer> Kerr</answer>"
    ),
    "web": (
        "<plan> search then check</plan><web_search> Lumex Textiles captain</web_search>"
        "<observation> Lumex Textiles p200 Dahl as captain</observation>"
        "<suggested_answer> Dahl</suggested_answer><double_check> 2 may be outdated</double_check>"
        "<crawl_page> p200</crawl_page>"
        "<observation> Lumex Textiles : chief Sato , owner Nord , sponsor Cole , captain Pike .</observation>"
        "<reflection> page says captain Pike</reflection><suggested_answer> Pike</suggested_answer>"
        "<double_check> 4 page says so</double_check><answer> Pike</answer>"
    ),
}
LAZY = {
    "calc": ("<plan> compute in head</plan><think> it makes 128</think><answer> 128</answer>"),
    "mhqa": (
        "<plan> find town first</plan><wiki_search> Adam Rook</wiki_search>"
        "<observation> Adam Rook was born in Iron Grove .</observation>"
        "<think> I know Iron Grove already</think><answer> Kerr</answer>"
    ),
    "web": (
        "<plan> search then check</plan><web_search> Lumex Textiles captain</web_search>"
        "<observation> Lumex Textiles p200 Dahl as captain</observation>"
        "<suggested_answer> Dahl</suggested_answer><double_check> 4 looks right</double_check>"
        "<answer> Dahl</answer>"
    ),
}


# The experts' chains.


def test_every_run_of_the_experts_ends_with_an_answer_and_obeys_its_profile(transcripts: list[Transcript]):
    for transcript in transcripts:
        chain = to_chain(transcript)
        assert transcript.ending is Ending.ANSWERED
        assert PROFILES[transcript.task.profile].transitions_hold(chain)
        assert parse(render(chain)).chain == chain
        assert render(chain).split(" ") == render(chain).split()  # single blanks only
        assert strategy_of(chain, transcript.task.family) != "other"


def test_the_routes_read_as_designed():
    puzzles = {
        "calc-farm-48-3-21": Sum("farm", 48, 3, 21),
        "mhqa-baker-Adam-Rook": Birthplace("baker", "Adam Rook"),
        "web-captain-Lumex-Textiles": Current("captain", "Lumex Textiles"),
    }
    tasks = {task.family: task for task in (to_task(WORLD, puzzle, name) for name, puzzle in puzzles.items())}
    texts = {family: render(careful_route(WORLD, task).chain) for family, task in tasks.items()}
    lazy = {family: render(chain_by(ALWAYS_LAZY, task)) for family, task in tasks.items()}
    assert texts == CAREFUL
    assert lazy == LAZY


def test_lazy_and_careful_part_at_one_word():
    for task in TASKS[:60]:
        route, lazy = careful_route(WORLD, task), chain_by(ALWAYS_LAZY, task)
        [at] = route.decisions
        assert at == DECISION[task.family]
        assert route.chain[:at] == lazy[:at]
        assert route.chain[at].tag == lazy[at].tag
        careful_words, lazy_words = route.chain[at].text.split(), lazy[at].text.split()
        assert careful_words != lazy_words
        assert strategy_of(route.chain, task.family) == "careful"
        assert route.chain[-1].text == task.answers[0]
    assert {careful_route(WORLD, task).chain[DECISION[task.family]].text.split()[0] for task in TASKS[:60]} == {
        "compute",
        "next",
        "2",
    }


def test_a_task_of_ones_own_has_no_careful_route():
    task = Task(id="mine", question="Why ?", answers=("42",), profile="web", family="mine")
    with pytest.raises(ValueError, match="mine"):
        careful_route(WORLD, task)


EXPERTS = ExpertConfig()


def test_the_experts_are_lazy_and_right_as_often_as_configured(transcripts: list[Transcript]):
    lazy: defaultdict[tuple[str, str], list[bool]] = defaultdict(list)
    right: defaultdict[tuple[str, str], list[bool]] = defaultdict(list)
    for transcript in transcripts:
        family, puzzle = transcript.task.family, read_question(transcript.task.question)
        assert puzzle is not None
        strategy = strategy_of(to_chain(transcript), family)
        lazy[family, puzzle.kind].append(strategy == "lazy")
        right[family, strategy].append(transcript.answer == transcript.task.answers[0])
    configured = {"calc": EXPERTS.lazy_calc, "mhqa": EXPERTS.lazy_mhqa, "web": EXPERTS.lazy_web}
    for family, shares in configured.items():
        assert all(right[family, "careful"])
        for kind, share in zip(KINDS[family], shares, strict=True):
            seen = lazy[family, kind]
            assert sum(seen) / len(seen) == pytest.approx(share, abs=0.08)
    rates = {family: sum(right[family, "lazy"]) / len(right[family, "lazy"]) for family in ("calc", "mhqa", "web")}
    assert rates == pytest.approx({"calc": 0.46, "mhqa": 0.48, "web": 0.35}, abs=0.05)


def test_a_lazy_web_run_is_right_exactly_where_the_snippet_is_fresh(transcripts: list[Transcript]):
    for transcript in transcripts:
        puzzle = read_question(transcript.task.question)
        if isinstance(puzzle, Current) and strategy_of(to_chain(transcript), "web") == "lazy":
            assert transcript.answer == WORLD.snippet_value(puzzle.company, puzzle.kind)


def test_strategies_are_told_by_what_was_done():
    def strategy(text: str, family: str) -> str:
        return strategy_of(parse(text).chain, family)

    answer = "<answer> x</answer>"
    search = "<wiki_search> a</wiki_search><observation> b</observation>"
    assert strategy(f"<plan> p</plan>{search}{search}", "mhqa") == "careful"
    assert strategy(f"<plan> p</plan>{search}{answer}", "mhqa") == "lazy"
    assert strategy(f"<plan> p</plan>{search}", "mhqa") == "other"
    assert strategy(f"<code> 1</code>{answer}", "calc") == "careful"
    assert strategy(f"<crawl_page> p1</crawl_page>{answer}", "web") == "careful"
    assert strategy(answer, "mine") == "other"


# Questions of one's own.


@pytest.mark.parametrize(
    ("question", "expression"),
    [
        ("What is 3 * 4 - 5 ?", "3 * 4 - 5"),
        ("Compute (1,200 + 34)/2.", "(1200 + 34)/2"),
        ("What is 2^10 or 2^10+1?", "2**10+1"),
        ("6 \u00d7 7 = ?", "6 * 7"),
        ("Who won in 1999 ?", None),
        ("Which of 4-5 (3) ?", None),
        ("On 2024-01-05 (3 days)?", None),
    ],
)
def test_an_expression_is_found_in_a_question(question: str, expression: str | None):
    assert find_expression(question) == expression


ARITHMETIC = {ast.Expression, ast.BinOp, ast.UnaryOp, ast.Constant, ast.UAdd, ast.USub}
ARITHMETIC |= {ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow}


@example("0^()")
@settings(deadline=None)
@given(st.text(alphabet="0123456789+-*/%()., abc?^", max_size=40))
def test_whatever_is_found_is_arithmetic_and_nothing_else(text: str):
    if found := find_expression(text):
        tree = ast.parse(found, mode="eval")
        assert {type(node) for node in ast.walk(tree)} <= ARITHMETIC


def plays_own(question: str, profile: str, observation: str) -> tuple[str, str]:
    """The chain's text and the answer."""

    task = Task(id="mine", question=question, answers=("x",), profile=profile, family="mine")
    end = play_one(task, use=uses(lambda call: observation))
    assert PROFILES[profile].transitions_hold(to_chain(end))
    return render(to_chain(end)), end.answer


def test_the_experts_compute_or_look_up_what_is_not_of_the_world():
    text, answer = plays_own("What is 3 * 4 - 5 ?", "code", "7")
    assert "<code> print(3 * 4 - 5)</code>" in text
    assert answer == "7"
    text, answer = plays_own("Who wrote it ?", "mhqa", "Nora Lind wrote it.\nIn 1999.")
    assert "<wiki_search> Who wrote it ?</wiki_search>" in text
    assert answer == "Nora Lind wrote it."
    assert plays_own("Who wrote it ?", "web", "no result")[1] == "unknown"
    assert plays_own("Why ?", "code", "unknown")[1] == "unknown"


def test_a_question_that_only_looks_like_the_worlds_is_looked_up():
    text, answer = plays_own("Who is the mayor of the town where Zaphod Beeble was born ?", "mhqa", "no result")
    assert "<wiki_search> Who is the mayor" in text
    assert answer == "unknown"


# Other teams.

TEAMS = {
    "thinker": TeamConfig(thinker=True),
    "replanning": TeamConfig(planning_interval=2),
    "refine": TeamConfig(rules="refine", rounds=2),
    "debate": TeamConfig(rules="debate", rounds=1),
    "long debate": TeamConfig(rules="debate", rounds=2, debaters=4),
    "pyramid": TeamConfig(rules="pyramid"),
    "deep pyramid": TeamConfig(rules="pyramid", depth=2, rounds=2),
    "evolved": TeamConfig(rules="evolved", rounds=2),
}
MORE_OFTEN_RIGHT = {"refine": 0.68, "debate": 0.75, "long debate": 0.77, "pyramid": 0.68, "evolved": 0.68}


@pytest.mark.parametrize("team", TEAMS.values(), ids=list(TEAMS))
@pytest.mark.parametrize("profile", [None, "multi"])
def test_every_team_of_experts_ends_in_chains_that_obey_their_profile(team: TeamConfig, profile: str | None):
    world = World(WorldConfig(profile=profile))
    for task in (training_task(world, seed=0, purpose="sft", index=i) for i in range(60)):
        end = play_one(task, team=team)
        chain = to_chain(end)
        assert end.ending is Ending.ANSWERED
        assert PROFILES[task.profile].transitions_hold(chain), render(chain)
        assert parse(render(chain)).chain == chain


@pytest.mark.parametrize(("name", "least"), MORE_OFTEN_RIGHT.items())
def test_teams_that_check_their_answers_are_right_more_often(name: str, least: float, transcripts: list[Transcript]):
    """The planner's team is right 0.58 of the time on these tasks."""
    tasks = TASKS[:300]
    right = sum(play_one(task, team=TEAMS[name]).answer in task.answers for task in tasks)
    assert right / len(tasks) > least
    assert sum(one.answer in one.task.answers for one in transcripts[:300]) / 300 < 0.63


def test_a_doubted_answer_is_mended_by_looking():
    task = next(task for task in TASKS if task.family == "mhqa" and _doubts(task))
    text = render(to_chain(play_one(task, team=TEAMS["refine"])))
    town = text.partition("I know ")[2].partition(" already")[0]
    before, _, after = text.partition("<reflection> 2 nobody looked</reflection>")
    assert "already" in before
    assert after.startswith(f"<think> next look up {town}</think><wiki_search> {town}</wiki_search>")


def _doubts(task: Task) -> bool:
    return "2 nobody looked" in render(to_chain(play_one(task, team=TEAMS["refine"])))
