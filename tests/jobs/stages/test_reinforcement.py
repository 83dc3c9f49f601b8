"""The loops of reinforcement on fake engines and fake learners, in virtual time: what is trained, whatever fails."""

import asyncio
import io
import json
import random
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from actors.learner.buffer import Finished, Started, Stepped
from actors.learner.step_report import StepReport
from actors.messages import EpisodeOrder
from cluster.health import PoolConfig
from cluster.pool import EnginePool
from coa.config import load
from coa.errors import InfrastructureError, UserError
from coa.learning.accounts import OPEN, ROLLED_BACK, TRAINED, Accounts, fold
from coa.learning.batches import BatchStore
from coa.learning.orders import Train
from coa.learning.window import WindowConfig
from coa.reporting.metrics import read_metrics
from coa.storage.jsonl import read_lines
from coa.types import Scored
from jobs.recipe.find import find_recipe
from jobs.recipe.schema import Recipe
from jobs.run.console import Console, Stage
from jobs.run.run_dir import RunDir
from jobs.stages.reinforcement.loop import Reinforcement
from jobs.stages.rl import rl
from tests.support.checkpoints import write_checkpoints
from tests.support.engines import FakeTools, FakeWorld
from tests.support.reports import a_report
from tests.support.virtual_time import in_virtual_time

GROUPS = 4


def make_run(folder: Path, *overrides: str, max_staleness: int = 0, steps: int = 6, spares: int = 0) -> RunDir:
    settings = [f"run_dir={folder}", f"rl.steps={steps}", "rl.group=3", "rl.keep_batches=false", *overrides]
    config = load(Recipe, find_recipe("tiny"), settings)
    window = WindowConfig(max_staleness=max_staleness, groups_per_batch=GROUPS, max_refills=100, spares=spares)
    run = RunDir(
        replace(config, rl=replace(config.rl, window=window, checkpoint_every=2)), Console(io.StringIO(), io.StringIO())
    )
    run.prepare()
    return run


class Remembering(EnginePool):
    """Knows which episode every sequence of tokens is of."""

    played: dict[bytes, EpisodeOrder]

    async def play(self, order: EpisodeOrder) -> Scored:
        scored = await super().play(order)
        self.played[scored.trajectory.token_ids.tobytes()] = order
        return scored


WEIGHTS: Any = "weights"


@dataclass
class FakeLearners:
    """Take two seconds a step; die where they are told to, and go on from their last checkpoint."""

    steps: int
    checkpoint_every: int
    dies_after: deque[int] = field(default_factory=deque)
    """The steps after which they die, once each."""
    replicas: int = 2
    trained: dict[int, Train] = field(default_factory=dict)
    """By the version it was trained at; what a restart takes back is not in it."""
    events: "asyncio.Queue[Any]" = field(default_factory=asyncio.Queue)
    epoch: int = 0
    saved: tuple[int, Any] = (0, 0)
    """Version and cursor of the last checkpoint."""
    _plans: dict[int, Train] = field(default_factory=dict)
    _asked: int = -1
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    _beside: set["asyncio.Task[None]"] = field(default_factory=set)
    handed_out: Callable[[Train], None] = lambda plan: None
    """Sees each batch as it comes."""
    report: Callable[[int], StepReport] = lambda version: a_report()
    """What they measure in the step to a version."""
    failure: "asyncio.Future[None]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def beside(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.ensure_future(work)
        self._beside.add(task)

        def done(task: "asyncio.Task[None]") -> None:
            self._beside.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None and not self.failure.done():
                self.failure.set_exception(error)

        task.add_done_callback(done)
        return task

    async def put(self, plan: Train, epoch: int) -> bool:
        self.handed_out(plan)
        async with self._changed:
            await self._changed.wait_for(lambda: epoch != self.epoch or plan.version <= self._asked + 1)
            if epoch != self.epoch:
                return False
            self._plans[plan.version] = plan
            self._changed.notify_all()
            return True

    async def learn(self) -> None:
        version, cursor = self.saved
        while True:
            async with self._changed:
                self.epoch, self._asked = self.epoch + 1, version - 1
                self._plans.clear()
                self._changed.notify_all()
            self.trained = {old: plan for old, plan in self.trained.items() if old < version}
            await self.events.put(
                Started(version=version, cursor=cursor, weights=WEIGHTS, probes=(), parity="alike", epoch=self.epoch)
            )
            self.saved = saved = version, cursor
            while version < self.steps:
                async with self._changed:
                    self._asked = version
                    self._changed.notify_all()
                    await self._changed.wait_for(lambda version=version: version in self._plans)
                    plan = self._plans[version]
                await asyncio.sleep(2.0)
                self.trained[version] = plan
                version += 1
                report = self.report(version)
                event = Stepped(
                    version=version, report=report, began=0.0, ended=1.0, waited=0.0, weights=WEIGHTS, probes=()
                )
                await self.events.put(event)
                if version % self.checkpoint_every == 0:
                    # What JSON makes of it, as in a checkpoint.
                    self.saved = saved = version, json.loads(json.dumps(plan.cursor))
                if self.dies_after and version >= self.dies_after[0]:
                    self.dies_after.popleft()
                    await asyncio.sleep(1.0)
                    break
            else:
                return await self.events.put(Finished(version=version))
            version, cursor = saved


def accounts_of(run: RunDir) -> Accounts:
    return fold(read_lines(run.folder / "ledger.jsonl"))


@dataclass
class Played:
    batches: list[list[tuple[str, int, bytes]]]
    """(task, sample, tokens) of what was trained, sorted, batch by batch."""
    groups: list[list[int]]
    book: Any
    orders: list[EpisodeOrder]
    learners: FakeLearners
    result: dict[str, Any]


async def reinforce(
    run: RunDir,
    world: FakeWorld,
    *,
    kills: float = 0.0,
    dies_after: tuple[int, ...] = (),
    saved: tuple[int, Any] = (0, 0),
    handed_out: Callable[[Train], None] = lambda plan: None,
    report: Callable[[int], StepReport] = lambda version: a_report(),
    pool_class: type[Remembering] = Remembering,
    scorer: Any = None,
) -> Played:
    """kills: engines a second. saved: the checkpoint of a driver before this one. scorer: a teacher, or None."""
    config = run.config.rl
    pool = pool_class(world.launch, PoolConfig(deaths=1000), run.config.agent, places=256, patience_s=60.0)
    pool.played = {}
    for _ in range(2):
        pool.add()
    learners = FakeLearners(
        config.steps,
        config.checkpoint_every,
        deque(dies_after),
        saved=saved,
        handed_out=handed_out,
        report=report,
    )
    loop = Reinforcement(run, pool, learners, Stage("rl", None), scorer, put=lambda share: share)

    async def kill() -> None:
        dice = random.Random(7)
        while kills:
            await asyncio.sleep(dice.expovariate(kills))
            if world.alive:
                dice.choice(world.alive).die()

    async def follow() -> None:
        while True:
            event = await learners.events.get()
            match event:
                case Started():
                    await loop.start(event)
                case Stepped():
                    await loop.stepped(event)
                case Finished():
                    return await loop.caught_up(event)

    working = [asyncio.ensure_future(one) for one in (learners.learn(), follow(), kill())]
    try:
        await pool.ready()
        await asyncio.wait({working[1], learners.failure}, return_when=asyncio.FIRST_COMPLETED)
        for one in (working[1], learners.failure):
            if one.done():
                one.result()
        result = await loop.result()
        loop.ledger.finish(config.steps)
    finally:
        for one in (*working, *learners._beside):
            one.cancel()
        loop.close()
        await pool.stop()
    orders = [
        [pool.played[sample.token_ids.tobytes()] for [share] in plan.shares for sample in share]
        for _, plan in sorted(learners.trained.items())
    ]
    tokens = [
        [sample.token_ids.tobytes() for [share] in plan.shares for sample in share]
        for _, plan in sorted(learners.trained.items())
    ]
    batches = [
        sorted((order.task.id, order.id.sample, said) for order, said in zip(*both, strict=True))
        for both in zip(orders, tokens, strict=True)
    ]
    groups = [sorted({order.id.group for order in batch}) for batch in orders]
    return Played(batches, groups, loop.stats, list(pool.played.values()), learners, result)


def test_what_is_trained_is_the_same_whether_calls_fail_or_engines_or_learners_die(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0 to 6 tool calls an episode, of which 1 % fail; synchronous, so that nothing may depend on time."""
    quiet = in_virtual_time(reinforce(make_run(tmp_path / "quiet"), FakeWorld()))
    assert [len(batch) for batch in quiet.batches] == [3 * GROUPS] * 6
    assert quiet.book.dropped.keys() == {"no variance"}
    failing = FakeWorld(tools=FakeTools(failing=0.01))
    failed = in_virtual_time(reinforce(make_run(tmp_path / "failing"), failing))
    assert failed.batches == quiet.batches
    assert sum(engine.retried for engine in failing.engines) > 0
    killed_world = FakeWorld(tools=FakeTools(failing=0.01), start_s=1.0)
    killed = in_virtual_time(reinforce(make_run(tmp_path / "killed"), killed_world, kills=0.3))
    assert killed.batches == quiet.batches
    assert len(killed_world.engines) > 10
    assert killed.result["calls_retried"] > 0
    restarted, said = make_run(tmp_path / "restarted"), list[str]()
    monkeypatch.setattr(restarted.console, "say", said.append)
    starts = reinforce(restarted, FakeWorld(), dies_after=(1, 3, 5))
    assert in_virtual_time(starts).batches == quiet.batches
    assert said.count("rl: alike") == 1, "each start compares the model, and the first says it"
    assert killed.result["episodes_moved"] > 0
    up = [
        {row["engines_up"] for row in read_metrics(tmp_path / name / "metrics.jsonl") if "engines_up" in row}
        for name in ("quiet", "killed")
    ]
    assert up[0] == {2}
    assert up[1] & {0, 1}, "a step says how many engines were up"


@pytest.mark.parametrize("kills", [0.0, 0.1])
def test_engines_that_take_turns_with_learners_sleep_while_these_learn_and_train_the_same(
    tmp_path: Path, kills: float
) -> None:
    side_by_side = in_virtual_time(reinforce(make_run(tmp_path / "side_by_side"), FakeWorld()))
    world = FakeWorld(start_s=1.0)
    turns: list[tuple[int, list[bool]]] = []
    """Of each batch, the episodes under way when the learners get it, and which engines that came up are asleep."""

    def look(plan: Train) -> None:
        up = [engine for engine in world.alive if engine.loaded]
        under_way = sum(not episode.done() for engine in up for episode in engine._episodes.values())
        turns.append((under_way, [engine.asleep for engine in up]))

    run = make_run(tmp_path / "turns", "engine.sleep_mode=true", "rl.evaluate_every=2", "rl.evaluate_tasks=40")
    played = in_virtual_time(reinforce(run, world, handed_out=look, kills=kills))
    assert played.batches == side_by_side.batches
    assert [under_way for under_way, _ in turns] == [0] * 6
    if not kills:
        assert [asleep for _, asleep in turns] == [[True, True]] * 6
        assert [engine.slept for engine in world.engines] == [[0] * 6] * 2
        assert [engine.loaded for engine in world.engines] == [list(range(7))] * 2, "each sync wakes them"
    rows = [row for row in read_metrics(run.folder / "metrics.jsonl") if "eval/pass_at_1" in row]
    assert [(row["step"], row["eval/oldest_version"]) for row in rows] == [(0, 0), (2, 2), (4, 4), (6, 6)]
    assert all(row["eval/newest_version"] == row["step"] for row in rows), "an evaluation ends before they sleep"


def test_no_group_has_the_number_of_one_of_an_earlier_start_of_the_driver(tmp_path: Path) -> None:
    run = make_run(tmp_path, steps=1)
    starts = [in_virtual_time(reinforce(run, FakeWorld())) for _ in range(3)]
    numbers = [{(order.id.serial, order.id.group) for order in played.orders} for played in starts]
    assert min(numbers[0]) == (0, 0)
    assert not numbers[0] & numbers[1]
    assert not numbers[1] & numbers[2]
    assert not numbers[0] & numbers[2]


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


def test_a_family_whose_tool_is_down_is_named_once_and_taken_back_when_the_tool_is_up(tmp_path: Path) -> None:
    """The others are trained meanwhile, as if nothing had happened."""
    run, said = make_run(tmp_path, max_staleness=1, steps=20), list[str]()
    run.console.say = lambda text: said.append(text)
    family = {(task := run.training_task("rl", index)).id: task.family for index in range(400)}
    gone = sorted(set(family.values()))[0]
    until = 60.0

    def down(episode: Any) -> bool:
        return family[episode.task] == gone and asyncio.get_running_loop().time() < until

    world = FakeWorld(tools=FakeTools(down=down), calls_of=lambda episode: 2)
    played = in_virtual_time(reinforce(run, world))
    assert [line for line in said if gone in line] == [
        f"rl: the family {gone} has vanished from training: its last 3 groups came to nothing, the last one: "
        "ToolDown: it is down",
        f"rl: the family {gone} is trained again",
    ]
    rows = read_metrics(run.folder / "metrics.jsonl")
    missing = [row["families_missing"] for row in rows if "families_missing" in row]
    assert (missing[0], max(missing), missing[-1]) == (0, 1, 0)
    [vanished] = played.result["families_vanished"]
    assert vanished["family"] == gone
    assert vanished["since"] < vanished["until"] <= 20


def test_a_tool_that_fails_for_most_groups_is_named_while_the_others_are_trained(tmp_path: Path) -> None:
    run, said = make_run(tmp_path, max_staleness=1, steps=20), list[str]()
    run.console.say = lambda text: said.append(text)
    dice = {run.training_task("rl", index).id: index % 4 for index in range(400)}
    until = 60.0

    def down(episode: Any) -> bool:
        return dice[episode.task] > 0 and asyncio.get_running_loop().time() < until

    played = in_virtual_time(reinforce(run, FakeWorld(tools=FakeTools(down=down), calls_of=lambda episode: 2)))
    told = [line for line in said if "most groups" in line]
    assert [line.split(":")[1] for line in told] == [" most groups fail", " most groups are played again"]
    assert told[0].endswith("of the last 20 groups failed, the last one: ToolDown: it is down")
    shares = [row["failed_fraction"] for row in read_metrics(run.folder / "metrics.jsonl") if "failed_fraction" in row]
    assert max(shares) > 0.5
    assert shares[-1] == 0
    [spell] = played.result["groups_failing"]
    assert spell["since"] < spell["until"] <= 20


@pytest.mark.parametrize("dies_after", [(), (3,)])
def test_spare_groups_are_cancelled_and_their_tasks_are_trained_later(
    tmp_path: Path, dies_after: tuple[int, ...]
) -> None:
    """Some are being played when their batch is full, some wait, some fail, and some have said nothing."""
    run = make_run(tmp_path, spares=3)
    tools = FakeTools(down=lambda episode: episode.group % 7 == 3 and episode.sample == 1)
    world = FakeWorld(tools=tools)
    played = in_virtual_time(reinforce(run, world, dies_after=dies_after))
    assert [len(batch) for batch in played.batches] == [3 * GROUPS] * 6
    assert played.book.dropped["spare"] >= 3 * 5, "in all batches but the last"
    assert sum(len(engine.cancelled) for engine in world.engines) > 0
    accounts = accounts_of(run)
    assert accounts.faults == []
    [row] = accounts.balance().values()
    assert row.keys() - {ROLLED_BACK} == {TRAINED, "spare", "ToolDown", "no_variance"}
    assert row[TRAINED] == 6 * GROUPS
    settled = Counter(one.task for one in accounts.attempts.values() if one.settled is not None)
    assert set(settled.values()) == {1}
    for batch in range(6):  # however long they took: those before it that are not in it came to nothing
        inside = [one.group for one in accounts.attempts.values() if one.batch == batch]
        passed = [
            accounts.state(one)
            for one in accounts.attempts.values()
            if min(inside) <= one.group < max(inside) and one.group not in inside
        ]
        assert set(passed) <= {"ToolDown", "no_variance", ROLLED_BACK}


def test_where_nothing_is_finished_any_more_the_stage_ends_with_the_reason(tmp_path: Path) -> None:
    world = FakeWorld(tools=FakeTools(down=lambda episode: True), calls_of=lambda episode: 1)
    with pytest.raises(InfrastructureError, match="no group was finished for 30 minutes: ToolDown: it is down"):
        in_virtual_time(reinforce(make_run(tmp_path), world))


def test_an_outage_of_all_tools_is_waited_for_and_gives_no_task_up(tmp_path: Path) -> None:
    def outage(episode: Any) -> bool:
        return 10 < asyncio.get_running_loop().time() < 1200

    run = make_run(tmp_path, max_staleness=1)
    played = in_virtual_time(reinforce(run, FakeWorld(tools=FakeTools(down=outage), calls_of=lambda episode: 2)))
    assert played.book.dropped["ToolDown"] > 20 * GROUPS
    assert played.book.given_up == 0
    assert [len(batch) for batch in played.batches] == [3 * GROUPS] * 6


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


def test_a_driver_that_is_started_again_keeps_the_accounts(tmp_path: Path) -> None:
    """The first one dies between two checkpoints, in the middle of a line."""
    run = make_run(tmp_path, max_staleness=1)
    first = in_virtual_time(reinforce(run, FakeWorld()))
    ledger = run.folder / "ledger.jsonl"
    written = ledger.read_text()
    ledger.write_text(written[: written.index('{"what": "lease", "version": 4') + 20])
    cut = accounts_of(run)
    [row] = cut.balance().values()
    assert row["leased"] == 4 * GROUPS
    assert set(row) & set(OPEN) == {"leased", "waiting"}
    second = in_virtual_time(reinforce(run, FakeWorld(), saved=(2, first.learners.trained[1].cursor)))
    assert sorted(second.learners.trained) == [2, 3, 4, 5]
    accounts = accounts_of(run)
    assert accounts.faults == []
    assert accounts.finished
    [row] = accounts.balance().values()
    assert row[TRAINED] == 6 * GROUPS
    assert row[ROLLED_BACK] >= 2 * GROUPS
    assert not set(row) & set(OPEN)


def test_a_batch_is_in_the_ledger_and_recorded_before_it_is_handed_out(tmp_path: Path) -> None:
    run = make_run(tmp_path, "rl.keep_batches=true", steps=2)
    store, seen = BatchStore(run.batches), list[Any]()

    def look(plan: Train) -> None:
        leases = [line["version"] for line in read_lines(run.folder / "ledger.jsonl") if line["what"] == "lease"]
        tokens = [[sample.token_ids.tolist() for sample in share] for share in store.read(plan.version + 1)]
        given = [[sample.token_ids.tolist() for sample in share] for [share] in plan.shares]
        seen.append((plan.version, leases, tokens == given))

    in_virtual_time(reinforce(run, FakeWorld(), handed_out=look))
    assert seen == [(0, [0], True), (1, [0, 1], True)]


def test_groups_are_dealt_to_all_ranks_one_object_each(tmp_path: Path) -> None:
    played = in_virtual_time(reinforce(make_run(tmp_path), FakeWorld()))
    for plan in played.learners.trained.values():
        assert [len(references) for references in plan.shares] == [1, 1]
        lengths = [sum(map(len, share)) for [share] in plan.shares]
        assert max(lengths) < 1.5 * min(lengths)


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
