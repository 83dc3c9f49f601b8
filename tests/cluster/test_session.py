"""How a job's Ray session starts."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator
from functools import partial
from signal import SIGKILL

import pytest
from ray.exceptions import ObjectStoreFullError, OutOfDiskError

from cluster.session import STARTS, SessionConfig, last_wish, run_interruptible, session, start, store_object
from coa.errors import ClusterDown, DiskFull
from tests.support.patience import PATIENCE_S

LATE = Exception("The current node timed out during startup. This could be")


class SlowToStart:
    """In place of Ray: so many starts time out, or fail otherwise."""

    def __init__(self, failures: int, error: Exception = LATE) -> None:
        self.failures, self.error, self.asked, self.shut_down = failures, error, [], 0

    def init(self, **settings: object) -> None:
        self.asked.append(settings)
        if len(self.asked) <= self.failures:
            raise self.error

    def shutdown(self) -> None:
        self.shut_down += 1


def started(monkeypatch: pytest.MonkeyPatch, ray: SlowToStart) -> SlowToStart:
    monkeypatch.setattr("ray.init", ray.init)
    monkeypatch.setattr("ray.shutdown", ray.shutdown)
    start(num_cpus=2)
    return ray


def at_once(monkeypatch: pytest.MonkeyPatch) -> SlowToStart:
    """In place of Ray, which starts at once, and of the cluster at an address."""
    ray = SlowToStart(0)
    monkeypatch.setattr("ray.init", ray.init)
    monkeypatch.setattr("ray.shutdown", ray.shutdown)
    monkeypatch.setattr("cluster.session.require_cluster", lambda _: None)
    return ray


def test_a_cluster_that_did_not_come_up_in_time_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = started(monkeypatch, SlowToStart(STARTS - 1))
    assert ray.asked == [{"num_cpus": 2}] * STARTS
    assert ray.shut_down == STARTS - 1


@pytest.mark.parametrize(("address", "asked"), [("", "local"), ("10.0.0.1:6379", "10.0.0.1:6379")])
def test_a_cluster_of_ones_own_is_started_whatever_runs_on_the_machine(
    monkeypatch: pytest.MonkeyPatch, address: str, asked: str
) -> None:
    ray = at_once(monkeypatch)
    monkeypatch.setenv("RAY_ADDRESS", address)
    with session(SessionConfig()):
        assert ray.asked[0]["address"] == asked


@pytest.mark.parametrize(
    ("python", "asked"),
    [("/home/größe 1/bin/python", "'/home/größe 1/bin/python'"), ("/home/me/bin/python", None)],
)
def test_workers_start_where_the_path_of_the_environment_has_a_blank(
    monkeypatch: pytest.MonkeyPatch, python: str, asked: str | None
) -> None:
    ray = at_once(monkeypatch)
    monkeypatch.setattr("sys.executable", python)
    with session(SessionConfig()), session(SessionConfig(address="10.0.0.1:6379")):
        assert [one["runtime_env"].get("py_executable") for one in ray.asked] == [asked, None]


def test_variables_of_the_recipe_arrive_in_every_part(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = at_once(monkeypatch)
    with session(SessionConfig(env={"NCCL_DEBUG": "INFO", "OMP_WAIT_POLICY": "ACTIVE"})):
        [asked] = ray.asked
    assert asked["runtime_env"]["env_vars"].items() >= {("NCCL_DEBUG", "INFO"), ("OMP_WAIT_POLICY", "ACTIVE")}
    for name in ("PYTHONPATH", "COA_EXTENSIONS"):
        with pytest.raises(ValueError, match=rf"env\.{name} is set by the product itself"):
            SessionConfig(env={name: "x"})


def test_one_that_never_comes_up_ends_in_a_typed_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ClusterDown, match=r"^Ray did not start in 3 tries: The current node timed out"):
        started(monkeypatch, SlowToStart(99))


@pytest.mark.parametrize("error", [Exception("no such address"), ValueError("it timed out during startup of x")])
def test_what_else_fails_is_not_tried_again(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    ray = SlowToStart(99, error)
    with pytest.raises(type(error), match=str(error)):
        started(monkeypatch, ray)
    assert len(ray.asked) == 1


def test_what_a_failed_start_has_left_running_is_ended_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    class Leaving(SlowToStart):
        def init(self, **settings: object) -> None:
            left.append(subprocess.Popen(["sleep", "60"]))
            super().init(**settings)

    left: list[subprocess.Popen[bytes]] = []
    other = subprocess.Popen(["sleep", "60"])
    try:
        started(monkeypatch, Leaving(2))
        assert [process.wait(PATIENCE_S) for process in left[:2]] == [-SIGKILL] * 2
        assert [process.poll() for process in (other, left[2])] == [None, None]
    finally:
        for process in (other, *left):
            process.kill()
            process.wait()


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Without a word on Ray's tokens, and as it was at the end, with this process's own way to terminate."""
    ray, before = SlowToStart(0), signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr("ray.init", ray.init)
    monkeypatch.setattr("ray.shutdown", ray.shutdown)
    monkeypatch.setattr("cluster.session.require_cluster", lambda _: None)
    variables = dict(os.environ)
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_ADDRESS"):
        variables.pop(name, None)
    monkeypatch.setattr("os.environ", variables)
    yield variables
    signal.signal(signal.SIGTERM, before)


def test_a_private_cluster_has_a_token_that_nobody_else_has(environment: dict[str, str]) -> None:
    with session(SessionConfig()):
        pass
    assert environment["RAY_AUTH_MODE"] == "token"
    first = environment.pop("RAY_AUTH_TOKEN")
    del environment["RAY_AUTH_MODE"]
    with session(SessionConfig()):
        pass
    assert len(first) == len(environment["RAY_AUTH_TOKEN"]) == 64
    assert first != environment["RAY_AUTH_TOKEN"]


@pytest.mark.parametrize("settings", [{"RAY_AUTH_MODE": "disabled"}, {"RAY_ADDRESS": "10.0.0.1:6379"}])
def test_what_is_set_and_a_cluster_that_is_there_keep_their_way(
    environment: dict[str, str], settings: dict[str, str]
) -> None:
    environment |= settings
    with session(SessionConfig()):
        pass
    assert "RAY_AUTH_TOKEN" not in environment
    assert environment.get("RAY_AUTH_MODE") == settings.get("RAY_AUTH_MODE")


def test_who_is_told_to_terminate_ends_as_one_that_is_interrupted(environment: dict[str, str]) -> None:
    assert environment
    with pytest.raises(KeyboardInterrupt), session(SessionConfig()):
        signal.raise_signal(signal.SIGTERM)


@pytest.fixture(params=[signal.default_int_handler, signal.SIG_IGN], ids=["heeds", "ignores"])
def sigint(request: pytest.FixtureRequest) -> Iterator[object]:
    """What this process does on SIGINT: a shell has those ignore it that it starts in the background."""
    before = signal.signal(signal.SIGINT, request.param)
    yield request.param
    signal.signal(signal.SIGINT, before)


def test_a_body_that_is_told_to_terminate_ends_in_its_own_way(environment: dict[str, str], sigint: object) -> None:
    assert environment
    ends: list[str] = []

    async def ends_in_order() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
            await asyncio.sleep(PATIENCE_S)
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            ends.append("in order")

    with session(SessionConfig()):
        try:
            run_interruptible(ends_in_order())
        except KeyboardInterrupt:  # it would end the tests
            pytest.fail("it was interrupted wherever it was")
    assert ends == ["in order"]
    assert signal.getsignal(signal.SIGINT) is sigint


def test_a_second_request_to_terminate_interrupts_what_the_body_does_at_its_end(
    environment: dict[str, str], sigint: object
) -> None:
    assert environment
    assert sigint

    async def never_ends() -> None:
        signal.raise_signal(signal.SIGTERM)
        try:
            await asyncio.sleep(PATIENCE_S)
        finally:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt), session(SessionConfig()):
        run_interruptible(never_ends())


def test_a_body_whose_process_ignores_sigint_is_not_interrupted_by_one(environment: dict[str, str]) -> None:
    assert environment

    async def body() -> None:
        signal.raise_signal(signal.SIGINT)
        await asyncio.sleep(0)

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with session(SessionConfig()):
            run_interruptible(body())
    finally:
        signal.signal(signal.SIGINT, before)


def sigterm(times: int, granted: list[str]) -> None:
    """So many of them in a session with a last wish."""
    with session(SessionConfig()), last_wish(partial(granted.append, "one")):
        with last_wish(partial(granted.append, "of a context that is over")):
            pass
        for _ in range(times):
            signal.raise_signal(signal.SIGTERM)


def test_the_first_sigterm_grants_a_last_wish(environment: dict[str, str]) -> None:
    assert environment
    granted: list[str] = []
    sigterm(1, granted)
    assert granted == ["one"]
    with pytest.raises(KeyboardInterrupt):
        sigterm(2, granted)
    assert granted == ["one", "one"]


@pytest.mark.parametrize("error", [ObjectStoreFullError("full"), OutOfDiskError("Local disk is full")])
def test_a_full_object_store_is_told_of_in_one_line(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def put(_: object) -> None:
        raise error

    monkeypatch.setattr("ray.put", put)
    with pytest.raises(DiskFull, match=r"^Ray's object store is full, and so is the disk .*object_store_gib$"):
        store_object(1)
