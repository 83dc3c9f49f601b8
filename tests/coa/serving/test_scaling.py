"""How many replicas a load needs."""

from hypothesis import given
from hypothesis import strategies as st

from coa.serving.scaling import ReplicaLoad, ScalingConfig, wanted

CONFIG = ScalingConfig(target_requests=10, target_kv_use=0.8, slack=0.7)
LOADS = st.lists(st.builds(ReplicaLoad, st.floats(0, 500), st.floats(0, 1)), max_size=8)


def at(*loads: tuple[float, float], queued: float = 0, now: int = 1, least: int = 1, most: int = 8) -> int:
    return wanted([ReplicaLoad(*one) for one in loads], queued=queued, now=now, config=CONFIG, least=least, most=most)


def test_more_replicas_where_there_are_more_requests_than_the_target() -> None:
    assert at((10, 0)) == 1
    assert at((10.1, 0)) == 2
    assert at((10, 0), queued=15) == 3
    assert at((35, 0)) == 4


def test_more_replicas_where_the_kv_cache_fills_up() -> None:
    assert at((2, 0.8)) == 1
    assert at((2, 0.9)) == 2
    assert at((2, 0.9), (2, 0.9), now=2) == 3


def test_fewer_only_where_the_rest_has_slack() -> None:
    assert at((5, 0), (4, 0), now=2) == 2, "9 of 10 are too many for one"
    assert at((4, 0), (3, 0), now=2) == 1
    assert at((0, 0), (0, 0), (0, 0), now=3) == 1


def test_none_only_without_any_request() -> None:
    assert at((0, 0), now=1, least=0) == 0
    assert at((0.1, 0), now=1, least=0) == 1
    assert at(queued=1, now=0, least=0) == 1


@given(LOADS, st.floats(0, 500), st.integers(0, 8))
def test_the_number_is_within_its_bounds(loads: list[ReplicaLoad], queued: float, now: int) -> None:
    assert 1 <= wanted(loads, queued=queued, now=now, config=CONFIG, least=1, most=5) <= 5


@given(LOADS, st.floats(0, 500), st.floats(0, 100), st.integers(0, 8))
def test_a_larger_load_never_wants_fewer(loads: list[ReplicaLoad], queued: float, more: float, now: int) -> None:
    def found(queued: float) -> int:
        return wanted(loads, queued=queued, now=now, config=CONFIG, least=0, most=100)

    assert found(queued + more) >= found(queued)


@given(st.integers(0, 2000))
def test_a_load_that_stays_comes_to_rest_at_once(requests: int) -> None:
    """What is wanted now is wanted again once it is there: no adding and removing in turns."""
    for before in range(1, 30):
        now = wanted([], queued=requests, now=before, config=CONFIG, least=1, most=1000)
        assert wanted([], queued=requests, now=now, config=CONFIG, least=1, most=1000) == now
        assert now * CONFIG.target_requests >= requests, "all of it fits"
