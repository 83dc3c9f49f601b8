"""The tiny world as a recipe meets it."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from coa.agent.episode import AgentConfig
from coa.agent.grammar import parse
from coa.demo import evaluation_tasks, training_task
from coa.demo.guest import TinyConfig, TinyWorld
from coa.demo.questions import FAMILIES
from coa.demo.strategy import careful_route
from coa.types import Floats, Tokens
from tests.support.fakes import tag_codec
from tests.support.teams import MIND, WORLD

TINY = TinyWorld(TinyConfig())
TASKS = TINY.evaluation_tasks(6, seed=1)


def test_its_tasks_and_pages_are_those_of_the_facts() -> None:
    assert TINY.training_task("rl", 7, seed=3) == training_task(WORLD, seed=3, purpose="rl", index=7)
    assert evaluation_tasks(WORLD, 6, 1) == TASKS
    assert TINY.articles == WORLD.wiki_pages
    assert (TINY.site.pages, TINY.site.hits) == (WORLD.site_pages, WORLD.site_hits)
    assert TINY.lexicon() == WORLD.lexicon()
    assert TINY.profiles() == {"code", "mhqa", "web"}
    assert TinyWorld(TinyConfig(profile="multi")).profiles() == {"multi"}


def test_its_rows_tell_the_strategy() -> None:
    task = TASKS[1]
    assert task.family == "mhqa"
    twice = "<plan> p</plan>" + "<wiki_search> a</wiki_search><observation> b</observation>" * 2 + "<answer> c</answer>"
    assert TINY.columns == ("strategy",)
    assert TINY.column("strategy", task, parse(twice).chain) == "careful"
    assert TINY.column("strategy", task, parse("<plan> p</plan><answer> c</answer>").chain) == "lazy"


def test_an_evaluation_tells_the_share_of_each_route_by_family() -> None:
    lazy, cut = "<plan> p</plan><answer> c</answer>", "<plan> p</plan>"
    said = {task.id: [lazy, lazy, lazy, cut] for task in TASKS}
    assert TINY.measures(TASKS, said) == {
        "strategies": {family: {"careful": 0.0, "lazy": 0.75, "other": 0.25} for family in FAMILIES}
    }


def test_careful_success_leaves_out_what_is_given_and_what_decides() -> None:
    """With every token at half, it is two to the minus (tokens of the policy but the deciding span's)."""
    codec, task = tag_codec(), TASKS[0]

    async def logprobs(token_ids: Tokens) -> Floats:
        return np.full(len(token_ids) - 1, np.log(0.5), np.float32)

    found = asyncio.run(TINY.probes([task], codec, AgentConfig(instructed=False), logprobs))
    route = careful_route(WORLD, task)
    counted = sum(
        len(codec.span(span))
        for index, span in enumerate(route.chain)
        if span.tag != "observation" and index not in route.decisions
    )
    assert found == {"careful_success": {task.family: pytest.approx(0.5**counted, rel=1e-5)}}


def test_its_experts_are_those_of_its_settings() -> None:
    assert TINY.has_experts
    assert TINY.experts()._config == MIND._config
    settings = TinyConfig(experts=replace(TinyConfig().experts, recall_calc=1.0))
    assert TinyWorld(settings).experts()._config.recall_calc == 1.0
