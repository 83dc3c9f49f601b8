"""The Ray session that a job runs in: the cluster of RAY_ADDRESS, or a private one on this machine."""

import asyncio
import logging
import os
import secrets
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import psutil

from cluster.remote.reach import require_cluster
from coa.bounds import Above0, AtLeast1
from coa.concurrency import Work
from coa.errors import ClusterDown, DiskFull
from coa.extensions import VARIABLE
from coa.user_reward import VARIABLE as FUNCTION

if TYPE_CHECKING:
    import ray

T = TypeVar("T")
STARTS = 3
MODE, TOKEN = "RAY_AUTH_MODE", "token"
TIMED_OUT = "timed out during startup"
"""Part of Ray's message about a node that did not start."""


OWN = {"PYTHONPATH", "PYTHONUTF8", VARIABLE, FUNCTION}
"""Variables of workers that can't be set otherwise."""


@dataclass(frozen=True)
class SessionConfig:
    """The Ray cluster that a command runs on."""

    address: str | None = None
    """Address of a running cluster (host:port, or `auto`). None: the environment variable RAY_ADDRESS; if it is not
    set, the command starts Ray on this machine."""
    cpus: AtLeast1 | None = None
    """Number of CPUs of a Ray cluster that the command starts. None: all of the machine."""
    object_store_gib: Above0 = 1.0
    """Size of Ray's object store in GiB, if the command starts Ray. Raise it if a message says that the object store is
    full."""
    env: dict[str, str] = field(default_factory=dict[str, str])
    """Environment variables of engines, learners and all other parts, on every node, such as `{NCCL_DEBUG: INFO}`. They
    are written down with the other settings, so none may be a secret."""

    def __post_init__(self) -> None:
        if taken := sorted(OWN & self.env.keys()):
            raise ValueError(f"env.{taken[0]} is set by the product itself")


def address_of(config: SessionConfig) -> str | None:
    """Address of the cluster that a job joins; None if it starts its own."""
    return config.address or os.environ.get("RAY_ADDRESS") or None


@contextmanager
def session(config: SessionConfig) -> Iterator[None]:
    """Connects to Ray for the context. A private cluster ends with it; a joined cluster keeps running.

    Raises UserError if no compatible cluster answers at the address.
    """
    address = address_of(config)
    if address is not None and address != "local":
        require_cluster(address)
    if address is None:
        own_token()
    # By default a learner's report waits up to two seconds for the controller's next poll.
    os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.2")
    # On a busy machine a Serve proxy does not start within the default 5 s, and the server fails with it.
    os.environ.setdefault("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "60")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    import ray

    private = (
        {}
        if address
        else {
            "num_cpus": config.cpus or os.cpu_count(),
            "object_store_memory": int(config.object_store_gib * 2**30),
            "include_dashboard": False,
        }
    )
    start(
        # By default Ray would join any cluster that is already running on this machine.
        address=address or "local",
        namespace="coa",
        log_to_driver=False,
        logging_level=logging.ERROR,
        configure_logging=True,
        runtime_env={"env_vars": _worker_environment() | config.env, **({} if address else _worker_python())},
        **private,
    )
    _end_as_interrupted()
    try:
        yield
    finally:
        ray.shutdown()


def store_object(value: T) -> "ray.ObjectRef[T]":
    """Puts the value into Ray's object store and returns a reference. Raises DiskFull if neither the store nor the disk
    that it spills to has room."""
    import ray
    from ray.exceptions import ObjectStoreFullError, OutOfDiskError

    try:
        return ray.put(value)
    except (ObjectStoreFullError, OutOfDiskError) as error:
        raise DiskFull(
            "Ray's object store is full, and so is the disk that it spills to: make room there, or raise "
            "session.object_store_gib"
        ) from error


def own_token() -> None:
    """Makes clusters that this process starts require a token, unless the environment sets the authentication mode.

    Ray's ports are open to the network even for a private cluster, and a client that can call them can run code here.
    The token is unique to this session and not stored in any file.
    """
    if MODE not in os.environ:
        os.environ[MODE] = TOKEN
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        read_again()


def read_again() -> None:
    """Makes Ray read its authentication settings again, since it read them when it was imported, which happens with the
    recipe's types."""
    from ray._raylet import AuthenticationTokenLoader, Config  # pyright: ignore[reportAttributeAccessIssue]

    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


_last_wishes: list[Callable[[], object]] = []
"""Functions that SIGTERM calls instead of interrupting; only the last one is called."""


@contextmanager
def last_wish(act: Callable[[], object]) -> Iterator[None]:
    """Within the context, the first SIGTERM calls `act`, which has to call `interrupt` in the end; the next one
    interrupts."""
    _last_wishes.append(act)
    try:
        yield
    finally:
        if act in _last_wishes:
            _last_wishes.remove(act)


_taken_over: list[Callable[[int, FrameType | None], Any] | int | None] = []
"""asyncio's handler of SIGINT, while a body runs in a process that ignores SIGINT."""


def run_interruptible(body: Work[None]) -> None:
    """Runs `body` in an event loop. `interrupt` cancels it as Ctrl-C does, also in a process that ignores SIGINT, as
    one in the background of a script does: asyncio takes SIGINT over from Python's own handler only."""

    async def ignoring() -> None:
        _taken_over.append(signal.signal(signal.SIGINT, signal.SIG_IGN))
        await body

    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        asyncio.run(body)
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        asyncio.run(ignoring())
    finally:
        _taken_over.clear()
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def interrupt() -> None:
    """Interrupts the main thread."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, _taken_over[0] if _taken_over else signal.default_int_handler)
    signal.raise_signal(signal.SIGINT)


def _end_as_interrupted() -> None:
    """Turns SIGTERM, which a stopped job and a process of a machine that is taken away get, into an interrupt, so that
    the process ends with complete files and without leftover actors."""

    def end(*_: object) -> None:
        if _last_wishes:
            _last_wishes.pop()()
        else:
            interrupt()

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, end)


def start(**settings: Any) -> None:
    """`ray.init`, repeated if a private cluster does not start; raises ClusterDown after the last try."""
    import ray

    until_up(lambda: ray.init(**settings), ray.shutdown)


def until_up(begin: Callable[[], T], undo: Callable[[], object] = lambda: None) -> T:
    """Calls `begin`, which starts Ray processes, and returns its result. If they do not start within Ray's time limit,
    which happens under load, undoes and retries it. Raises ClusterDown after STARTS attempts."""
    for left in reversed(range(STARTS)):
        before = _children()
        try:
            return begin()
        except Exception as error:  # Ray raises a plain Exception here
            if type(error) is not Exception or TIMED_OUT not in str(error):
                raise
            undo()
            # Ray does not track these processes yet, and would leave them running until this process ends.
            for process in _children() - before:
                with suppress(psutil.NoSuchProcess):
                    for one in (*process.children(recursive=True), process):
                        one.kill()
            if not left:
                raise ClusterDown(f"Ray did not start in {STARTS} tries: {error}") from error
    raise AssertionError  # unreachable: each attempt returns, raises or retries


def _children() -> set[psutil.Process]:
    """Direct child processes of this process."""
    return set(psutil.Process().children())


def _worker_python() -> dict[str, str]:
    """The interpreter of workers on this machine: Ray puts it into a line for bash as it is, so that no worker starts
    where its path has a blank in it."""
    quoted = shlex.quote(sys.executable)
    return {} if quoted == sys.executable else {"py_executable": quoted}


def _worker_environment() -> dict[str, str]:
    here = str(Path(__file__).resolve().parent.parent)
    path = [here, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    extensions = os.environ.get(VARIABLE)
    if extensions:
        path.append(os.getcwd())  # the driver imports extensions from here
    return {
        **{name: os.environ[name] for name in (VARIABLE, FUNCTION) if os.environ.get(name)},
        # The folder of the packages first: workers import what the driver runs.
        "PYTHONPATH": os.pathsep.join(path),
        # Names of files and texts are the same on every node, whatever its locale.
        "PYTHONUTF8": "1",
        # Waiting threads sleep instead of spinning: with spinning, two threads beside a busy process were 30 times
        # slower.
        "OMP_WAIT_POLICY": "PASSIVE",
    }
