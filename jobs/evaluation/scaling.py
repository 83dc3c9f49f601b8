"""Test-time scaling of an evaluation: a language model chooses among the attempts if a judge is set up, and
`coa.reporting.scaling` compares all ways to answer."""

import asyncio
from collections.abc import Sequence
from functools import partial

from actors.tools.remote import ToolClient
from coa.agent.best_of import Choice
from coa.errors import UserError
from coa.grading.chooser import CHOOSER, choose
from coa.grading.judge import check_judge
from coa.json_object import Json
from coa.reporting.scaling import candidates_of, rows, scaling
from coa.tools.base import ToolCall
from coa.tools.client import ToolCaller
from coa.types import Task
from jobs.evaluation.attempts import by_protocol
from jobs.evaluation.journal import Episodes
from jobs.recipe.schema import Recipe
from jobs.run.console import Console


def check_best_of(tasks: Sequence[Task], config: Recipe) -> None:
    """Raises UserError if the tasks are not sampled several times, or if the judge would be stopped too early."""
    if config.evaluation.samples == 1:
        raise UserError("--best-of 1: there is nothing to choose from; at least 2 attempts are compared")
    for task in tasks:
        if by_protocol(config.evaluation, task)[-1].samples == 1:
            raise UserError(
                f"{task.family} is decoded greedily, and all of its attempts are the same: set evaluation.temperature"
            )
    if config.tools.judge.url is not None:
        check_judge(config.tools.judge, config.executor.limit_s(CHOOSER), CHOOSER)


async def compare_ways(
    config: Recipe, tools: ToolClient, tasks: Sequence[Task], greedy: Episodes, sampled: Episodes
) -> Json:
    """Compares the ways to answer, as plain JSON; raises ToolDown if the judge is still down after all retries, and
    InfrastructureError if formulas can't be compared."""
    judged = None
    if config.tools.judge.url is not None:
        judged = await choose_each(config, tools, tasks, sampled)
    return dict(await asyncio.to_thread(scaling, tasks, greedy, sampled, judged))


async def choose_each(config: Recipe, tools: ToolClient, tasks: Sequence[Task], sampled: Episodes) -> dict[str, Choice]:
    """The attempt that the judge's model chooses, by task id; raises ToolDown."""
    caller = ToolCaller(tools, "evaluation")

    async def call(id: str, asked: ToolCall) -> str:
        return await config.executor.retry.call(partial(caller.call, id, asked))

    async def one(task: Task) -> Choice:
        attempts = sampled[task.id]
        candidates = await asyncio.to_thread(candidates_of, task, attempts)
        texts = [episode.text for episode in attempts]
        choice = await choose(task.question, candidates, texts, partial(call, task.id))
        caller.acknowledge([task.id])
        return choice

    async with asyncio.TaskGroup() as group:
        choices = {task.id: group.create_task(one(task)) for task in tasks}
    return {id: choice.result() for id, choice in choices.items()}


def show_ways(console: Console, title: str, found: Json) -> None:
    console.table(title, ["", "rate, 95 % interval", "tokens per task", "per success"], list(rows(found)))
