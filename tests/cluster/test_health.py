"""An engine's health: a table of what may happen to it, and everything that may happen in any order."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cluster.health import FINAL, PACE_HALVES_S, Fault, Health, HealthConfig, State

LIMITS = HealthConfig(suspect_s=10, dead_s=30, start_s=100, sync_s=50, pause_s=50, syncs=2)


def serving(now: float = 0.0) -> Health:
    """An engine that runs the weights of number 1."""
    return Health(began=0.0, limits=LIMITS).came_up(now).published(1).sync_began(now).synced(now, 1)


def at_work(now: float = 0.0) -> Health:
    return serving().answered(now, tokens=1, generating=3)


def loading() -> Health:
    """Weights of number 2 are being loaded."""
    return serving().published(2).sync_began(1.0)


TABLE: list[tuple[str, Callable[[], Health], State, int | None]] = [
    ("one that is asked for", lambda: Health(began=0.0), State.STARTING, 0),
    ("one that came up before anything was published", lambda: Health(began=0.0).came_up(1.0), State.HEALTHY, 0),
    ("one that came up later", lambda: Health(began=0.0, newest=3).came_up(1.0), State.STALE, 0),
    ("one with the newest weights", serving, State.HEALTHY, 1),
    ("one that has to load newer ones", lambda: serving().published(2), State.STALE, 1),
    ("a start without a sign of progress", lambda: Health(began=0.0, limits=LIMITS).tick(100.0), State.DEAD, 0),
    (
        "a start that reads its model",
        lambda: Health(began=0.0, limits=LIMITS).starting(90.0, 1).starting(180.0, 2).tick(279.0),
        State.STARTING,
        0,
    ),
    (
        "a start that has stopped reading",
        lambda: Health(began=0.0, limits=LIMITS).starting(90.0, 5).starting(180.0, 5).tick(190.0),
        State.DEAD,
        0,
    ),
    ("a core that stands still", lambda: at_work().answered(9.0, tokens=1, generating=3), State.HEALTHY, 1),
    ("the same a while later", lambda: at_work().answered(10.0, tokens=1, generating=3), State.SUSPECT, 1),
    (
        "the same in the end",
        lambda: at_work().answered(29.0, tokens=1, generating=3).answered(30.0, tokens=1, generating=3),
        State.DEAD,
        1,
    ),
    (
        "a core that goes on in time",
        lambda: at_work().answered(29.0, tokens=1, generating=3).answered(29.5, tokens=2, generating=3),
        State.HEALTHY,
        1,
    ),
    (
        "an idle one that answers",
        lambda: serving().answered(9.0, tokens=0, generating=0).answered(18.0, tokens=0, generating=0),
        State.HEALTHY,
        1,
    ),
    ("an actor that does not answer", lambda: serving().tick(10.0), State.SUSPECT, 1),
    ("an actor that never answers", lambda: serving().tick(30.0), State.DEAD, 1),
    ("a process that ended", lambda: at_work().raised(1.0, Fault.GONE, "out of memory"), State.DEAD, 1),
    ("a call that may have run", lambda: serving().raised(1.0, Fault.UNREACHABLE, ""), State.SUSPECT, 1),
    (
        "the same when the next one is answered",
        lambda: serving().raised(1.0, Fault.UNREACHABLE, "").answered(2.0, tokens=0, generating=0),
        State.HEALTHY,
        1,
    ),
    ("a sync refused before the update", lambda: loading().sync_failed(2.0, Fault.REFUSED, ""), State.STALE, 1),
    ("a sync that failed after it began", lambda: loading().sync_failed(2.0, Fault.HALFWAY, ""), State.STALE, None),
    ("a sync that nobody heard of", lambda: loading().sync_failed(2.0, Fault.UNREACHABLE, ""), State.STALE, None),
    ("a sync whose core died", lambda: loading().sync_failed(2.0, Fault.GONE, "core"), State.DEAD, 1),
    ("weights that are lost", lambda: loading().sync_failed(2.0, Fault.NO_WEIGHTS, ""), State.STALE, 1),
    (
        "a reload after an update that was left halfway",
        lambda: loading().sync_failed(2.0, Fault.HALFWAY, "").sync_began(2.0).synced(3.0, 2),
        State.HEALTHY,
        2,
    ),
    (
        "a reload that fails too, however early",
        lambda: loading().sync_failed(2.0, Fault.HALFWAY, "").sync_began(2.0).sync_failed(3.0, Fault.REFUSED, "x"),
        State.DEAD,
        None,
    ),
    (
        "a sync refused twice",
        lambda: loading().sync_failed(2.0, Fault.REFUSED, "").sync_began(2.0).sync_failed(3.0, Fault.REFUSED, "x"),
        State.DEAD,
        1,
    ),
    ("a sync without an end", lambda: loading().answered(45.0, tokens=0, generating=0).tick(51.0), State.DEAD, 1),
    ("one that nobody needs", lambda: at_work().retired(), State.RETIRED, 1),
    ("a dead one that nobody needs", lambda: serving().tick(30.0).retired(), State.DEAD, 1),
    (
        "a retired one that wakes up",
        lambda: at_work().retired().answered(1.0, tokens=9, generating=1),
        State.RETIRED,
        1,
    ),
]


@pytest.mark.parametrize(("what", "make", "state", "holds"), TABLE, ids=[row[0] for row in TABLE])
def test_the_state_follows_from_what_happened(
    what: str, make: Callable[[], Health], state: State, holds: int | None
) -> None:
    health = make()
    assert (health.state, health.holds) == (state, holds)


def test_no_token_is_expected_while_weights_are_loaded_or_tools_are_waited_for() -> None:
    loading = at_work().published(2).sync_began(1.0)
    for now in range(2, 50, 5):
        loading = loading.answered(now, tokens=1, generating=3, paused=True)
    assert loading.state is State.STALE
    assert loading.synced(50.0, 2).answered(59.0, tokens=1, generating=3).state is State.HEALTHY
    waiting = serving()
    for now in range(2, 500, 5):
        waiting = waiting.answered(now, tokens=1, generating=0)
    assert waiting.answered(505.0, tokens=1, generating=3).state is State.HEALTHY, "its requests began just now"


def test_a_sync_does_not_hide_a_core_that_stands_still() -> None:
    waiting = at_work().answered(5.0, tokens=2, generating=3).published(2).sync_began(6.0)
    for now in range(7, 35, 2):
        waiting = waiting.answered(now, tokens=2, generating=3)
        assert waiting.state is (State.SUSPECT if now >= 15 else State.STALE)
    assert waiting.tick(35.0).state is State.DEAD


@pytest.mark.parametrize(("loading_s", "limit_s"), [(0.0, 30.0), (128.0, 158.0)])
def test_a_pause_for_new_weights_may_take_as_long_as_weights_of_that_size_need(
    loading_s: float, limit_s: float
) -> None:
    limits = replace(LIMITS, sync_s=500.0, pause_s=30.0)
    began = replace(at_work(), limits=limits).published(2).sync_began(1.0, loading_s)
    paused = began.answered(2.0, tokens=1, generating=3).answered(3.0, tokens=1, generating=3, paused=True)
    for second in range(5, int(limit_s) + 3, 2):
        paused = paused.answered(second, tokens=1, generating=0, paused=True)
        assert paused.state is State.STALE
    after = paused.answered(3.0 + limit_s, tokens=1, generating=0, paused=True)
    assert (after.state, after.why) == (
        State.DEAD,
        f"its core was paused for new weights for more than {limit_s:.0f} s",
    )


def test_a_pause_right_after_another_one_has_a_limit_too() -> None:
    limits = replace(LIMITS, sync_s=500.0, pause_s=30.0)
    first = replace(at_work(), limits=limits).published(2).sync_began(1.0)
    first = first.answered(2.0, tokens=1, generating=3, paused=True)
    second = first.synced(3.0, 2).published(3).sync_began(3.0)
    for now in range(4, 34, 2):
        second = second.answered(now, tokens=1, generating=3, paused=True)
        assert second.state is State.STALE
    assert second.answered(34.0, tokens=1, generating=3, paused=True).state is State.DEAD


def test_the_wait_for_the_bytes_is_no_part_of_a_pause_nor_is_a_pause_without_a_sync() -> None:
    """An engine that was left without whole weights stays paused while another reload is on its way to it."""
    limits = replace(LIMITS, sync_s=500.0, pause_s=30.0)
    left = (
        replace(serving(), limits=limits)
        .published(2)
        .sync_began(1.0)
        .answered(2.0, tokens=1, generating=0, paused=True)
    )
    left = left.sync_failed(3.0, Fault.HALFWAY, "").answered(4.0, tokens=1, generating=0, paused=True)
    for second in range(5, 105, 5):
        left = left.answered(second, tokens=1, generating=0, paused=True)
    left = left.sync_began(100.0)
    for second in range(105, 205, 5):
        left = left.answered(second, tokens=1, generating=0, paused=True)
    assert left.state is State.STALE


def test_a_sync_has_the_time_that_its_weights_need() -> None:
    slow = serving().published(2).sync_began(1.0, 10.0)
    for second in range(5, 80, 5):
        slow = slow.answered(second, tokens=1, generating=0)
        assert slow.state is State.STALE
    assert slow.tick(81.0).why == "loading new weights took more than 80 s"


def test_time_that_nobody_could_look_counts_against_no_engine() -> None:
    waiting = at_work().published(2).sync_began(1.0).answered(2.0, tokens=1, generating=3, paused=True)
    assert waiting.tick(60.0).state is State.DEAD
    assert waiting.excused(57.0).tick(60.0).state is State.STALE
    assert waiting.excused(57.0).tick(90.0).state is State.DEAD
    assert Health(began=0.0, limits=LIMITS).excused(50.0).tick(100.0).state is State.STARTING


def test_a_dead_one_says_why() -> None:
    stuck = at_work().answered(29.0, tokens=1, generating=3).tick(30.0)
    assert stuck.why == "no token for 30 s, with 3 requests under way"
    assert serving().tick(31.0).why == "its actor gave no answer for 31 s"
    assert at_work().raised(1.0, Fault.GONE, "OutOfMemoryError").why == "OutOfMemoryError"


def tokens_every(seconds: float, *, until: float, health: Health | None = None) -> Health:
    """An engine that samples a token in so many seconds, and answers every second."""
    health, tokens = health or at_work(), 1
    now = 0.0
    while now < until:
        now += 1.0
        tokens += now % seconds == 0
        health = health.answered(now, tokens=tokens, generating=1)
    return health


def test_an_engine_that_has_taken_long_for_a_token_may_take_four_times_as_long() -> None:
    slow = tokens_every(20.0, until=200.0)
    assert slow.slowest_s == 20.0
    assert slow.answered(239.0, tokens=99, generating=1).answered(278.0, tokens=99, generating=1).state is State.HEALTHY
    quiet = slow.answered(245.0, tokens=11, generating=1)
    assert quiet.state is State.SUSPECT
    assert quiet.answered(279.0, tokens=11, generating=1).state is State.SUSPECT
    assert quiet.answered(279.0, tokens=11, generating=1).answered(280.0, tokens=11, generating=1).state is State.DEAD


def test_one_long_token_does_not_hide_for_long_that_an_engine_hangs() -> None:
    """The first token may take minutes while code is compiled, and a machine may stand still once."""
    after = tokens_every(1.0, until=1300.0, health=replace(at_work(), slowest_s=100.0))
    assert after.slowest_s == pytest.approx(100.0 / 2 ** (1300.0 / PACE_HALVES_S))
    hangs = after
    for now in range(1301, 1330):
        hangs = hangs.answered(float(now), tokens=after.tokens, generating=1)
    assert hangs.state is State.SUSPECT
    assert hangs.answered(1330.0, tokens=after.tokens, generating=1).state is State.DEAD


def test_a_later_engine_of_the_run_has_the_pace_of_earlier_ones() -> None:
    slow = replace(at_work(), slowest_s=20.0).answered(60.0, tokens=1, generating=1)
    assert slow.answered(79.0, tokens=1, generating=1).state is State.SUSPECT
    assert slow.answered(79.0, tokens=1, generating=1).answered(80.0, tokens=1, generating=1).state is State.DEAD


def test_a_first_token_may_take_twelve_times_as_long() -> None:
    first = serving().answered(0.0, tokens=0, generating=1)
    for now in range(1, 360):
        first = first.answered(float(now), tokens=0, generating=1)
        assert first.state is (State.HEALTHY if now < 120 else State.SUSPECT)
    assert first.answered(360.0, tokens=0, generating=1).state is State.DEAD


def test_contexts_that_are_to_be_computed_first_have_the_time_that_they_need() -> None:
    long = at_work()
    for now in range(1, 160):
        long = long.answered(float(now), tokens=1, generating=3, expected_s=40.0)
        assert long.state is (State.HEALTHY if now < 80 else State.SUSPECT)
    assert long.answered(160.0, tokens=1, generating=3, expected_s=40.0).state is State.DEAD


def test_time_without_requests_or_in_a_pause_is_no_pace() -> None:
    idle = serving().answered(1.0, tokens=5, generating=0).answered(400.0, tokens=5, generating=1)
    assert idle.answered(401.0, tokens=6, generating=1).slowest_s == 1.0
    paused = at_work().published(2).sync_began(1.0).answered(2.0, tokens=1, generating=1, paused=True)
    for now in range(3, 45):
        paused = paused.answered(float(now), tokens=1, generating=1, paused=True)
    assert paused.synced(45.0, 2).answered(46.0, tokens=2, generating=1).slowest_s == 1.0


def test_a_start_that_shows_progress_without_an_end_is_late_at_last() -> None:
    health = Health(began=0.0, limits=LIMITS)
    for now in range(1, 800):
        health = health.starting(float(now), now)
        assert health.state is State.STARTING
    assert health.starting(800.0, 800).why == "it did not start within 800 s"


def test_by_default_half_a_minute_is_left_for_a_new_engine_to_come_up() -> None:
    assert HealthConfig().dead_s <= 30


class AnyHistory(RuleBasedStateMachine):
    """Everything in any order, against what is known of the engine beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.health = Health(began=0.0, limits=LIMITS)
        self.final: Health | None = None
        self.newest = 0
        self.whole = True
        self.last_sign = 0.0
        """When it last answered, and had sampled or had nothing to sample."""
        self.tokens = 0

    @rule(seconds=st.sampled_from([0.1, 1.0, 5.0, 9.9]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.health = self.health.tick(self.now)

    @precondition(lambda self: not self.health.up)
    @rule()
    def it_comes_up(self) -> None:
        self.health = self.health.came_up(self.now)
        self.last_sign = self.now

    @precondition(lambda self: self.health.up)
    @rule(sampled=st.integers(0, 2), generating=st.integers(0, 2), paused=st.booleans())
    def it_answers(self, sampled: int, generating: int, paused: bool) -> None:
        self.tokens += sampled
        self.health = self.health.answered(self.now, tokens=self.tokens, generating=generating, paused=paused)
        if sampled or paused or not generating:
            self.last_sign = self.now

    @rule()
    def weights_are_published(self) -> None:
        self.newest += 1
        self.health = self.health.published(self.newest)

    @precondition(lambda self: self.health.up and self.health.syncing_since is None)
    @rule()
    def a_sync_begins(self) -> None:
        self.health = self.health.sync_began(self.now)

    @precondition(lambda self: self.health.syncing_since is not None)
    @rule()
    def it_is_synced(self) -> None:
        self.health = self.health.synced(self.now, self.newest)
        self.whole, self.last_sign = True, self.now

    @precondition(lambda self: self.health.syncing_since is not None)
    @rule(fault=st.sampled_from(Fault))
    def a_sync_fails(self, fault: Fault) -> None:
        whole = self.whole
        self.health = self.health.sync_failed(self.now, fault, "x")
        self.whole = whole and fault in (Fault.REFUSED, Fault.NO_WEIGHTS)
        if fault not in (Fault.NO_WEIGHTS,) and not whole:
            assert self.health.state in FINAL, "there is one reload"

    @rule(fault=st.sampled_from([Fault.GONE, Fault.UNREACHABLE]))
    def a_call_fails(self, fault: Fault) -> None:
        self.health = self.health.raised(self.now, fault, "x")

    @rule()
    def nobody_needs_it(self) -> None:
        self.health = self.health.retired()

    @invariant()
    def the_end_is_final(self) -> None:
        if self.final is not None:
            assert self.health is self.final
        elif self.health.state in FINAL:
            self.final = self.health

    @invariant()
    def a_healthy_one_runs_the_newest_weights_whole(self) -> None:
        if self.health.state is State.HEALTHY:
            assert self.health.up
            assert self.whole
            assert self.health.holds == self.newest

    @invariant()
    def a_quiet_one_is_given_nothing_and_then_given_up(self) -> None:
        silent = self.now - self.health.answered_at
        if self.health.up and silent >= LIMITS.suspect_s:
            assert self.health.state in ((State.SUSPECT, *FINAL) if silent < LIMITS.dead_s else FINAL)

    @invariant()
    def one_that_gives_signs_is_left_alone(self) -> None:
        gone = self.health.why == "x"
        slow = self.health.why.startswith(("loading new", "it did not start", "its core was paused"))
        if self.health.state is State.DEAD and not gone and not slow:
            quiet = self.now - self.last_sign
            assert quiet >= LIMITS.dead_s - LIMITS.suspect_s


TestAnyHistory = AnyHistory.TestCase
TestAnyHistory.settings = settings(
    derandomize=True, max_examples=100, stateful_step_count=30, deadline=None, database=None
)
