"""The simulation against cases whose times are known, and its bound on staleness."""

from dataclasses import dataclass, replace
from random import Random
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coa.learning.window import WindowConfig
from coa.planning.engine import Speeds, StepTimes
from coa.planning.side_by_side import Case, one_by_one, side_by_side
from coa.planning.simulation import Forecast, LoopShape, simulate, standard_error
from coa.planning.workload import Assumed, GroupWork, Latency, RecordedEpisode, Turn

FREE = Speeds(
    steps=StepTimes.linear(0.0),
    prefill_s=0.0,
    trained_token_s=0.0,
    update_s=0.0,
    publish_s=0.0,
    load_s=0.0,
    pause_s=0.0,
)
SHAPE = LoopShape(
    window=WindowConfig(max_staleness=0, groups_per_batch=4, max_refills=0),
    engines=1,
    ranks=1,
    steps=10,
    max_requests=64,
    places=128,
)


@dataclass(frozen=True)
class Same:
    """Groups of two episodes that are all alike."""

    episode: tuple[Turn, ...] = (Turn(prompt=0, sampled=10),)
    kept: bool = True

    def draw(self, random: Random) -> GroupWork:
        return GroupWork((self.episode, self.episode), self.kept)


def approx(value: float) -> object:
    return pytest.approx(value, rel=1e-9)


def test_without_staleness_a_version_takes_the_sum_of_its_parts() -> None:
    speeds = replace(
        FREE, steps=StepTimes.linear(0.1), update_s=2.0, trained_token_s=0.01, publish_s=0.5, load_s=0.25, pause_s=0.75
    )
    found = simulate(SHAPE, speeds, Same())
    learning = 2.0 + 80 * 0.01
    version = 10 * 0.1 + learning + 0.5 + 0.25 + 0.75
    assert found.seconds == approx(10 * version)
    assert (found.trajectories, found.trained, found.tokens) == (80, 80, 800)
    assert found.trajectories_s == approx(8 / version)
    assert found.engine == {
        "generating": approx(1.0 / version),
        "syncing": approx(0.75 / version),
        "waiting_for_weights": approx((learning + 0.75) / version),
    }
    assert found.learner["learning"] == approx(learning / version)
    assert found.learner["publishing"] == approx(0.5 / version)
    assert (found.staleness_mean, found.staleness_max) == (0.0, 0)


@pytest.mark.parametrize(("step_s", "update_s"), [(0.3, 1.0), (0.1, 4.0)])
def test_with_staleness_the_slower_half_alone_decides(step_s: float, update_s: float) -> None:
    shape = replace(SHAPE, window=replace(SHAPE.window, max_staleness=2), steps=40)
    found = simulate(shape, replace(FREE, steps=StepTimes.linear(step_s), update_s=update_s), Same(), warm=10)
    # Each of the window's three batches is played, then trained, and its slots are free again.
    assert found.trained_s == approx(8 / max(update_s, (10 * step_s + update_s) / 3))
    assert found.staleness_max <= 2


def test_where_learners_are_slower_samples_are_no_staler_than_keeps_them_busy() -> None:
    shape = replace(SHAPE, window=replace(SHAPE.window, max_staleness=4), steps=60)
    found = simulate(shape, replace(FREE, steps=StepTimes.linear(0.1), update_s=4.0), Same(), warm=20)
    assert found.trained_s == approx(8 / 4.0)
    assert found.error == pytest.approx(0.0, abs=1e-9), "the window's filling is left out"
    assert (found.staleness_mean, found.staleness_max) == (1.0, 1)


def test_a_step_takes_longer_the_more_requests_it_has() -> None:
    found = simulate(replace(SHAPE, steps=1), replace(FREE, steps=StepTimes.linear(0.1, 0.05)), Same())
    assert found.seconds == approx(10 * (0.1 + 8 * 0.05))


def test_requests_beyond_the_batch_and_episodes_beyond_the_places_wait() -> None:
    speeds = replace(FREE, steps=StepTimes.linear(0.1))
    assert simulate(replace(SHAPE, steps=1, max_requests=2), speeds, Same()).seconds == approx(4.0)
    assert simulate(replace(SHAPE, steps=1, places=4), speeds, Same()).seconds == approx(2.0)
    assert simulate(replace(SHAPE, steps=1, places=4, engines=2), speeds, Same()).seconds == approx(1.0)


def test_tools_are_waited_for_and_other_episodes_go_on() -> None:
    episode = (Turn(prompt=0, sampled=10, tool_s=3.0), Turn(prompt=0, sampled=10))
    found = simulate(replace(SHAPE, steps=1), replace(FREE, steps=StepTimes.linear(0.1)), Same(episode))
    assert found.seconds == approx(5.0)
    assert found.engine["waiting_for_tools"] == approx(3.0 / 5.0)


def test_prompts_stop_the_engine_and_new_weights_have_them_computed_again() -> None:
    episode = (Turn(prompt=7, sampled=10),)
    speeds = replace(FREE, steps=StepTimes.linear(0.1), prefill_s=0.01)
    assert simulate(replace(SHAPE, steps=1), speeds, Same(episode)).seconds == approx(1.0 + 8 * 7 * 0.01)
    # Two batches are under way when the first one's weights arrive, half of a second after both began.
    window = WindowConfig(max_staleness=1, groups_per_batch=1, max_refills=0)
    turns = (Turn(prompt=0, sampled=5, tool_s=1.0), Turn(prompt=20, sampled=5))
    shape = replace(SHAPE, steps=2, window=window, max_requests=2)
    kept = simulate(replace(shape, recompute=False), speeds, Same(turns))
    again = simulate(shape, speeds, Same(turns))
    assert again.seconds > kept.seconds


def test_two_ranks_train_twice_the_tokens() -> None:
    speeds = replace(FREE, trained_token_s=0.1, update_s=1.0)
    one, two = (simulate(replace(SHAPE, ranks=ranks), speeds, Same()) for ranks in (1, 2))
    assert (one.seconds, two.seconds) == (approx(10 * 9.0), approx(10 * 5.0))


def test_groups_that_say_nothing_are_replaced_as_often_as_the_window_allows() -> None:
    shape = replace(SHAPE, window=replace(SHAPE.window, max_refills=1))
    found = simulate(shape, replace(FREE, steps=StepTimes.linear(0.1), update_s=1.0), Same(kept=False))
    assert (found.trajectories, found.trained) == (160, 0)
    assert found.seconds == approx(10 * (2 * 1.0 + 1.0))


@dataclass
class Alternating:
    """Every other group says nothing."""

    groups: int = 0

    def draw(self, random: Random) -> GroupWork:
        self.groups += 1
        return GroupWork(((Turn(prompt=0, sampled=10),),), self.groups % 2 == 0)


def test_spare_groups_spare_the_wait_for_those_that_replace_others() -> None:
    shape = replace(SHAPE, steps=1, window=replace(SHAPE.window, max_refills=2))
    speeds = replace(FREE, steps=StepTimes.linear(0.1), update_s=1.0)
    later = simulate(shape, speeds, Alternating())
    beside = simulate(replace(shape, window=replace(shape.window, spares=4)), speeds, Alternating())
    assert later.seconds == approx(4 * 1.0 + 1.0), (
        "four, two, one and one more, of which two, one, none and one are kept"
    )
    assert beside.seconds == approx(1.0 + 1.0)
    assert (later.trained, beside.trained) == (4, 4)


def test_what_happens_before_the_warm_up_ends_does_not_count() -> None:
    found = simulate(SHAPE, replace(FREE, steps=StepTimes.linear(0.1), update_s=1.0), Same(), warm=4)
    assert found.seconds == approx(6 * 2.0)
    assert found.trained == 48


def test_engines_play_on_beyond_the_last_version_that_counts() -> None:
    """A run's end, at which they have nothing to play, says nothing of its rate."""
    shape = replace(SHAPE, window=replace(SHAPE.window, max_staleness=1))
    found = simulate(shape, replace(FREE, steps=StepTimes.linear(0.1), update_s=1.0), Same())
    assert found.trajectories > found.trained == 80


def test_an_update_takes_as_long_as_its_longest_sample() -> None:
    """Of eight samples of ten tokens each: however many ranks there are, each update is one of ten tokens at least."""
    shape = replace(SHAPE, window=replace(SHAPE.window, max_staleness=4), steps=30)
    speeds = replace(FREE, steps=StepTimes.linear(0.0001), trained_token_s=0.1)
    for ranks, updates, seconds in ((1, 1, 8.0), (4, 1, 2.0), (64, 1, 1.0), (64, 2, 2.0)):
        found = simulate(replace(shape, ranks=ranks, updates=updates), speeds, Same(), warm=10)
        assert found.trained_s == approx(8 / seconds)
    found = simulate(replace(shape, ranks=64, sequence_parallel=4), speeds, Same(), warm=10)
    assert found.trained_s == approx(8 / 0.25)


def test_weights_are_copied_from_node_to_node() -> None:
    def copies(engines: int) -> int:
        return replace(SHAPE, engines=engines, engines_per_node=2.0).copies

    assert [copies(engines) for engines in (1, 2, 4, 6, 14, 512)] == [1, 1, 2, 2, 3, 9]
    assert SHAPE.copies == 1


def test_what_the_cache_lacks_is_computed_again() -> None:
    """Two turns of five tokens after a prompt of 90. The cache holds one such episode, so the first that goes on finds
    its own tokens, and the second finds half of its 95."""

    class Two(Same):
        def draw(self, random: Random) -> GroupWork:
            return GroupWork(((Turn(90, 5), Turn(0, 5)),) * 2, kept=True)

    window = WindowConfig(max_staleness=0, groups_per_batch=1, max_refills=0)
    shape = replace(SHAPE, window=window, steps=3, recompute=False)
    speeds = replace(FREE, steps=StepTimes.linear(0.0), prefill_s=1.0)
    seconds = [simulate(replace(shape, cache=cache), speeds, Two()).seconds / 3 for cache in (1e9, 95.0)]
    assert seconds == [approx(180.0), approx(180.0 + 95 / 2)]


def test_the_standard_error_is_that_of_draws_of_which_the_spread_is_known() -> None:
    random = Random(0)
    errors = []
    for _ in range(400):
        ends = [0.0]
        for _ in range(100):
            ends.append(ends[-1] + random.uniform(0.5, 1.5))  # a relative spread of 0.289 each
        errors.append(standard_error([(end, 8 * version) for version, end in enumerate(ends)]))
    assert fmean(errors) == pytest.approx(0.0289, rel=0.06)
    assert standard_error([(float(version), 8 * version) for version in range(101)]) == approx(0.0)
    assert standard_error([(0.0, 0), (1.0, 8)]) is None
    assert standard_error([(0.0, 0), (1.0, 0), (2.0, 0)]) is None


def test_rare_slow_calls_make_a_forecast_uncertain() -> None:
    """The steady state of a run of few steps, as long as the simulation's budget allows."""
    work = Assumed(group=8, max_turns=2, max_tokens=200, max_observation=20, latency=Latency(0.3, 3.0))
    window = WindowConfig(max_staleness=4, groups_per_batch=4, max_refills=0)
    speeds = replace(FREE, steps=StepTimes.linear(0.002), update_s=0.1)
    shapes = [replace(SHAPE, window=window, steps=5 + measured) for measured in (10, 160)]
    short, long = (simulate(shape, speeds, work, warm=5).error or 0.0 for shape in shapes)
    assert short > 2 * long > 0.01


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    staleness=st.integers(0, 3),
    groups=st.integers(1, 5),
    refills=st.integers(0, 2),
    engines=st.integers(1, 3),
    update_s=st.floats(0.0, 5.0),
    pause_s=st.floats(0.0, 1.0),
    seed=st.integers(0, 100),
)
def test_no_token_is_older_than_the_bound(
    staleness: int, groups: int, refills: int, engines: int, update_s: float, pause_s: float, seed: int
) -> None:
    window = WindowConfig(max_staleness=staleness, groups_per_batch=groups, max_refills=refills)
    shape = replace(SHAPE, window=window, engines=engines, steps=8, max_requests=3, places=6)
    work = Assumed(group=3, max_turns=4, max_tokens=400, max_observation=20, latency=Latency(0.5, 20.0))
    speeds = replace(FREE, steps=StepTimes.linear(0.01), update_s=update_s, pause_s=pause_s)
    found: Forecast = simulate(shape, speeds, work, seed=seed)
    assert found.staleness_max <= staleness
    assert 0 <= found.staleness_mean <= staleness
    assert sum(found.engine.values()) == pytest.approx(1)
    assert sum(found.learner.values()) == pytest.approx(1)
    assert found.trained <= found.trajectories


def test_a_recorded_episode_keeps_its_tokens() -> None:
    turns = RecordedEpisode(tokens=100, sampled=31, turns=3, tools=("code", "code")).turns_of([0.5, 0.25])
    assert [turn.sampled for turn in turns] == [10, 10, 11]
    assert sum(turn.prompt for turn in turns) == 69
    assert [turn.tool_s for turn in turns] == [0.5, 0.25, 0.0]


def test_latencies_have_their_median_and_their_percentile() -> None:
    random, latency = Random(0), Latency(0.3, 3.0)
    drawn = sorted(latency.draw(random) for _ in range(4000))
    assert drawn[2000] == pytest.approx(0.3, rel=0.1)
    assert drawn[3960] == pytest.approx(3.0, rel=0.15)


def test_side_by_side_they_are_what_they_are_one_by_one() -> None:
    work = Assumed(group=4, max_turns=3, max_tokens=400, max_observation=50)
    cases = [Case(replace(SHAPE, engines=engines), FREE, work, seed=3) for engines in (1, 2)]
    with side_by_side() as play:
        assert list(play(cases)) == one_by_one(cases)
