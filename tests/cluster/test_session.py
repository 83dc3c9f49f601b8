"""How a job's Ray session starts."""

import pytest

from cluster.session import STARTS, start
from coa.errors import ClusterDown


class SlowToStart:
    """In place of Ray: so many starts time out, or fail otherwise."""

    def __init__(self, failures: int, error: str = "The current node timed out during startup. This could be") -> None:
        self.failures, self.error, self.asked, self.shut_down = failures, error, [], 0

    def init(self, **settings: object) -> None:
        self.asked.append(settings)
        if len(self.asked) <= self.failures:
            raise Exception(self.error)

    def shutdown(self) -> None:
        self.shut_down += 1


def started(monkeypatch: pytest.MonkeyPatch, ray: SlowToStart) -> SlowToStart:
    monkeypatch.setattr("ray.init", ray.init)
    monkeypatch.setattr("ray.shutdown", ray.shutdown)
    start(num_cpus=2)
    return ray


def test_a_cluster_that_did_not_come_up_in_time_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = started(monkeypatch, SlowToStart(STARTS - 1))
    assert ray.asked == [{"num_cpus": 2}] * STARTS
    assert ray.shut_down == STARTS - 1


def test_one_that_never_comes_up_ends_in_a_typed_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ClusterDown, match=r"^Ray did not start in 3 tries: The current node timed out"):
        started(monkeypatch, SlowToStart(99))


def test_what_else_fails_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = SlowToStart(99, "no such address")
    with pytest.raises(Exception, match="no such address"):
        started(monkeypatch, ray)
    assert len(ray.asked) == 1
