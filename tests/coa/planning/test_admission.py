"""Which engine gets an episode, and how many it may have."""

import random
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from coa.planning.admission import ROOM, Admission, Lengths, Load, burden

REPORTS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 5), st.sampled_from([0, 0, 0, 1, 7]), st.floats(0, 4)), max_size=60
)


def test_an_engine_with_fewer_tokens_under_way_is_first_though_it_has_more_episodes() -> None:
    lengths = Lengths(15_000.0)
    long, short = Load(300_000, 10), Load(11_000, 11)
    assert burden(short, lengths) < burden(long, lengths)


def test_episodes_that_begin_at_one_moment_are_spread() -> None:
    """One engine has a few tokens less, and still does not get all of them."""
    loads, lengths = [Load(990, 2), Load(1000, 2)], Lengths(500.0)
    for _ in range(20):
        least = min(range(2), key=lambda one: burden(loads[one], lengths))
        loads[least] = Load(loads[least].tokens, loads[least].episodes + 1)
    assert [load.episodes for load in loads] == [12, 12]


def test_as_many_tokens_on_fewer_episodes_are_less_to_do() -> None:
    assert burden(Load(100, 1), Lengths(0.0)) < burden(Load(100, 2), Lengths(0.0))


def test_lengths_are_those_of_the_last_hundred_episodes_or_so() -> None:
    lengths = Lengths(32_768.0)
    for tokens in (100, 300):
        lengths = lengths.ended(tokens)
    assert lengths == Lengths(200.0, 2)
    for _ in range(2000):
        lengths = lengths.ended(1000)
    assert 999.99 < lengths.mean < 1000


@given(reports=REPORTS, most=st.integers(1, 30))
def test_the_limit_is_between_one_and_all_places_and_moves_only_for_a_reason(
    reports: list[tuple[int, int, int, float]], most: int
) -> None:
    admission, preempted = Admission.of(most), False
    for episodes, ended, preemptions, kv_use in reports:
        before = admission
        admission = before.after(episodes=episodes, ended=ended, preemptions=preemptions, kv_use=kv_use)
        preempted |= preemptions > 0
        assert 1 <= admission.places <= most
        assert admission.places - before.places <= 1
        if not preempted:
            assert admission == Admission.of(most)
        if not preemptions:
            assert admission.places >= before.places


def test_a_preemption_cuts_the_limit_once_until_the_cut_has_taken_effect() -> None:
    admission = Admission.of(100).after(episodes=80, ended=0, preemptions=3, kv_use=1.4)
    assert admission == Admission(100, 72, full=1.4)
    still = admission.after(episodes=79, ended=1, preemptions=5, kv_use=1.4)
    assert still.places == 72
    assert still.after(episodes=72, ended=0, preemptions=1, kv_use=1.2) == Admission(100, 64, full=1.2)


def test_the_limit_grows_by_one_when_as_many_episodes_as_it_allows_have_ended() -> None:
    admission = Admission(100, 3, full=2.0)
    grown = [admission := admission.after(episodes=3, ended=1, preemptions=0, kv_use=1.0) for _ in range(7)]
    assert [one.places for one in grown] == [3, 3, 4, 4, 4, 4, 5]
    assert Admission(4, 3, ended=2).after(episodes=3, ended=1, preemptions=0, kv_use=0.1) == Admission.of(4)


def test_the_limit_does_not_grow_while_the_cache_is_as_full_as_when_it_was_too_full() -> None:
    admission = Admission(100, 2, full=2.0)
    for _ in range(9):
        admission = admission.after(episodes=2, ended=1, preemptions=0, kv_use=2.0 * ROOM)
    assert admission.places == 2
    assert admission.after(episodes=2, ended=0, preemptions=0, kv_use=1.5).places == 3


# --- an engine with a small cache ---------------------------------------------------------------------------------


@dataclass
class Request:
    length: int
    context: int = 0
    cached: bool = False


@dataclass
class Played:
    preemptions: int
    seconds: float
    fewest: int
    """Places."""


def step(requests: list[Request], cache: int) -> tuple[int, float]:
    """A token for each request that the cache has room for, the oldest first; a request without room for its next one
    takes that of the youngest. Returns how many lost theirs, and how long it took: contexts are computed again."""
    preemptions, computed, used = 0, 0, sum(one.context for one in requests if one.cached)
    for request in requests:
        if request.cached or used + request.context < cache:
            if not request.cached:
                computed, used, request.cached = computed + request.context, used + request.context, True
            while used >= cache:
                youngest = [one for one in requests if one.cached][-1]
                youngest.cached, used, preemptions = False, used - youngest.context, preemptions + 1
            if request.cached:
                request.context, used = request.context + 1, used + 1
    return preemptions, 1 + 0.005 * computed


def played(cache: int, most: int, *, limited: bool, episodes: int = 3000) -> Played:
    """Episodes of 50 to 400 tokens on such an engine, which is given another one for each that ends."""
    dice, admission = random.Random(0), Admission.of(most)
    requests: list[Request] = []
    preemptions, seconds, ended, fewest = 0, 0.0, 0, most
    while ended < episodes:
        while len(requests) < (admission.places if limited else most):
            requests.append(Request(dice.randint(50, 400)))
        held, kv_use = len(requests), sum(one.context for one in requests) / cache
        lost, took = step(requests, cache)
        requests = [one for one in requests if one.context < one.length]
        done = held - len(requests)
        preemptions, seconds, ended = preemptions + lost, seconds + took, ended + done
        admission = admission.after(episodes=held, ended=done, preemptions=lost, kv_use=kv_use)
        fewest = min(fewest, admission.places)
    return Played(preemptions, seconds, fewest)


def test_preemptions_are_rare_where_the_plain_limit_has_them_all_the_time() -> None:
    plain, limited = played(2000, 60, limited=False), played(2000, 60, limited=True)
    assert limited.preemptions < 0.03 * plain.preemptions
    assert limited.seconds < 1.25 * plain.seconds, "and the engine is kept busy"


def test_nothing_is_limited_where_the_cache_is_large_enough() -> None:
    found = played(60 * 400, 60, limited=True)
    assert (found.preemptions, found.fewest) == (0, 60)
    assert found == played(60 * 400, 60, limited=False)
