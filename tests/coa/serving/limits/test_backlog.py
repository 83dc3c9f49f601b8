"""The expected wait of tool calls, and which requests it refuses."""

import pytest

from coa.serving.faults import ApiError
from coa.serving.limits.backlog import WINDOW_S, Backlog, Calls


def test_the_wait_is_how_many_wait_by_how_many_ran_a_second() -> None:
    backlog = Backlog(max_wait_s=5.0)
    backlog.see(100.0, {"code": Calls(ran=40, waiting=8)})
    assert backlog.wait_s == 0.0, "of one look nothing follows"
    backlog.see(102.0, {"code": Calls(ran=44, waiting=8), "web_search": Calls(ran=0, waiting=0)})
    assert backlog.wait_s == 4.0
    backlog.check()
    backlog.see(104.0, {"code": Calls(ran=48, waiting=12)})
    assert backlog.wait_s == 6.0
    with pytest.raises(ApiError, match="overloaded") as refused:
        backlog.check()
    assert (refused.value.status, refused.value.headers()) == (429, {"Retry-After": "1"})
    backlog.see(106.0, {"code": Calls(ran=60, waiting=0)})
    backlog.check()


def test_calls_that_do_not_run_at_all_wait_longer_and_longer() -> None:
    backlog = Backlog(max_wait_s=30.0)
    for at in range(0, 10, 2):
        backlog.see(float(at), {"code": Calls(ran=7, waiting=3)})
    assert backlog.wait_s == 24.0
    backlog.see(10.0, {"code": Calls(ran=7, waiting=4)})
    with pytest.raises(ApiError) as refused:
        backlog.check()
    assert refused.value.retry_after_s == 10.0


def test_only_the_last_seconds_count() -> None:
    backlog = Backlog(max_wait_s=1.0)
    for second in range(60):
        backlog.see(float(second), {"code": Calls(ran=100 * second, waiting=0)})
    backlog.see(60.0, {"code": Calls(ran=5900, waiting=10)})
    assert backlog.wait_s == 0.0, "a burst after a rest has not waited yet"
    for second in range(61, 75):
        backlog.see(float(second), {"code": Calls(ran=5900, waiting=10)})
    assert backlog.wait_s == 10 * WINDOW_S
