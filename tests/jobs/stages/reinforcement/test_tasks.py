"""Which tasks are trained, whatever fails and however often a stage starts: each once, in the order of the stream."""

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from coa.errors import UserError
from coa.learning.accounts import ROLLED_BACK, TRAINED
from jobs.stages.rl import rl
from tests.support.checkpoints import write_checkpoints
from tests.support.engines import FakeTools, FakeWorld
from tests.support.rl_loop import GROUPS, accounts_of, make_run, reinforce
from tests.support.virtual_time import in_virtual_time


def test_what_fails_for_good_is_counted_and_issued_again_later(tmp_path: Path) -> None:
    run = make_run(tmp_path, max_staleness=1)
    broken = {run.training_task("rl", index).id for index in (1, 9)}
    once: set[str] = set()

    def down(episode: Any) -> bool:
        if episode.task in broken and episode.group not in once and episode.sample == 2:
            once.add(episode.group)
        return episode.task in broken and (episode.task == min(broken) or len(once) < 3) and episode.sample == 2

    world = FakeWorld(tools=FakeTools(down=down), calls_of=lambda episode: 2)
    played = in_virtual_time(reinforce(run, world))
    book = played.book
    assert book.dropped["ToolDown"] >= 3
    tasks = Counter(task for batch in played.batches for task, _, _ in batch)
    assert min(broken) not in tasks, "it fails always, and is given up"
    assert book.given_up == 1
    assert [len(batch) for batch in played.batches] == [3 * GROUPS] * 6
    assert set(tasks.values()) == {3}
    accounts = accounts_of(run)
    assert accounts.faults == []
    [row] = accounts.balance().values()
    assert row == {
        TRAINED: 6 * GROUPS,
        "ToolDown": book.dropped["ToolDown"],
        "no_variance": book.dropped["no variance"],
    }
    failed = accounts.balance(lambda attempt: attempt.calls if attempt.state == "ToolDown" else None)
    assert failed[1] == {"ToolDown": book.dropped["ToolDown"]}


@pytest.mark.parametrize("max_staleness", [0, 2])
@pytest.mark.parametrize("dies_after", [(1,), (3, 3, 5)])
def test_a_restart_skips_no_task_and_trains_none_twice(
    tmp_path: Path, max_staleness: int, dies_after: tuple[int, ...]
) -> None:
    run = make_run(tmp_path, max_staleness=max_staleness)
    played = in_virtual_time(reinforce(run, FakeWorld(token_s=0.3), kills=0.05, dies_after=dies_after))
    assert sorted(played.learners.trained) == list(range(6))
    trained = Counter(task for batch in played.batches for task, _, _ in batch)
    assert set(trained.values()) == {3}
    following, *flying = played.learners.trained[5].cursor
    issued = {run.training_task("rl", index).id for index in range(following)}
    still = {run.training_task("rl", index).id for index in flying}
    assert trained.keys() <= issued - still
    # What is neither trained nor in flight was played to its end, and said nothing.
    alike = {order.task.id for order in played.orders}
    assert issued - still - trained.keys() <= alike
    ages = [
        version - int(sample.versions[sample.loss_mask].min())
        for version, plan in played.learners.trained.items()
        for [share] in plan.shares
        for sample in share
    ]
    assert min(ages) >= 0
    assert max(ages) <= max_staleness
    accounts = accounts_of(run)
    assert accounts.faults == []
    assert (accounts.starts, accounts.finished) == (len(dies_after) + 1, True)
    [row] = accounts.balance().values()
    assert row.keys() == {TRAINED, ROLLED_BACK, "no_variance"}
    assert row[TRAINED] == 6 * GROUPS
    last = {attempt.task for attempt in accounts.attempts.values() if accounts.state(attempt) == TRAINED}
    assert {run.training_task("rl", index).id for index in last} == trained.keys()


def test_tasks_of_a_file_come_in_another_order_each_time(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text("".join(json.dumps({"question": f"Q{n} ?", "answer": str(n)}) + "\n" for n in range(20)))
    run = make_run(tmp_path / "run", f"tasks.path={path}")
    stream = [run.training_task("rl", index).question for index in range(100)]
    n = len(set(stream))
    passes = [stream[start : start + n] for start in range(0, 3 * n, n)]
    assert all(set(one) == set(stream) for one in passes)
    assert passes[0] != passes[1] != passes[2]
    assert [run.training_task("distill", index).question for index in range(n)] != passes[0]


@pytest.mark.parametrize("max_staleness", [0, 1])
def test_a_task_that_fails_near_the_end_is_finished_before_the_run_ends(tmp_path: Path, max_staleness: int) -> None:
    run = make_run(tmp_path, max_staleness=max_staleness, steps=2)
    first: dict[str, str] = {}
    """By task, the group that played it first."""
    fails = {run.training_task("rl", index).id for index in range(0, 40, 3)}

    def down(episode: Any) -> bool:
        return first.setdefault(episode.task, episode.group) == episode.group and episode.task in fails

    played = in_virtual_time(reinforce(run, FakeWorld(tools=FakeTools(down=down), calls_of=lambda episode: 2)))
    assert played.book.retried > 0
    accounts = accounts_of(run)
    assert accounts.faults == []
    settled = Counter(attempt.task for attempt in accounts.attempts.values() if attempt.settled is not None)
    assert settled == dict.fromkeys(range(accounts.cursor()[0]), 1)


def test_reinforcement_goes_on_with_the_tasks_that_it_began_with_and_no_others(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    nothing: Any = None
    rows = [json.dumps({"id": str(i), "question": f"What is {i} + 1 ?", "answer": str(i + 1)}) for i in range(8)]

    def play(rows: list[str]) -> None:
        path.write_text("\n".join(rows))
        run = make_run(tmp_path / "run", f"tasks.path={path}", "tasks.held_out=0.25")
        asyncio.run(rl(run, nothing, nothing))

    with pytest.raises(AttributeError):  # it begins, and there is nothing to begin with
        play(rows)
    write_checkpoints(tmp_path / "run" / "checkpoints" / "rl", 2)
    with pytest.raises(AttributeError):
        play(rows)
    for others in (rows[::-1], rows[:-1], [*rows[1:], rows[0].replace("+ 1", "+ 2")]):
        with pytest.raises(UserError, match=r"tasks of .*: these \d are not those that rl began with, or not in their"):
            play(others)
