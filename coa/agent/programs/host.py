"""Runs a coroutine function as an agent's program, once for each order: `python -m coa.agent.programs.host NAME FD`.

    caller -- order (four descriptors) --> host -- fork, in a session of its own --> the function
           <------ status, by the order's own socket ------

What the function's module imports from installed packages is imported once, and each fork begins with it. The module
itself, and what else is not installed, is imported in each fork: there, the environment is that of the episode.

A fork that has ended leaves no process behind. An order whose socket is closed is ended, and all are if the caller is
gone.
"""

import asyncio
import ctypes
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import sysconfig
from collections.abc import Awaitable, Callable
from contextlib import suppress
from operator import attrgetter
from pathlib import Path

Run = Callable[[dict[str, str], str, str], Awaitable[object]]
"""run(task, base_url, key): the answer."""
READY = b"ready"
INSTALLED: frozenset[str] = frozenset(("site-packages", "dist-packages"))
"""Names of the folders that hold installed packages."""
PR_SET_PDEATHSIG = 1
"""Of <sys/prctl.h>: the signal that a process gets when its parent has ended."""
GIVEN, ANSWER, LOG, STATUS = range(4)
"""An order's descriptors: a file with its variables and task as JSON, a file for the answer, one for what the function
prints, and a socket that tells how it ended."""


def main(name: str, orders: socket.socket) -> None:
    module = name.partition(":")[0]
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    for needed in _installed(module):
        with suppress(ImportError):  # what it makes of itself, while another one is imported
            importlib.import_module(needed)
    # A collection would write to every page that the forks share.
    gc.freeze()
    orders.send(READY)
    if _Host(orders).serve():
        _run(name)


def _installed(module: str) -> list[str]:
    """The installed modules that an import of `module` needs, in the order of their imports; none if it fails, which
    each episode will tell."""
    known = {*sys.modules}
    ours, theirs = os.pipe()
    if (scout := os.fork()) == 0:
        os.close(ours)
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 1)
            os.dup2(nowhere.fileno(), 2)
        os.environ |= {"OPENAI_API_KEY": "none", "ANTHROPIC_API_KEY": "none"}
        importlib.import_module(module)
        with open(theirs, "w") as told:
            own = module.partition(".")[0]
            new = (name for name in [*sys.modules] if name not in known and name.partition(".")[0] != own)
            json.dump([name for name in new if _is_installed(name)], told)
        os._exit(0)
    os.close(theirs)
    with open(ours) as told:
        found = told.read()
    os.waitpid(scout, 0)
    return json.loads(found) if found else []


def _is_installed(name: str) -> bool:
    spec = getattr(sys.modules[name], "__spec__", None)
    if spec is None or spec.name != name:
        return False
    if spec.origin in (None, "built-in", "frozen"):
        return True
    standard = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
    return spec.origin.startswith(standard) or not INSTALLED.isdisjoint(Path(spec.origin).parts)


class _Host:
    def __init__(self, orders: socket.socket) -> None:
        self._orders = orders
        self._selector = selectors.DefaultSelector()
        self._selector.register(orders, selectors.EVENT_READ, self._begin)
        self._pids = set[int]()

    def serve(self) -> bool:
        """Returns True in the fork of an order, and False when there will be no more orders."""
        while self._selector.get_map():
            for key, _ in self._selector.select():
                if key.fd in self._selector.get_map() and key.data():
                    return True
        return False

    def _begin(self) -> bool:
        message, descriptors, _, _ = socket.recv_fds(self._orders, 1, 4)
        if not message:
            self._selector.unregister(self._orders)
            for pid in self._pids:
                _kill(pid)
            return False
        if (pid := os.fork()) == 0:
            self._enter(descriptors)
            return True
        for number in (GIVEN, ANSWER, LOG):
            os.close(descriptors[number])
        self._pids.add(pid)
        status, ended = socket.socket(fileno=descriptors[STATUS]), os.pidfd_open(pid)
        self._selector.register(status, selectors.EVENT_READ, lambda: self._give_up(pid, status))
        self._selector.register(ended, selectors.EVENT_READ, lambda: self._end(pid, ended, status))
        return False

    def _enter(self, descriptors: list[int]) -> None:
        """Leaves all that is the host's, in a fork."""
        os.setsid()
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        for held in [*self._selector.get_map().values()]:
            held.fileobj.close() if isinstance(held.fileobj, socket.socket) else os.close(held.fd)
        self._selector.close()
        for place, number in ((0, GIVEN), (1, ANSWER), (2, LOG)):
            os.dup2(descriptors[number], place)
        for descriptor in descriptors:
            os.close(descriptor)

    def _give_up(self, pid: int, status: socket.socket) -> None:
        self._selector.unregister(status)
        _kill(pid)

    def _end(self, pid: int, ended: int, status: socket.socket) -> None:
        self._selector.unregister(ended)
        os.close(ended)
        # Until it is waited for, no other process can have its number.
        _kill(pid)
        _, how = os.waitpid(pid, 0)
        self._pids.discard(pid)
        if status in self._selector.get_map():
            self._selector.unregister(status)
        with status, suppress(BrokenPipeError, ConnectionResetError):
            status.send(str(os.waitstatus_to_exitcode(how)).encode())


def _kill(pid: int) -> None:
    """Ends a process that was not waited for yet, and its session."""
    os.kill(pid, signal.SIGKILL)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _run(name: str) -> None:
    """Runs the function, in the fork of an order."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    with os.fdopen(0, closefd=False, encoding="utf-8") as given:
        order = json.load(given)
    os.environ |= order["variables"]
    if (random := sys.modules.get("numpy.random")) is not None:
        random.seed()  # else every fork would draw the same
    module, _, function = name.partition(":")
    run: Run = attrgetter(function)(importlib.import_module(module))

    async def answer() -> object:
        return await run(order["task"], os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"])

    found = asyncio.run(answer())
    with answers:
        answers.write("" if found is None else str(found))


if __name__ == "__main__":
    main(sys.argv[1], socket.socket(fileno=int(sys.argv[2])))
