"""Team runs: the same from the same replies, exact prompts, and what goes wrong, under the rules of each team."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from coa.agent.grammar import render
from coa.distill import to_chain
from coa.errors import ToolDown
from coa.teams.play import tidy
from coa.teams.roles import CRITIC, DEBATER, GENERATOR, OPPONENT, PLANNER, REFINER, SEARCHER, TEAM, THINKER, VERIFIER
from coa.teams.teams import RoleConfig, TeamConfig
from coa.teams.transcript import AgentStep, Ending, Prompt, Reply, ToolStep, Transcript, prompt_of
from coa.tools.base import ToolCall
from coa.types import Task
from coa.usage import Usage
from tests.support.teams import MIND, TASKS, play_one, says, uses

TASK = Task(id="t", question="Who ?", answers=("x",), profile="mhqa", family="f")
SEARCH = "<wiki_search> a</wiki_search>"
TEAMS = [
    TeamConfig(),
    TeamConfig(thinker=True),
    TeamConfig(rules="refine"),
    TeamConfig(rules="debate", debaters=3),
    TeamConfig(rules="evolved", rounds=2),
    TeamConfig(rules="pyramid", depth=2),
]


def outputs(transcript: Transcript) -> list[tuple[int, str, str]]:
    return [(s.line, s.agent, s.output) for s in transcript.steps if isinstance(s, AgentStep)]


def scripted(*replies: str) -> Iterator[str]:
    return iter(replies)


# The same again.


def test_a_run_depends_on_seed_task_and_attempt_only():
    first, again, other = ([play_one(task, attempt=attempt) for task in TASKS[:40]] for attempt in (0, 0, 1))
    assert first == again
    assert {run.seed for run in first}.isdisjoint(run.seed for run in other)
    assert [run.steps for run in first] != [run.steps for run in other]


@pytest.mark.parametrize("team", TEAMS, ids=lambda team: f"{team.rules}{'+thinker' * team.thinker}")
def test_prompts_are_reconstructed_exactly_from_the_transcript(team: TeamConfig):
    for task in TASKS[:30]:
        sent: list[tuple[Prompt, str]] = []

        def note(prompt: Prompt, sent: list[tuple[Prompt, str]] = sent) -> str:
            sent.append((prompt, MIND.reply(prompt)))
            return sent[-1][1]

        transcript = play_one(task, team=team, ask=says(note))
        rebuilt = [
            (prompt_of(transcript, i), step.output)
            for i, step in enumerate(transcript.steps)
            if isinstance(step, AgentStep) and step.agent != TEAM
        ]
        assert Counter(map(repr, rebuilt)) == Counter(map(repr, sent))


def test_an_agent_is_sent_its_role_the_question_and_the_work_so_far():
    steps = (
        AgentStep(PLANNER, "<plan> p</plan>"),
        AgentStep(SEARCHER, SEARCH),
        ToolStep(ToolCall("wiki_search", "a"), "says <answer> b"),
        AgentStep(SEARCHER, "done"),
        AgentStep(CRITIC, "<reflection> r</reflection>"),
    )
    transcript = Transcript(task=TASK, attempt=0, seed=7, steps=steps, ending=Ending.OUT_OF_STEPS)
    system, user = prompt_of(transcript, 4).messages
    assert (system.role, user.role, prompt_of(transcript, 4).seed) == ("system", "user", 7)
    assert system.content.startswith("You are the critic of a team")
    assert user.content == (
        "Question: Who ?\n\nWork so far:\nplanner: <plan> p</plan>\nsearcher: <wiki_search> a</wiki_search>\n"
        "tool: <observation> says <\\answer> b</observation>"
    )
    assert prompt_of(transcript, 0).messages[1].content == "Question: Who ?"
    with pytest.raises(ValueError, match="tool's"):
        prompt_of(transcript, 2)


# A planner's team.


def test_a_planner_is_asked_again_once_its_interval_is_over():
    replies = scripted(
        "<plan> p</plan>",
        SEARCH,
        SEARCH.replace("a<", "b<"),
        "<plan> q</plan>",
        SEARCH,
        "<think> t</think>",
        "<answer> x</answer>",
    )
    end = play_one(
        TASK, team=TeamConfig(planning_interval=2), ask=says(lambda _: next(replies)), use=uses(lambda _: "o")
    )
    assert [agent for _, agent, _ in outputs(end)] == [
        PLANNER,
        SEARCHER,
        SEARCHER,
        PLANNER,
        SEARCHER,
        SEARCHER,
        PLANNER,
    ]
    assert end.ending is Ending.ANSWERED


def test_a_planner_is_asked_again_where_a_thinker_decides_too():
    to_searcher, to_planner = "<think> next: searcher</think>", "<think> next: planner</think>"
    replies = scripted(
        *(to_planner, "<plan> p</plan>"),
        *(to_searcher, SEARCH, to_searcher, SEARCH.replace("a<", "b<")),
        "<plan> q</plan>",
        *(to_searcher, SEARCH.replace("a<", "c<"), to_planner, "<answer> x</answer>"),
    )
    team = TeamConfig(planning_interval=2, thinker=True)
    end = play_one(TASK, team=team, ask=says(lambda _: next(replies)), use=uses(lambda _: "o"))
    assert [agent for _, agent, _ in outputs(end) if agent != THINKER] == [
        PLANNER,
        SEARCHER,
        SEARCHER,
        PLANNER,
        SEARCHER,
        PLANNER,
    ]
    assert end.ending is Ending.ANSWERED


def test_a_run_that_goes_in_circles_is_out_of_steps():
    circles = says(lambda prompt: "<plan> p</plan>" if prompt.role == PLANNER else "<think> t</think>")
    end = play_one(TASK, team=TeamConfig(max_steps=6), ask=circles)
    assert (end.ending, len(end.steps), end.answer) == (Ending.OUT_OF_STEPS, 6, "")


# Generator, verifier, refiner.


def refine(*replies: str, rounds: int = 1) -> Transcript:
    rest = scripted(*replies)
    team = TeamConfig(rules="refine", rounds=rounds)
    return play_one(TASK, team=team, ask=says(lambda _: next(rest)), use=uses(lambda _: "seen"))


def test_a_verified_answer_stands():
    end = refine("<plan> p</plan>" + SEARCH, "<answer> x</answer>", "<double_check> 4 right</double_check>")
    assert outputs(end)[-1] == (0, TEAM, "<answer> x</answer>")
    assert render(to_chain(end)) == (
        "<plan> p</plan><wiki_search> a</wiki_search><observation> seen</observation><think> x</think>"
        "<reflection> 4 right</reflection><answer> x</answer>"
    )


def test_a_doubted_answer_is_mended_while_there_are_rounds():
    doubt = "<double_check> 2 look again</double_check>"
    end = refine(
        "<plan> p</plan>" + SEARCH,
        "<answer> x</answer>",
        doubt,
        SEARCH.replace("a<", "b<"),
        "<answer> y</answer>",
        doubt,
    )
    assert [agent for _, agent, _ in outputs(end)] == [
        GENERATOR,
        GENERATOR,
        VERIFIER,
        REFINER,
        REFINER,
        VERIFIER,
        TEAM,
    ]
    assert end.answer == "y"
    assert refine("<plan> p</plan>" + SEARCH, "<answer> x</answer>", doubt, rounds=0).answer == "x"


def test_a_verifier_without_a_score_makes_the_run_malformed():
    end = refine(
        "<plan> p</plan>" + SEARCH,
        "<answer> x</answer>",
        "<double_check> fine</double_check>",
        "<double_check> fine</double_check>",
    )
    assert end.ending is Ending.MALFORMED


# A debate.


def debate(
    said: dict[int, list[str]],
    *,
    rounds: int = 1,
    critique: str = "<double_check> 3 may be</double_check>",
    task: Task = TASK,
) -> Transcript:
    """`said`: the debaters' replies on each line; seeds tell the lines apart."""
    rest = {line: iter(replies) for line, replies in said.items()}
    seeds: dict[int, int] = {}

    def reply(prompt: Prompt) -> str:
        line = seeds.setdefault(prompt.seed, len(seeds))
        return critique if prompt.role == OPPONENT else next(rest[line])

    team = TeamConfig(rules="debate", debaters=len(said), rounds=rounds, corrections=0)
    return play_one(task, team=team, ask=says(reply), use=uses(lambda _: "seen"))


def ANSWERS(text: str) -> str:
    return f"<answer> {text}</answer>"


def test_the_majority_wins_and_the_earliest_of_it_is_the_chain():
    call = "<plan> p</plan>" + SEARCH
    end = debate(
        {
            0: [call, ANSWERS("x"), ANSWERS("x")],
            1: [call, ANSWERS("y"), ANSWERS("The y.")],
            2: [call, ANSWERS("y"), ANSWERS("Y")],
        }
    )
    assert (end.answer, end.winner, end.settled) == ("The y.", 1, (1, 2))
    agreed = "<double_check> 3 2 of 3 agree</double_check>"
    assert outputs(end)[-2:] == [(line, TEAM, f"{agreed}{ANSWERS(said)}") for line, said in ((1, "The y."), (2, "Y"))]
    assert render(to_chain(end)) == (
        "<plan> p</plan><wiki_search> a</wiki_search><observation> seen</observation><think> y</think>"
        "<reflection> 3 may be</reflection><think> The y.</think><think> 3 2 of 3 agree</think>"
        "<answer> The y.</answer>"
    )


def test_of_the_lines_that_agree_the_first_that_changed_its_mind_wins():
    said = {0: ("y", "y"), 1: ("Y", "The y."), 2: ("x", "z"), 3: ("x", "y"), 4: ("z", "y")}
    end = debate({line: [ANSWERS(first), ANSWERS(last)] for line, (first, last) in said.items()})
    assert (end.winner, end.settled) == (3, (3, 0, 1, 4))
    assert end.answer == "y"


def test_formulas_that_differ_in_signs_alone_are_different_votes():
    said = {line: [ANSWERS(answer)] * 2 for line, answer in enumerate(["12", "1/2", "$1/2$"])}
    end = debate(said, task=replace(TASK, grader="math"))
    assert (end.answer, end.winner) == ("1/2", 1)


def test_debaters_see_the_others_answers_only_after_their_own():
    seen: list[str] = []

    def reply(prompt: Prompt) -> str:
        seen.append(prompt.messages[1].content)
        return "<double_check> 2 no</double_check>" if prompt.role == OPPONENT else ANSWERS(str(len(seen)))

    play_one(TASK, team=TeamConfig(rules="debate", debaters=2), ask=says(reply))
    assert seen[:2] == ["Question: Who ?", "Question: Who ?"]
    assert [text.partition("Answers of others:\n")[2] for text in seen[2:]] == ["- 2", "- 1", "- 2", "- 1"]


def test_a_line_that_is_malformed_drops_out_and_the_others_go_on():
    end = debate({0: ["nonsense"], 1: [ANSWERS("y"), ANSWERS("y")], 2: [ANSWERS("z"), ANSWERS("y")]})
    assert (end.answer, end.winner, end.ending) == ("y", 2, Ending.ANSWERED)
    assert debate({0: ["nonsense"], 1: ["more"]}).ending is Ending.MALFORMED


def test_lines_of_different_length_wait_for_each_other():
    call = "<plan> p</plan>" + SEARCH
    end = debate({0: [ANSWERS("x"), ANSWERS("x")], 1: [call, SEARCH, SEARCH, ANSWERS("x"), ANSWERS("x")]})
    roles = [(line, agent) for line, agent, _ in outputs(end) if agent != TEAM]
    first = roles.index((0, OPPONENT))
    assert roles[:first].count((1, DEBATER)) == 4
    assert end.winner == 0


# Replies of language models.


@pytest.mark.parametrize(
    ("reply", "read"),
    [
        ("<plan>p</plan>", "<plan> p</plan>"),
        (
            "Let me look.\n<Wiki_Search>Nora</Wiki_Search>\n<observation> made up</observation><answer> 7</answer>",
            "<think> Let me look.</think><wiki_search> Nora</wiki_search>",
        ),
        ("Done.", "done"),
        ("I know it.", "I know it."),
        ("<plan> a <answer> b</answer>", "<plan> a <answer> b</answer>"),
        ("<answer> x</answer> Hope that helps!", "<answer> x</answer>"),
    ],
)
def test_small_errors_of_a_models_reply_are_understood(reply: str, read: str):
    assert tidy(reply) == read


def test_a_reply_that_can_t_be_used_is_asked_for_again_and_all_of_it_is_paid_for():
    replies = iter(["No tags.", "<plan> p</plan>"])
    asked: list[Prompt] = []

    async def ask(prompt: Prompt) -> Reply:
        asked.append(prompt)
        return Reply(next(replies, "<plan> p</plan>"), Usage(1, 10, 2))

    end = play_one(TASK, team=TeamConfig(max_steps=1), ask=ask)
    assert outputs(end) == [(0, PLANNER, "<plan> p</plan>")]
    assert end.usage == Usage(2, 20, 4)
    assert [message.role for message in asked[1].messages] == ["system", "user", "assistant", "user"]
    assert asked[1].messages[2].content == "No tags."
    assert "outside of tags" in asked[1].messages[3].content


def test_a_malformed_reply_ends_the_run_and_leaves_no_answer():
    end = play_one(TASK, ask=says(lambda _: "Sure! 7."))
    assert (end.ending, end.answer) == (Ending.MALFORMED, "")


def test_a_duty_and_tools_of_a_recipe_reach_the_prompt():
    team = TeamConfig(roles={PLANNER: RoleConfig(duty="Think of the children.")}, max_steps=1)
    asked: list[Prompt] = []

    def reply(prompt: Prompt) -> str:
        asked.append(prompt)
        return "<plan> p</plan>"

    play_one(TASK, team=team, ask=says(reply))
    assert "Think of the children." in asked[0].messages[0].content


# Failures.


def test_what_a_tool_meets_ends_the_run_and_is_told():
    async def down(call: ToolCall, key: str) -> str:
        raise ToolDown("no wiki")

    with pytest.raises(ToolDown, match="no wiki"):
        play_one(next(task for task in TASKS if task.family == "mhqa"), use=down)


def test_calls_are_known_by_their_place_in_the_run():
    keys: list[str] = []

    async def use(call: ToolCall, key: str) -> str:
        keys.append(key)
        await asyncio.sleep(0)
        return "seen"

    team = TeamConfig(rules="debate", debaters=2, rounds=0)
    replies = {0: scripted("<plan> p</plan>" + SEARCH, SEARCH, ANSWERS("x")), 1: scripted(SEARCH, ANSWERS("x"))}
    seeds: dict[int, int] = {}
    play_one(TASK, team=team, ask=says(lambda p: next(replies[seeds.setdefault(p.seed, len(seeds))])), use=use)
    assert sorted(keys) == ["0/1", "0/3", "1/1"]
