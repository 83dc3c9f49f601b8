"""Episodes of programs: what is graded and trained of them, and which failures are theirs."""

import asyncio
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from actors.gateway.player import ProgramPlayer
from actors.gateway.server import Gateway
from actors.messages import EVALUATION, EpisodeOrder
from actors.serving.plain import PlainModel
from coa.agent.codec import Codec
from coa.agent.programs.config import ProgramConfig
from coa.agent.records import record_of
from coa.errors import EngineDied, EpisodeFailed, UserError
from coa.grading.rewards import RewardConfig
from coa.learning.algorithms.grpo import Grpo
from coa.learning.samples import to_samples
from coa.tools.base import ToolCall
from coa.tools.client import RetryConfig, ToolCaller
from coa.types import Scored, Status
from tests.support.executors import Answering
from tests.support.programs import Scripted, order_of

ASK = """
import json, os, sys, urllib.request
def post(path, body):
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    address = os.environ["OPENAI_BASE_URL"] + path
    request = urllib.request.Request(address, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)
def ask(*texts):
    roles = ("user", "assistant")
    messages = [{"role": roles[place % 2], "content": text} for place, text in enumerate(texts)]
    return post("/chat/completions", {"model": "m", "messages": messages})["choices"][0]["message"]["content"]
question = input()
"""


MESSAGE = "warning: nothing of task t can be trained: responses are 1 constrained (docs/programs.md)"


class Stage:
    def __init__(self, folder: Path, model: PlainModel) -> None:
        self.folder, self._model = folder, model
        self.policy = Scripted(folder)
        self.reward = RewardConfig()
        self.said: list[str] = []

    def play(self, program: str, *texts: str, **changed: Any) -> Scored:
        return self.play_order(self.order(program, **changed), *texts)

    @staticmethod
    def order(program: str, *, group: int = 0, auxiliary: bool = False, **limits: Any) -> EpisodeOrder:
        config = ProgramConfig(command=(sys.executable, "-c", ASK + program), auxiliary=auxiliary)
        return order_of(config, group=group, **limits)

    def play_order(self, order: EpisodeOrder, *texts: str) -> Scored:
        return self.play_on(Scripted(self.folder, *texts or ("5",)), order)

    def play_on(self, policy: Scripted, *orders: EpisodeOrder) -> Scored:
        """Plays them one after the other; returns what became of the last one."""
        self.policy = policy

        async def answer(call: ToolCall) -> str:
            return "42"

        async def go() -> Scored:
            gateway = Gateway(self._model)
            async with gateway.serving() as address:
                player = ProgramPlayer(
                    gateway,
                    address,
                    self.policy,
                    ToolCaller(Answering(answer), "player"),
                    Codec.load(self.folder),
                    reward=self.reward,
                    retry=RetryConfig(),
                    at_once=2,
                    say=self.said.append,
                )
                played = [await player.play(order) for order in orders]
                return played[-1]

        return asyncio.run(go())


@pytest.fixture
def stage(folder: Path, model: PlainModel) -> Stage:
    return Stage(folder, model)


def test_an_answer_is_graded_by_the_task(stage: Stage) -> None:
    right = stage.play("print(ask(question))", "5")
    assert (right.correct, right.reward, right.well_formed) == (True, 1.0, True)
    assert (right.trajectory.status, right.trajectory.answer) == (Status.ANSWERED, "5")
    wrong = stage.play("print(ask(question))", "6")
    assert (wrong.correct, wrong.reward) == (False, 0.0)


def test_a_trajectory_is_what_was_sampled_behind_what_was_asked(stage: Stage) -> None:
    scored = stage.play("first = ask(question); print(ask(question, first, 'Sure ?'))", "4", "5")
    [trajectory] = scored.contexts
    said = [one.token_ids.tolist() for one in stage.policy.said]
    assert trajectory.token_ids[trajectory.action_mask].tolist() == said[0] + said[1]
    assert trajectory.token_ids[: trajectory.prompt_length].tolist() == stage.policy.orders[0].prompt.tolist()
    assert trajectory.versions[trajectory.action_mask].tolist() == [0] * len(said[0]) + [1] * len(said[1])
    assert trajectory.text.startswith("4")
    assert "Sure ?" in trajectory.text
    assert trajectory.turns == 2


def test_contexts_of_sub_agents_are_trained_with_the_reward_of_their_episode(stage: Stage) -> None:
    scored = stage.play("sub = ask('Add them'); print(ask(question + sub))", "so: 5", "5")
    assert len(scored.contexts) == 2
    said = stage.policy.said
    assert scored.trajectory.token_ids[scored.trajectory.action_mask].tolist() == said[1].token_ids.tolist()
    worse = replace(scored, grade=0.0, correct=False, reward=0.0, others=())
    samples = to_samples((scored, worse), Grpo(), 3)
    assert [float(sample.reinforce[sample.loss_mask][0]) > 0 for sample in samples] == [True, True, False]
    record = record_of(scored)
    assert record.policy_tokens == sum(len(one.token_ids) for one in said)
    assert (record.oldest, record.newest) == (0, 1)


def test_what_nothing_came_of_is_trained_where_the_recipe_says_so(stage: Stage) -> None:
    program = "ask('A title, please'); print(ask(question))"
    left_out = stage.play(program, "Sums", "5")
    assert (len(left_out.contexts), left_out.unused) == (1, {"auxiliary": 1})
    assert record_of(left_out).unused == {"auxiliary": 1}
    trained = stage.play(program, "Sums", "5", auxiliary=True)
    assert (len(trained.contexts), trained.unused) == (2, {})


def test_an_episode_of_which_nothing_can_be_trained_is_graded_nevertheless(stage: Stage) -> None:
    program = (
        "body = {'model': 'm', 'messages': [{'role': 'user', 'content': question}], 'min_tokens': 1}\n"
        "print(post('/chat/completions', body)['choices'][0]['message']['content'])"
    )
    scored = stage.play(program, "5")
    assert scored.correct
    assert not scored.trajectory.action_mask.any()
    assert scored.unused == {"constrained": 1}
    order = stage.order(program)
    stage.play_on(Scripted(stage.folder, "5"), order, order)
    assert stage.said == [MESSAGE, MESSAGE], "once by each player"


def test_a_reward_of_the_program_is_taken_in_place_of_the_grade(stage: Stage) -> None:
    program = (
        "print(ask(question)); base = os.environ['OPENAI_BASE_URL']\n"
        "os.environ['OPENAI_BASE_URL'] = base.removesuffix('/v1'); post('/session/reward', {'reward': -0.5})"
    )
    scored = stage.play(program, "5")
    assert (scored.reward, scored.grade, scored.correct) == (-0.5, 0.0, False)


def test_no_answer_is_the_policys_fault(stage: Stage) -> None:
    scored = stage.play("ask(question)")
    assert (scored.trajectory.status, scored.reward) == (Status.MALFORMED, 0.0)
    for end in ("print(7)", "sys.exit(3)"):
        scored = stage.play(f"ask(question); ask(question)\n{end}", max_turns=1)
        ended = (Status.ANSWERED, "7") if end == "print(7)" else (Status.OUT_OF_TURNS, "")
        assert (scored.trajectory.status, scored.trajectory.answer) == ended


@pytest.mark.parametrize(
    ("program", "where", "why"),
    [
        ("ask(question); sys.exit(75)", "ProgramFailed", "status 75: it said nothing"),
        ("ask(question); os.kill(os.getpid(), 9)", "ProgramFailed", "status -9"),
    ],
)
def test_a_failure_of_the_program_is_no_sample(stage: Stage, program: str, where: str, why: str) -> None:
    with pytest.raises(EpisodeFailed, match=why) as failed:
        stage.play(program)
    assert failed.value.where == where


def test_a_crash_after_a_reply_is_no_answer_and_is_told_once(stage: Stage) -> None:
    """Most often the policy has said what the program can't read."""
    order = stage.order("print(ask(question)); raise ValueError('no luck')")
    scored = stage.play_on(Scripted(stage.folder, "5"), order, order)
    assert (scored.trajectory.status, scored.reward, scored.trajectory.answer) == (Status.MALFORMED, 0.0, "")
    assert scored.trajectory.action_mask.any()
    [told] = stage.said
    assert "counts as one without an answer: the program ended with status 1" in told
    assert "ValueError: no luck; with the status 75" in told


@pytest.mark.parametrize("program", ["print(5)", "import nothing_of_that_name"])
def test_a_program_that_has_never_asked_is_the_users_mistake(stage: Stage, program: str) -> None:
    with pytest.raises(UserError, match=r"agent.program: the program ended .*; it asked the policy nothing"):
        stage.play(program)


def test_later_it_is_a_failure_of_its_episode(stage: Stage) -> None:
    order = stage.order("if len(sys.argv) == 1: print(ask(question))")
    program = replace(order.agent.program, command=(*order.agent.program.command, "asks nothing"))
    silent = replace(order, agent=replace(order.agent, program=program))
    with pytest.raises(EpisodeFailed, match="asked the policy nothing") as failed:
        stage.play_on(Scripted(stage.folder, "5"), order, silent)
    assert failed.value.where == "ProgramFailed"


def test_a_program_that_hangs_is_ended(stage: Stage) -> None:
    order = replace(stage.order("ask(question); import time; time.sleep(1000)"), limit_s=2.0)
    with pytest.raises(EpisodeFailed, match="2 s were not enough") as failed:
        stage.play_order(order)
    assert failed.value.where == "EpisodeTimeout"
    evaluated = replace(order, id=replace(order.id, group=EVALUATION))
    assert stage.play_order(evaluated).trajectory.status is Status.TRUNCATED


def test_in_an_evaluation_a_crash_is_no_answer(stage: Stage) -> None:
    scored = stage.play("ask(question); print(5); raise ValueError", group=EVALUATION)
    assert (scored.trajectory.status, scored.correct) == (Status.MALFORMED, False)


def test_a_failure_of_the_engines_ends_the_episode_whatever_the_program_makes_of_it(stage: Stage) -> None:
    caught = "try: ask(question)\nexcept OSError: pass\nprint(5)"

    class Broken(Scripted):
        async def __call__(self, order: Any, request: Any) -> Any:
            raise EngineDied("gone")

    for program in (caught, "ask(question)"):
        with pytest.raises(EpisodeFailed, match="gone") as failed:
            stage.play_on(Broken(stage.folder), stage.order(program))
        assert failed.value.where == "EngineDied"
