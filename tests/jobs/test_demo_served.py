"""What `make demo` trained, served: it solves tasks that it has not seen, for a client that knows nothing of agents.

COA_DEMO names the run directory of a finished demo, if it is not `runs/demo`.
"""

import asyncio
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from coa.config import load
from coa.grading.match import exact_match
from coa.types import Task
from jobs.recipe.schema import Recipe
from jobs.run.agent_file import as_trained
from jobs.stages.evaluate import asked_of
from tests.jobs.test_serve import serving
from tests.project.test_docs import ROOT

MODEL = Path(os.environ.get("COA_DEMO", ROOT / "runs" / "demo")) / "model"
TASKS, AT_ONCE, SHARE = 200, 16, 0.8

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not MODEL.is_dir(), reason=f"no finished demo: {MODEL} is not there (make demo, or COA_DEMO)"),
]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("demo")
    (folder / "model").symlink_to(MODEL.absolute())
    with serving(folder / "model", "out", settings=("serving.name=demo",)) as (address, _):
        yield address


def test_the_agent_solves_tasks_that_it_has_not_seen(url: str, tmp_path: Path, record_property: Any) -> None:
    tasks = asked_of(as_trained(load(Recipe), MODEL, tmp_path, ()), None, TASKS, best_of=False).tasks
    assert len(tasks) == TASKS
    answers = asyncio.run(answers_to(tasks, url))
    solved = Counter(
        task.family for task, answer in zip(tasks, answers, strict=True) if exact_match(answer, task.answers)
    )
    print(f"{solved.total()} of {TASKS} tasks are solved: {dict(solved)}")
    record_property("solved", dict(solved))
    assert solved.total() >= SHARE * TASKS


async def answers_to(tasks: Sequence[Task], url: str) -> list[str]:
    """Of the agent, in the order of the tasks."""
    from openai import AsyncOpenAI

    client, places = AsyncOpenAI(base_url=f"{url}/v1", api_key="none"), asyncio.Semaphore(AT_ONCE)

    async def answer(task: Task) -> str:
        async with places:
            asked: Any = [{"role": "user", "content": task.question}]
            found = await client.chat.completions.create(model="demo", messages=asked)
            return found.choices[0].message.content or ""

    async with client:
        return await asyncio.gather(*map(answer, tasks))
