"""The loops of reinforcement on fake engines and fake learners, in virtual time: what is trained, whatever fails."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from actors.messages import EpisodeId
from coa.errors import InfrastructureError
from coa.learning.accounts import OPEN, ROLLED_BACK, TRAINED
from coa.learning.batches import BatchStore
from coa.learning.orders import Train
from coa.reporting.metrics import read_metrics
from coa.storage.jsonl import read_lines
from jobs.stages.reinforcement.groups import shares
from jobs.stages.reinforcement.waits import ADVICE, ALL_RIGHT
from tests.support.engines import FakeTools, FakeWorld
from tests.support.rl_loop import GROUPS, accounts_of, make_run, reinforce
from tests.support.virtual_time import in_virtual_time


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
    assert told[0].endswith("of the last 20 groups failed, most often by ToolDown: it is down")
    shares = [row["failed_fraction"] for row in read_metrics(run.folder / "metrics.jsonl") if "failed_fraction" in row]
    assert max(shares) > 0.5
    assert shares[-1] == 0
    [spell] = played.result["groups_failing"]
    assert spell["since"] < spell["until"] <= 20


def test_it_is_said_once_that_most_groups_teach_nothing_with_what_to_do(tmp_path: Path) -> None:
    """Of the first 400 groups, 9 of 10 are solved whatever is sampled; of the others a quarter is all equal."""
    run, said = make_run(tmp_path, max_staleness=1, steps=40), list[str]()
    run.console.say = lambda text: said.append(text)

    def solved(episode: EpisodeId) -> bool:
        return episode.group < 400 and episode.group % 10 > 0

    played = in_virtual_time(reinforce(run, FakeWorld(solved=solved)))
    told = [line for line in said if "groups teach" in line]
    assert [line.split(":")[1] for line in told] == [" most groups teach nothing", " more groups teach something again"]
    assert told[0].endswith(f"most often {ALL_RIGHT}: {ADVICE[ALL_RIGHT]}")
    [spell] = played.result["groups_uninformative"]
    assert spell["why"].startswith(ALL_RIGHT)
    assert spell["since"] < spell["until"] <= 40


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


@pytest.mark.parametrize("shared", [True, False])
def test_groups_are_dealt_to_all_ranks_one_object_each(
    shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[bool] = []

    def noting(*arguments: Any, share: bool) -> Any:
        told.append(share)
        return shares(*arguments, share=share)

    monkeypatch.setattr("jobs.stages.reinforcement.loop.shares", noting)
    played = in_virtual_time(reinforce(make_run(tmp_path), FakeWorld(), shares_prefixes=shared))
    assert set(told) == {shared}
    for plan in played.learners.trained.values():
        assert [len(references) for references in plan.shares] == [1, 1]
        lengths = [sum(map(len, share)) for [share] in plan.shares]
        assert max(lengths) < 1.5 * min(lengths)
