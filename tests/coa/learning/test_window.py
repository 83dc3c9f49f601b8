"""The staleness window: examples of its two rules, and simulations of everything that may happen to it."""

import heapq
import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coa.learning.window import Ticket, Window, WindowConfig, choose


def config(max_staleness: int, groups_per_batch: int = 2, max_refills: int = 2) -> WindowConfig:
    return WindowConfig(max_staleness=max_staleness, groups_per_batch=groups_per_batch, max_refills=max_refills)


# --- the deadline -----------------------------------------------------------------------------------------------------


def test_the_oldest_finished_groups_come_first() -> None:
    assert choose({}, {7: 1, 3: 1, 5: 0}, 1, config(2)) == [5, 3]


def test_a_batch_waits_until_it_is_full() -> None:
    assert choose({9: 0}, {1: 0}, 0, config(2)) is None


def test_enough_are_ready_and_yet_the_learner_waits_for_a_group_that_is_due() -> None:
    # Group 0 started at version 0 and may be trained at version 2 at the latest, which is now.
    assert choose({0: 0}, {1: 1, 2: 1}, 2, config(2)) is None
    # One version earlier it could still wait.
    assert choose({0: 0}, {1: 1, 2: 1}, 1, config(2)) == [1, 2]


def test_the_learner_waits_where_too_many_would_be_due_at_once_later() -> None:
    # Three are due at version 2, and the batch of version 2 holds two: one has to come now, at version 1.
    assert choose({0: 0, 1: 0, 2: 0}, {3: 1, 4: 1}, 1, config(2)) is None
    assert choose({0: 0, 1: 0}, {2: 0, 3: 1, 4: 1}, 1, config(2)) == [2, 3]


def test_without_slack_everything_that_runs_is_due_now() -> None:
    assert choose({2: 0}, {0: 0, 1: 0}, 0, config(0)) is None
    assert choose({}, {0: 0, 1: 0}, 0, config(0)) == [0, 1]


# --- spares -----------------------------------------------------------------------------------------------------------


def spared(spares: int = 2, max_refills: int = 2) -> Window:
    limits = WindowConfig(max_staleness=0, groups_per_batch=2, max_refills=max_refills, spares=spares)
    return Window(limits, version=0, batches=3)


def admitted(window: Window) -> list[int]:
    return [window.admit().group for _ in range(window.room())]


def test_a_batch_is_the_first_groups_of_those_admitted_however_long_they_take() -> None:
    window = spared()
    assert admitted(window) == [0, 1, 2, 3]
    for quick in (1, 2, 3):
        window.finish(quick)
        assert window.take() is None, "group 0 is waited for"
    window.finish(0)
    assert window.take() == [0, 1]
    assert window.stop_spares() == [2, 3]
    assert (list(window.outstanding()), window.room()) == ([], 0)
    window.publish(1)
    assert admitted(window) == [4, 5, 6, 7]


def test_a_spare_takes_the_place_of_a_group_that_says_nothing_and_another_spare_is_admitted() -> None:
    window = spared()
    assert admitted(window) == [0, 1, 2, 3]
    window.finish(2)
    window.finish(1)
    assert window.drop(0)
    assert admitted(window) == [4]
    assert window.take() == [1, 2]
    assert window.stop_spares() == [3, 4]


def test_no_more_spares_are_admitted_than_may_still_be_needed() -> None:
    window = spared(spares=5, max_refills=1)
    assert admitted(window) == [0, 1, 2, 3]
    assert window.drop(0)
    assert window.drop(1)
    assert admitted(window) == []
    window.finish(2)
    assert not window.drop(3)
    assert window.take() == [2]
    assert window.stop_spares() == []
    assert spared(spares=5, max_refills=0).room() == 2


def test_nothing_is_spared_in_the_last_batch_since_no_later_one_would_take_it() -> None:
    window = spared()
    for version in range(3):
        window.publish(version)
        for group in admitted(window):
            window.finish(group)
        assert window.stop_spares() == []
        assert window.take() == [4 * version, 4 * version + 1]
        assert window.stop_spares() == ([4 * version + 2, 4 * version + 3] if version < 2 else [])
    assert window.room() == 0


def test_spares_are_for_the_synchronous_trainer() -> None:
    with pytest.raises(ValueError, match="spares is 1, expected 0, or max_staleness=0"):
        WindowConfig(max_staleness=1, spares=1)


# --- admission --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("max_staleness", "first", "room"), [(0, 2, 2), (1, 4, 4), (2, 4, 6), (4, 4, 10)])
def test_so_many_may_run_before_the_first_batch(max_staleness: int, first: int, room: int) -> None:
    window = Window(config(max_staleness), version=0, batches=100)
    assert window.room() == first
    window.trained(0)  # learners found less than a batch
    assert [window.admit() for _ in range(room)] == [Ticket(group, 0) for group in range(room)]
    with pytest.raises(ValueError, match="the window is full"):
        window.admit()


def test_nothing_is_admitted_that_no_batch_would_take() -> None:
    window = Window(config(4), version=0, batches=3)
    window.trained(0)
    assert window.room() == 6
    assert Window(config(4), version=2, batches=3).room() == 2
    assert Window(config(4), version=3, batches=3).room() == 0


def test_room_comes_back_when_the_new_version_is_live_and_not_before() -> None:
    window = Window(config(0), version=0, batches=9)
    for _ in range(2):
        window.finish(window.admit().group)
    assert window.take() == [0, 1]
    assert window.room() == 0
    window.publish(1)
    assert window.room() == 2
    assert window.admit() == Ticket(2, 1)


def test_a_window_goes_on_from_a_checkpoint() -> None:
    window = Window(config(1), version=5, batches=9, first_group=100)
    assert (window.room(), window.next_group, window.admit()) == (4, 100, Ticket(100, 5))


def test_a_failed_group_frees_its_slot() -> None:
    window = Window(config(0), version=0, batches=9)
    first = window.admit()
    window.admit()
    window.fail(first.group)
    assert window.room() == 1
    assert window.admit() == Ticket(2, 0)
    assert list(window.outstanding()) == [1, 2]


def test_refills_are_limited_for_each_batch_anew() -> None:
    window = Window(config(0, max_refills=1), version=0, batches=9)
    for version in range(2):
        window.publish(version)
        assert [window.drop(window.admit().group) for _ in range(2)] == [True, True]
        blank = window.admit().group
        assert not window.drop(blank)
        assert window.room() == 1
        kept = window.admit().group
        window.finish(kept)
        # The blank group is part of the batch, and leaves it short.
        assert window.take() == [kept]


def test_a_batch_of_blanks_alone_is_empty_and_still_a_batch() -> None:
    window = Window(config(0, max_refills=0), version=0, batches=1)
    for _ in range(2):
        assert not window.drop(window.admit().group)
    assert window.take() == []
    assert (window.version, window.take()) == (1, None)


def test_waiting_for_an_old_group_is_told_from_waiting_for_any() -> None:
    window = Window(config(1), version=0, batches=9)
    for _ in range(4):
        window.admit()
    window.finish(3)
    assert (window.take(), window.waits_for_old()) == (None, False)
    window.finish(2)
    assert window.take() == [2, 3]
    window.publish(1)
    for group in (window.admit().group, window.admit().group):
        window.finish(group)
    assert (window.take(), window.waits_for_old()) == (None, True)
    window.finish(0)
    assert (window.take(), window.waits_for_old()) == (None, True)
    window.finish(1)
    assert window.take() == [0, 1]


def test_engines_never_go_back() -> None:
    window = Window(config(1), version=3, batches=9)
    with pytest.raises(ValueError, match="from version 3 back to 2"):
        window.publish(2)


def ran(window: Window, versions: int) -> list[int]:
    """Groups that learners find at the beginning of each batch, if engines take no time. They were slower before."""
    window.trained(0)
    found = []
    for version in range(window.version + 1, window.version + versions + 1):
        for group in admitted(window):
            window.finish(group)
        assert window.take() is not None
        window.trained(version)
        found.append(len(window.outstanding()))
        window.publish(version)
    return found


def test_groups_that_lay_ready_for_a_whole_window_are_no_longer_admitted_ahead() -> None:
    window = Window(config(4), version=0, batches=99)
    # Four batches of two, of which learners begin one; then two.
    assert ran(window, 12) == [8, 8, 8, 8, 8, 6, 4, 4, 4, 4, 4, 4]


def test_a_window_that_shrank_below_what_is_under_way_has_no_room() -> None:
    window = Window(config(4), version=0, batches=99)
    ran(window, 5)
    assert (len(window.outstanding()), window.room()) == (8, 0)


# --- simulation -------------------------------------------------------------------------------------------------------


@dataclass
class Simulated:
    """Everything that happens to a window, in made-up time."""

    window: Window
    random: random.Random
    drops: float
    fails: float
    lag: float
    now: float = 0.0
    events: list[tuple[float, int, str, int]] = field(default_factory=list)
    started: dict[int, int] = field(default_factory=dict)
    batches: list[list[int]] = field(default_factory=list)
    refills: int = 0
    blanks: int = 0
    admitted: list[tuple[int, int]] = field(default_factory=list)
    """(version being trained, version of the ticket) of each admission."""

    def later(self, seconds: float, what: str, which: int) -> None:
        heapq.heappush(self.events, (self.now + seconds, len(self.admitted) + len(self.events), what, which))

    def run(self) -> None:
        """Until nothing is left to happen."""
        while True:
            self.act()
            if not self.events:
                return
            self.now, _, what, which = heapq.heappop(self.events)
            if what == "live":
                if which > self.window.live:
                    self.window.publish(which)
            else:
                self.end(which)

    def act(self) -> None:
        window, size = self.window, self.window.config.groups_per_batch
        while window.room() > 0:
            ticket = window.admit()
            self.started[ticket.group] = ticket.version
            self.admitted.append((window.version, ticket.version))
            tail = self.random.random() < 0.1
            self.later(self.random.expovariate(1.0) * (50 if tail else 1), "end", ticket.group)
        bound = (window.config.max_staleness + window.live + 1) * size
        assert window.version * size + len(window.outstanding()) <= bound
        before = window.version
        batch = window.take()
        if batch is not None:
            for group in batch:
                assert before - self.started[group] <= window.config.max_staleness
            assert len(batch) + self.blanks >= size
            self.blanks -= size - len(batch)
            self.batches.append(batch)
            self.refills = 0
            self.later(self.random.expovariate(1.0) * self.lag, "live", window.version)
            window.trained(window.version)
            self.act()

    def end(self, group: int) -> None:
        fate = self.random.random()
        if fate < self.fails:
            self.window.fail(group)
        elif fate < self.fails + self.drops:
            freed = self.window.drop(group)
            limit = self.window.config.max_refills * self.window.config.groups_per_batch
            assert freed == (self.refills < limit)
            self.refills += freed
            self.blanks += not freed
        else:
            self.window.finish(group)


def simulate(limits: WindowConfig, *, seed: int, drops: float, fails: float, lag: float, batches: int) -> Simulated:
    world = Simulated(Window(limits, version=0, batches=batches), random.Random(seed), drops, fails, lag)
    world.run()
    return world


@pytest.mark.parametrize("max_staleness", [0, 1, 2, 4])
@settings(derandomize=True, max_examples=150, deadline=None, database=None)
@given(
    seed=st.integers(0, 10**6),
    size=st.integers(1, 6),
    refills=st.integers(0, 2),
    drops=st.sampled_from([0.0, 0.3, 0.9]),
    fails=st.sampled_from([0.0, 0.2]),
    lag=st.sampled_from([0.0, 0.5, 5.0, 100.0]),
)
def test_every_batch_comes_full_and_fresh_whatever_happens(
    max_staleness: int, seed: int, size: int, refills: int, drops: float, fails: float, lag: float
) -> None:
    """The assertions about age and admission are in the simulation; here, that it came to its end."""
    limits = config(max_staleness, size, refills)
    world = simulate(limits, seed=seed, drops=drops, fails=fails, lag=lag, batches=20)
    assert world.window.version == len(world.batches) == 20
    assert list(world.window.outstanding()) == []
    trained = [group for batch in world.batches for group in batch]
    assert len(trained) == len(set(trained))
    if not drops:
        assert [len(batch) for batch in world.batches] == [size] * 20


@settings(derandomize=True, max_examples=30, deadline=None, database=None)
@given(seed=st.integers(0, 10**6), lag=st.sampled_from([0.0, 5.0]))
def test_without_staleness_it_is_the_synchronous_trainer(seed: int, lag: float) -> None:
    world = simulate(config(0, 4), seed=seed, drops=0.0, fails=0.0, lag=lag, batches=10)
    # Four groups between two batches, all of them started at the version that is trained.
    assert world.admitted == [(version, version) for version in range(10) for _ in range(4)]
    assert [[world.started[g] for g in batch] for batch in world.batches] == [[v] * 4 for v in range(10)]


def test_long_groups_are_waited_for_and_staleness_is_used_in_full() -> None:
    world = simulate(config(2, 4), seed=1, drops=0.0, fails=0.0, lag=0.1, batches=50)
    ages = [version - world.started[group] for version, batch in enumerate(world.batches) for group in batch]
    assert (min(ages), max(ages)) == (0, 2)


def test_oldest_first_without_the_deadline_would_break_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    def greedy(running: Any, ready: Any, version: int, config: WindowConfig) -> list[int] | None:
        picked = sorted(ready, key=lambda group: (ready[group], group))[: config.groups_per_batch]
        return picked if len(picked) == config.groups_per_batch else None

    monkeypatch.setattr("coa.learning.window.choose", greedy)
    with pytest.raises(AssertionError):
        simulate(config(2, 4), seed=1, drops=0.0, fails=0.0, lag=0.1, batches=50)
