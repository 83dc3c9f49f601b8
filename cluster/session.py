"""The Ray session that a job runs in: the cluster of RAY_ADDRESS, or a private one on this machine."""

import logging
import os
import secrets
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil

from cluster.remote.reach import require_cluster
from coa.errors import ClusterDown, DiskFull
from coa.extensions import VARIABLE
from coa.given import VARIABLE as FUNCTION

T = TypeVar("T")
STARTS = 3
MODE, TOKEN = "RAY_AUTH_MODE", "token"
TIMED_OUT = "timed out during startup"
"""What Ray says of a node that did not come up."""


@dataclass(frozen=True)
class SessionConfig:
    """The Ray cluster that a command runs on."""

    address: str | None = None
    """Address of a running cluster (host:port, or `auto`). None takes the environment variable RAY_ADDRESS; if that is
    not set, the command starts Ray on this machine."""
    cpus: int | None = None
    """CPUs of the Ray that the command starts; None takes all of the machine."""
    object_store_gib: float = 1.0
    """Memory of Ray's object store, if the command starts Ray. Raise it if a message says that the object store is
    full."""


def address_of(config: SessionConfig) -> str | None:
    """The cluster that a job joins; None where it starts one of its own."""
    return config.address or os.environ.get("RAY_ADDRESS") or None


@contextmanager
def session(config: SessionConfig) -> Iterator[None]:
    """Ray runs within the context. A private cluster ends with it; a cluster that was joined keeps running.

    Raises UserError where no cluster that can be joined answers at the address.
    """
    address = address_of(config)
    if address is not None and address != "local":
        require_cluster(address)
    if address is None:
        own_token()
    # Else a learner's report waits up to two seconds for the controller's next look.
    os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.2")
    # Within its own 5 s, a proxy of Serve does not come up on a busy machine, and the server with it.
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
        # Ray itself would rather join a cluster that somebody else has started on this machine.
        address=address or "local",
        namespace="coa",
        log_to_driver=False,
        logging_level=logging.ERROR,
        configure_logging=True,
        runtime_env={"env_vars": _worker_environment()},
        **private,
    )
    _end_as_interrupted()
    try:
        yield
    finally:
        ray.shutdown()


def stored(value: Any) -> Any:
    """A reference to the value. Raises DiskFull where neither Ray's object store nor the disk behind it has room."""
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
    """A cluster that this process starts is reached with a token, unless the environment says how it is.

    Ray's ports are open to the network, also those of a private cluster, and who may call them runs code here. The
    token is this session's own: no file holds it, and who has another session's gets nowhere.
    """
    if MODE not in os.environ:
        os.environ[MODE] = TOKEN
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        read_again()


def read_again() -> None:
    """Has Ray read how it authenticates once more: it did when it was imported, which the recipe's own types do."""
    from ray._raylet import AuthenticationTokenLoader, Config  # pyright: ignore[reportAttributeAccessIssue]

    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


def _end_as_interrupted() -> None:
    """Who is told to terminate, as a job of a cluster that is stopped, ends as one that is interrupted: with its files
    whole and its actors gone."""

    def interrupt(*_: object) -> None:
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a shell
            signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.raise_signal(signal.SIGINT)

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, interrupt)


def start(**settings: Any) -> None:
    """`ray.init`, repeated if a private cluster does not start; raises ClusterDown after the last try."""
    import ray

    until_up(lambda: ray.init(**settings), ray.shutdown)


def until_up(begin: Callable[[], T], undo: Callable[[], object] = lambda: None) -> T:
    """What `begin` returns, which starts processes of Ray; undone and tried again where they did not come up in the
    time that Ray gives them, which under load happens. Raises ClusterDown in the end."""
    for left in reversed(range(STARTS)):
        before = _children()
        try:
            return begin()
        except Exception as error:  # Ray raises just that: it has no type for it
            if type(error) is not Exception or TIMED_OUT not in str(error):
                raise
            undo()
            # Ray does not know yet of what it has started, and would leave it running until this process ends.
            for process in _children() - before:
                with suppress(psutil.NoSuchProcess):
                    for one in (*process.children(recursive=True), process):
                        one.kill()
            if not left:
                raise ClusterDown(f"Ray did not start in {STARTS} tries: {error}") from error
    raise AssertionError  # one of the tries ends it


def _children() -> set[psutil.Process]:
    """Processes that this one has started itself."""
    return set(psutil.Process().children())


def _worker_environment() -> dict[str, str]:
    here = str(Path(__file__).resolve().parent.parent)
    path = [here, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    extensions = os.environ.get(VARIABLE)
    if extensions:
        path.append(os.getcwd())  # where the driver finds them
    return {
        **{name: os.environ[name] for name in (VARIABLE, FUNCTION) if os.environ.get(name)},
        # The folder of the packages first: workers import what the driver runs.
        "PYTHONPATH": os.pathsep.join(path),
        # A thread that waits for another sleeps. Where it spins, two threads beside a busy process take 30 times as
        # long as alone.
        "OMP_WAIT_POLICY": "PASSIVE",
    }
