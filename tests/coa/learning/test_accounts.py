"""The accounts of attempts: whatever is killed and rolled back, they balance, and what does not fit is named."""

import json
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coa.learning.accounts import OPEN, ROLLED_BACK, SPARE, TRAINED, Accounts, delay, fold, length_bucket, normal
from coa.learning.task_stream import TaskStream
from coa.learning.window import Ticket, Window, WindowConfig

STEPS, SIZE, EVERY = 8, 3, 2


class History:
    """What the loops of reinforcement do, in any order that can be, with the lines that they write."""

    def __init__(self, dice: random.Random, spares: int = 0) -> None:
        self.dice, self.spares = dice, spares
        self.lines: list[dict[str, Any]] = []
        self.safe = 0
        """Lines that are on the disk."""
        self.checkpoints: list[tuple[int, Any]] = [(0, 0)]
        self.begun = 0
        self.batches: dict[int, list[int]] = {}
        """The tasks of each batch that holds, by its version."""
        self.said_nothing: dict[int, int] = {}
        """Tasks that are dropped for good, with the version of the next batch then."""
        self.begin()

    def begin(self) -> None:
        """The learners begin at one of their last two checkpoints: the last one may be damaged."""
        keep = self.dice.choice(self.checkpoints[-2:])
        self.checkpoints = [one for one in self.checkpoints if one[0] <= keep[0]]
        version, cursor = keep
        self.stream = TaskStream(cursor, apart=SIZE, tries=2)
        self.window = Window(
            WindowConfig(max_staleness=int(not self.spares), groups_per_batch=SIZE, max_refills=1, spares=self.spares),
            version=version,
            batches=STEPS,
            first_group=1000 * self.begun,
        )
        self.write("start", start=self.begun, version=version, cursor=cursor)
        self.begun += 1
        self.playing: dict[int, tuple[Ticket, int]] = {}
        self.waiting: dict[int, int] = {}
        self.batches = {batch: tasks for batch, tasks in self.batches.items() if batch < version}
        settled = {task: at for task, at in self.said_nothing.items() if at < version}
        self.said_nothing = settled

    def write(self, what: str, **values: Any) -> None:
        self.lines.append(json.loads(json.dumps({"what": what, **values})))

    def feed(self) -> None:
        while self.window.room() > 0:
            task = self.stream.take(self.window.room_to_end())
            ticket = self.window.admit()
            self.playing[ticket.group] = ticket, task
            self.write("issue", group=ticket.group, task=task, version=ticket.version)

    def end_one(self) -> None:
        if not self.playing:
            return
        group = self.dice.choice(sorted(self.playing))
        _, task = self.playing.pop(group)
        size = {"group": group, "tokens": self.dice.randrange(1, 300), "calls": self.dice.randrange(4)}
        match self.dice.choice(["keep", "keep", "keep", "nothing", "fail"]):
            case "keep":
                self.waiting[group] = task
                self.window.finish(group)
                self.write("play", **size)
            case "nothing":
                self.stream.done(task)
                self.window.drop(group)
                self.said_nothing[task] = self.window.version
                self.write("drop", reason="no_variance", again=False, **size)
            case _:
                again = self.stream.fail(task)
                self.window.fail(group)
                if not again:
                    self.said_nothing[task] = self.window.version
                self.write("drop", reason="ToolDown", again=again, **size)

    def pack(self) -> None:
        groups = self.window.take()
        if groups is None:
            return
        version = self.window.version - 1
        self.batches[version] = [self.waiting.pop(group) for group in groups]
        for task in self.batches[version]:
            self.stream.done(task)
        self.stop(self.window.stop_spares())
        self.write("lease", version=version, groups=groups)
        self.safe = len(self.lines)
        if (version + 1) % EVERY == 0:
            self.checkpoints.append((version + 1, json.loads(json.dumps(self.stream.cursor()))))
        self.window.publish(version + 1)

    def stop(self, groups: list[int]) -> None:
        """They may be playing, waiting, or blank."""
        tasks = {group: task for group, (_, task) in self.playing.items() if group in groups}
        tasks |= {group: task for group, task in self.waiting.items() if group in groups}
        for group in tasks:
            self.playing.pop(group, None)
            self.waiting.pop(group, None)
            self.write("drop", group=group, reason=SPARE, again=True)
        self.stream.stop([tasks[group] for group in sorted(tasks)])

    def die(self) -> None:
        """The learners, the driver, or its machine with what was not on the disk."""
        if self.dice.random() < 0.3:
            del self.lines[self.safe :]
        self.begin()

    def play(self, kills: float) -> None:
        while self.window.version < STEPS:
            self.feed()
            self.end_one()
            self.pack()
            if self.dice.random() < kills:
                self.die()
                kills *= 0.9  # it comes to an end
        self.write("finish", version=STEPS)


def settled_tasks(accounts: Accounts) -> Counter[int]:
    """How often each task was trained or dropped for good."""
    return Counter(attempt.task for attempt in accounts.attempts.values() if attempt.settled is not None)


@settings(deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([0.0, 0.02, 0.1]), st.sampled_from([0, 2]))
def test_whatever_is_killed_the_accounts_balance_and_each_task_comes_to_one_end(
    seed: int, kills: float, spares: int
) -> None:
    history = History(random.Random(seed), spares)
    history.play(kills)
    accounts, issued = Accounts(), 0
    for line in history.lines:
        accounts.add(line)
        if line["what"] == "start":
            assert accounts.cursor() == list(normal(line["cursor"])), "it stands where the checkpoint does"
        issued += line["what"] == "issue"
        assert len(accounts.attempts) == issued
    assert accounts.faults == []
    [row] = accounts.balance().values()
    assert row.total() == issued
    assert not set(row) & set(OPEN), "nothing is left over"
    assert row[TRAINED] == sum(map(len, history.batches.values()))
    trained = [
        [attempt.task for attempt in accounts.attempts.values() if attempt.batch == version and attempt.settled]
        for version in range(STEPS)
    ]
    assert list(map(sorted, trained)) == [sorted(history.batches[version]) for version in range(STEPS)]
    [following] = history.stream.cursor()
    sized = [attempt.tokens is not None for attempt in accounts.attempts.values() if attempt.task < following]
    assert all(sized), "each has its row in the tables"
    assert accounts.cursor() == [following]
    assert settled_tasks(accounts) == dict.fromkeys(range(following), 1)


def lines(*more: dict[str, Any], start: int = 1) -> list[dict[str, Any]]:
    """Two batches of two, with a checkpoint behind the first; groups 0 to 3 have tasks 0 to 3, group 4 fails."""
    issue = [{"what": "issue", "group": n, "task": n, "version": 0} for n in range(5)]
    play = [{"what": "play", "group": n, "tokens": 60 + 10 * n, "calls": n} for n in range(4)]
    fail = {"what": "drop", "group": 4, "reason": "ToolDown", "again": True, "tokens": 9, "calls": 1}
    return [
        {"what": "start", "start": 0, "version": 0, "cursor": 0},
        *issue,
        *play[:2],
        {"what": "lease", "version": 0, "groups": [0, 1]},
        *play[2:],
        fail,
        {"what": "lease", "version": 1, "groups": [2, 3]},
        *more,
    ]


AGAIN = {"what": "start", "start": 1, "version": 1, "cursor": [5, 2, 3, 4]}


def test_what_a_restart_undoes_is_rolled_back_and_a_failure_stays_one() -> None:
    accounts = fold(lines())
    assert accounts.balance() == {None: Counter(leased=4, ToolDown=1)}
    accounts.add(AGAIN)
    assert accounts.faults == []
    assert accounts.balance() == {None: Counter({TRAINED: 2, ROLLED_BACK: 2, "ToolDown": 1})}
    assert accounts.cursor() == [5, 2, 3, 4]
    assert accounts.balance(lambda attempt: attempt.calls) == {
        0: Counter({TRAINED: 1}),
        1: Counter({TRAINED: 1, "ToolDown": 1}),
        2: Counter({ROLLED_BACK: 1}),
        3: Counter({ROLLED_BACK: 1}),
    }


def test_what_is_issued_again_or_trained_late_is_known_of_each_kind_of_attempt() -> None:
    kinds = fold(lines(AGAIN)).grouped(lambda attempt: length_bucket(attempt.tokens or 0))
    assert {size: [(one.group, one.again) for one in attempts] for size, attempts in kinds.items()} == {
        64: [(0, False)],
        128: [(1, False), (2, True), (3, True)],
        16: [(4, True)],
    }
    kinds = fold(lines()).grouped(lambda attempt: length_bucket(attempt.tokens or 0))
    assert {size: delay(attempts) for size, attempts in kinds.items()} == {64: 0.0, 128: 2 / 3, 16: None}


def test_batches_before_a_checkpoint_are_trained_though_the_run_goes_on() -> None:
    accounts = fold(lines())
    accounts.acknowledge(1)
    assert (accounts.faults, accounts.balance()) == ([], {None: Counter({TRAINED: 2, "leased": 2, "ToolDown": 1})})
    accounts.add({"what": "start", "start": 1, "version": 0, "cursor": 0})
    assert accounts.balance() == {None: Counter({ROLLED_BACK: 4, "ToolDown": 1})}, "it was damaged"
    accounts.acknowledge(3)
    assert accounts.faults == ["line 14: a checkpoint is at version 3, and batches end at 0"]


def test_an_attempt_that_is_cut_off_counts_with_the_length_of_the_next_one_at_its_task() -> None:
    issue = {"what": "issue", "version": 2}
    cut = [{**issue, "group": 5, "task": 5}, {**issue, "group": 6, "task": 6}]
    back = {"what": "start", "start": 1, "version": 2, "cursor": [5, 4]}
    again = [{**issue, "group": 7, "task": 5}, {"what": "play", "group": 7, "tokens": 200, "calls": 3}]
    failed = {"what": "drop", "group": 8, "reason": "ToolDown", "again": True, "tokens": 9, "calls": 1}
    met = (*cut, back, *again, {**issue, "group": 8, "task": 6}, failed)

    def sizes(*further: dict[str, Any]) -> dict[int, tuple[int | None, int | None]]:
        accounts = fold(lines(*met, *further))
        assert accounts.faults == []
        return {group: (one.tokens, one.calls) for group, one in accounts.attempts.items() if group > 4}

    assert sizes() == {5: (200, 3), 6: (None, None), 7: (200, 3), 8: (9, 1)}, "a failure is no whole length"
    then = {**issue, "group": 9, "task": 6}
    played = {"what": "play", "group": 9, "tokens": 3000, "calls": 0}
    assert sizes(then, played) == {5: (200, 3), 6: (3000, 0), 7: (200, 3), 8: (3000, 1), 9: (3000, 0)}
    given_up = {**failed, "group": 9, "again": False, "tokens": 7}
    assert sizes(then, given_up) == {5: (200, 3), 6: (7, 1), 7: (200, 3), 8: (9, 1), 9: (7, 1)}


def test_accounts_may_begin_with_a_run_that_is_under_way() -> None:
    begin = {"what": "start", "start": 3, "version": 20, "cursor": [40, 37]}
    issue = [{"what": "issue", "group": n, "task": task, "version": 20} for n, task in enumerate((37, 40))]
    accounts = fold([begin, *issue, {**begin, "start": 4}])
    assert (accounts.faults, accounts.cursor(), accounts.acknowledged) == ([], [40, 37], 20)
    assert fold([begin, {**issue[0], "task": 36}]).faults


FAULTS = {
    "a task is skipped": ([{**AGAIN, "cursor": [5, 2, 4]}], "start 1 at version 1 has another cursor: skips 3"),
    "new tasks are skipped": ([{**AGAIN, "cursor": [7, 2, 3, 4]}], "skips 5, 6"),
    "a task is doubled": ([{**AGAIN, "cursor": [5, 1, 2, 3, 4]}], "doubles 1"),
    "a version that nobody made": ([{**AGAIN, "version": 7}], "start 1 is at version 7, which no batch made"),
    "a finished task again": (
        [AGAIN, {"what": "issue", "group": 9, "task": 1, "version": 1}],
        "task 1 is issued again, as group 9, though it is finished",
    ),
    "a task beyond the next": ([{"what": "issue", "group": 9, "task": 7, "version": 1}], "tasks 5 to 6 are skipped"),
    "a task twice at a time": (
        [AGAIN, *({"what": "issue", "group": n, "task": 2, "version": 1} for n in (9, 10))],
        "task 2 is played twice at a time, as groups 9 and 10",
    ),
    "a group number again": (
        [{"what": "issue", "group": 3, "task": 5, "version": 1}],
        "group 3 is issued a second time",
    ),
    "a group in two batches": (
        [{"what": "lease", "version": 2, "groups": [1]}],
        "group 1, task 1, is leased, not waiting",
    ),
    "an unknown group": ([{"what": "lease", "version": 2, "groups": [77]}], "group 77 was never issued"),
    "a batch that is skipped": (
        [{"what": "lease", "version": 3, "groups": []}],
        "a batch of version 3 is handed out, expected version 2",
    ),
    "an end too early": ([{"what": "finish", "version": 9}], "finished at version 9, and batches end at 2"),
    "a group left over": (
        [{"what": "issue", "group": 9, "task": 5, "version": 1}, {"what": "finish", "version": 2}],
        "group 9, task 5, is unfinished: playing",
    ),
    "a task that failed and is left over": (
        [{"what": "finish", "version": 2}],
        "task 4 is open: it was to be issued again, and was not",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_does_not_balance_is_named(name: str) -> None:
    more, said = FAULTS[name]
    accounts = fold(lines(*more))
    assert any(said in fault for fault in accounts.faults), accounts.faults


def test_a_line_that_is_missing_is_found() -> None:
    whole: Sequence[dict[str, Any]] = lines(AGAIN)
    first = next(n for n, line in enumerate(whole) if line["what"] == "lease")
    for left_out in range(1, first + 1):
        assert fold([*whole[:left_out], *whole[left_out + 1 :]]).faults, whole[left_out]


def test_lengths_are_counted_by_powers_of_two() -> None:
    assert [length_bucket(tokens) for tokens in (0, 1, 2, 3, 64, 65)] == [1, 1, 2, 4, 64, 128]
