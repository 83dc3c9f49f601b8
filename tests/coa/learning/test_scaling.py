"""How many rollout engines a run wants, on made-up traces and in a made-up loop."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coa.learning.scaling import Decision, EngineController, EngineScaling, Fleet, Reading

CONFIG = EngineScaling(look_back_s=60.0, cooldown_s=300.0)
FLEET = Fleet(least=1, most=4, places=8, at_once=4)
FULL = Reading(
    at=0.0,
    waits=True,
    for_old=False,
    steps=0,
    serving=1,
    joining=0,
    playing=8,
    queued=24,
    sampling=4,
    kv_use=0.5,
    admissible=0,
)
"""One engine has all that it can do, and the learner waits."""


def controller(engines: int = 1, fleet: Fleet = FLEET, config: EngineScaling = CONFIG) -> EngineController:
    return EngineController(config, fleet, engines)


def wished(readings: list[Reading] | Iterator[Reading], control: EngineController) -> int:
    """What is wished for after all of them."""
    for reading in readings:
        control.look(reading)
    return control.wished


def every_second(reading: Reading, seconds: int = 200, *, period: int = 20, waiting: float = 1.0) -> list[Reading]:
    """A learner whose steps take `period` seconds, of which it waits for this share first."""
    return [
        replace(reading, at=float(now), steps=now // period, waits=reading.waits and now % period < waiting * period)
        for now in range(seconds)
    ]


def test_a_learner_that_waits_for_full_engines_gets_more_of_them() -> None:
    control = controller()
    decisions = [control.look(reading) for reading in every_second(FULL)]
    said = [(now, decision) for now, decision in enumerate(decisions) if decision.why]
    assert said[0] == (60, Decision(2, "the learner waits 100% of its time, and the engines are full"))


@pytest.mark.parametrize(
    ("waiting", "engines", "found"),
    [(0.05, 2, 2), (0.15, 2, 3), (0.3, 2, 3), (0.45, 2, 4), (0.75, 1, 2), (0.75, 2, 4)],
)
def test_as_many_are_wanted_as_would_let_the_learner_wait_no_more(waiting: float, engines: int, found: int) -> None:
    """Twice as many at most: what the others bring is seen before there are more."""
    busy = replace(FULL, serving=engines, playing=8 * engines, sampling=4 * engines)
    assert wished(every_second(busy, 90, waiting=waiting), controller(engines)) == found


def test_a_learner_that_does_not_wait_gets_none_however_full_engines_are() -> None:
    assert wished(every_second(replace(FULL, waits=False)), controller()) == 1


def test_slow_tools_are_no_reason_for_more_engines() -> None:
    """The learner waits, and episodes wait for tools: in places that are there, or with nothing that is sampled."""
    places = replace(FULL, playing=6, queued=0, sampling=1)
    assert wished(every_second(places), controller()) == 1
    in_queue = replace(FULL, playing=8, queued=24, sampling=0)
    assert wished(every_second(in_queue), controller()) == 1
    assert wished(every_second(replace(in_queue, sampling=1)), controller()) > 1


def test_more_than_staleness_lets_be_played_are_not_asked_for() -> None:
    """With 12 episodes to play there is work for two engines of 8 places; with none more than those, for one."""
    some = replace(FULL, playing=8, queued=4)
    assert wished(every_second(some, 2000), controller()) == 2
    assert wished(every_second(replace(some, admissible=12), 2000), controller()) == 3
    assert wished(every_second(replace(FULL, playing=8, queued=0)), controller()) == 1, "the headroom is nil"


def test_a_full_kv_cache_is_a_full_engine() -> None:
    roomy = replace(FULL, playing=7, queued=0, sampling=2, admissible=20)
    assert wished(every_second(roomy), controller()) == 1
    assert wished(every_second(replace(roomy, kv_use=0.95)), controller()) > 1


def test_a_wait_for_old_groups_counts_where_engines_are_crowded() -> None:
    """Their episodes have places already: more engines help them only where fewer are sampled beside them."""
    old = replace(FULL, for_old=True)
    assert wished(every_second(replace(old, sampling=3)), controller()) == 1
    assert wished(every_second(replace(old, sampling=4)), controller()) > 1


def test_who_is_on_the_way_is_waited_for() -> None:
    control = controller()
    assert wished(every_second(FULL, 61), control) == 2
    joining = replace(FULL, joining=1)
    assert wished((replace(one, at=one.at + 61) for one in every_second(joining, 1000)), control) == 2
    there = replace(FULL, serving=2, playing=16, queued=16, sampling=8)
    later = [replace(one, at=one.at + 1061) for one in every_second(there, 62)]
    assert wished(later[:60], control) == 2, "what the second brings is to be seen first"
    assert wished(later[60:], control) == 4


def test_engines_that_die_and_come_back_ask_for_no_others() -> None:
    """Every 90 s one of three is away for 45; the learner waits for most of that time."""
    readings = []
    for now in range(3000):
        away = now % 90 >= 45
        readings.append(
            replace(
                FULL,
                at=float(now),
                steps=now // 20,
                waits=away and now % 20 < 4,
                serving=2 if away else 3,
                joining=int(away),
                playing=16,
                queued=4,
                sampling=8,
            )
        )
    assert wished(readings, controller(3)) == 3


def test_bursts_after_each_publication_change_nothing() -> None:
    """For 5 of 40 seconds three engines are full, and the learner, which computes meanwhile, never waits."""
    full = replace(FULL, waits=False, serving=3, playing=24, queued=8, sampling=12)
    rest = replace(full, playing=12, queued=0, sampling=4)
    readings = [replace(full if now % 40 < 5 else rest, at=float(now), steps=now // 40) for now in range(2000)]
    assert wished(readings, controller(3)) == 3


def test_a_synchronous_loop_is_not_taken_for_load_that_rises_and_falls() -> None:
    """With max_staleness=0 the learner waits while engines play, for ten minutes, and computes while they rest."""
    plays = replace(FULL, serving=2, playing=16, queued=16, sampling=8)
    rests = replace(plays, waits=False, playing=0, queued=0, sampling=0)
    readings = [
        replace(plays if now % 900 < 600 else rests, at=float(now), steps=now // 900) for now in range(900, 9000)
    ]
    control = controller(2, replace(FLEET, most=2))
    assert {(control.look(reading), control.wished)[1] for reading in readings} == {2}


def test_engines_without_work_go_by_halves_and_the_last_one_stays() -> None:
    idle = replace(FULL, waits=False, serving=4, playing=2, queued=0, sampling=1, kv_use=0.1)
    control = controller(4)
    found = []
    for reading in every_second(idle, 400):
        found.append(control.look(replace(reading, serving=control.wished)).engines)
    assert [found[at] for at in (79, 80, 159, 160, 399)] == [4, 2, 2, 1, 1], "the first step of each is not counted"


def test_engines_that_are_needed_and_not_needed_at_once_are_a_mistake() -> None:
    with pytest.raises(ValueError, match=r"slack is 0\.95, expected less than full, 0\.9"):
        replace(CONFIG, slack=0.95)


# --- any trace --------------------------------------------------------------------------------------------------------

counts = st.integers(0, 60)
RESTS = replace(FULL, waits=False, playing=0, queued=0, sampling=0)
anything = st.builds(
    Reading,
    at=st.floats(0.1, 100.0),
    waits=st.booleans(),
    for_old=st.booleans(),
    steps=st.integers(0, 5),
    serving=st.integers(0, 5),
    joining=st.sampled_from([0, 0, 0, 1]),
    playing=counts,
    queued=counts,
    sampling=counts,
    kv_use=st.floats(0, 8),
    admissible=st.integers(-5, 60),
)
extremes = st.sampled_from([replace(FULL, at=10.0, steps=1), replace(RESTS, at=10.0, steps=1)])


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(extremes | anything, st.integers(1, 30)), max_size=30), st.integers(1, 2), st.integers(2, 6))
def test_the_number_is_in_its_bounds_and_turns_once_in_a_cool_down_at_most(
    spells: list[tuple[Reading, int]], least: int, most: int
) -> None:
    """A spell is a reading that lasts for so many looks; its `at` and `steps` are those from look to look."""
    fleet = replace(FLEET, least=least, most=most)
    control = controller(least, fleet)
    now, steps, direction, turned = 0.0, 0, 0, -math.inf
    for reading, looks in spells:
        for _ in range(looks):
            now, steps, before = now + reading.at, steps + reading.steps, control.wished
            decision = control.look(replace(reading, at=now, steps=steps))
            change = decision.engines - before
            assert least <= decision.engines == control.wished <= most
            assert bool(decision.why) == (change != 0)
            if change * direction < 0:
                assert now - turned >= CONFIG.cooldown_s
                turned = now
            direction = (change > 0) - (change < 0) or direction


# --- a loop -----------------------------------------------------------------------------------------------------------


@dataclass
class Loop:
    """Engines and a learner as quantities that flow, a second at a time."""

    control: EngineController
    seconds_each: float = 10.0
    """An episode takes on an engine."""
    batch: int = 32
    learning_s: int = 10
    staleness: int = 2
    start_s: int = 40
    """An engine takes to come up."""
    now: int = 0
    steps: int = 0
    ready: float = 0.0
    busy_s: int = 0
    starting: list[int] = field(default_factory=list)
    serving: int = 1
    unfinished: float = 0.0
    waited: int = 0
    history: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.unfinished = (self.staleness + 1) * self.batch

    def run(self, seconds: int) -> float:
        """The share of the time for which the learner waited."""
        before, self.history = self.waited, []
        for _ in range(seconds):
            self._second()
        return (self.waited - before) / seconds

    def _second(self) -> None:
        self.now += 1
        self.serving += sum(at <= self.now for at in self.starting)
        self.starting = [at for at in self.starting if at > self.now]
        playing = min(self.unfinished, FLEET.places * self.serving)
        done = playing / self.seconds_each
        self.unfinished, self.ready = self.unfinished - done, self.ready + done
        if self.busy_s:
            self.busy_s -= 1
            if not self.busy_s:
                self.steps += 1
                self.unfinished += self.batch
        if not self.busy_s and self.ready >= self.batch:
            self.ready, self.busy_s = self.ready - self.batch, self.learning_s
        self.waited += not self.busy_s
        wished = self.control.look(
            Reading(
                at=float(self.now),
                waits=not self.busy_s,
                for_old=False,
                steps=self.steps,
                serving=self.serving,
                joining=len(self.starting),
                playing=round(playing),
                queued=round(self.unfinished - playing),
                sampling=round(playing / 2),
                kv_use=playing / FLEET.places / 2,
                admissible=0,
            )
        ).engines
        self.starting += [self.now + self.start_s] * (wished - self.serving - len(self.starting))
        self.serving = min(self.serving, wished)
        self.history.append(wished)


def test_engines_follow_a_load_that_rises_and_falls() -> None:
    """Learning needs 3.2 episodes a second, of which an engine plays 8 of the short ones, and 0.8 of the long ones."""
    loop = Loop(controller(), seconds_each=1.0)
    loop.run(300)
    assert loop.run(600) < 0.02
    assert set(loop.history) == {1}
    loop.seconds_each = 10.0
    loop.run(600)
    assert loop.run(600) < 0.05
    assert set(loop.history) == {4}
    loop.seconds_each = 1.0
    loop.run(600)
    assert loop.run(600) < 0.02
    assert set(loop.history) == {1}


def test_the_learner_waits_less_than_half_as_long_as_with_one_engine() -> None:
    alone = Loop(controller(fleet=replace(FLEET, most=1)))
    elastic = Loop(controller())
    waited = alone.run(2000)
    assert elastic.run(2000) < 0.3 * waited
    assert waited > 0.7
