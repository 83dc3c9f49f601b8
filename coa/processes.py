"""Child processes for work that may never end: they take one request at a time, and can be ended at any moment.

    parent                                              the module, as a child
    child = Child("coa.grading.equivalence", "5")       if __name__ == "__main__":
    child.started(60.0)                                     serve(answer)
    child.ask(b"request", seconds=5.0)

Requests and answers are bytes behind their length; nothing of either is ever executed or unpickled. A child gets an
empty environment, since that of this process may hold keys, and it ends when this process does. A `LimitedChild` starts
a child when it is needed, and limits each request's CPU time; its module answers by `serve_limited`.
"""

import math
import os
import resource
import select
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import psutil

from coa.errors import InfrastructureError

_LENGTH = struct.Struct("<Q")
_ROOT = Path(__file__).parents[1]
ENDING_S = 30.0
"""Maximum seconds that a child may take to end after it has closed its pipes."""


class ChildGone(Exception):
    """A child gave no answer; it has ended when this is raised."""

    def __init__(self, status: int | None, cpu_s: float = 0.0) -> None:
        """status: as `subprocess` gives it, minus n for a death by signal n; None for a child that was ended here,
        because the time was over. cpu_s: seconds of CPU time that it used since it was asked."""
        super().__init__("no answer in time" if status is None else f"ended with status {status}")
        self.status = status
        self.cpu_s = cpu_s


class Child:
    """A Python module that runs as a child process and answers by `serve`. One thread uses it at a time."""

    def __init__(self, module: str, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=_ROOT,
            env={},
            bufsize=0,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._input, False)
        os.set_blocking(self._output, False)
        self._cpu_before_s = 0.0

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def started(self, seconds: float) -> None:
        """Returns once the child has imported what it needs; raises ChildGone where it does not within the time."""
        self._answer(time.monotonic() + seconds)

    def ask(self, request: bytes, seconds: float) -> bytes:
        """The child's answer; raises ChildGone where it ends, or gives none within the time."""
        deadline = time.monotonic() + seconds
        self._cpu_before_s = self._cpu_s()
        rest = memoryview(_LENGTH.pack(len(request)) + request)
        while rest:
            self._wait(self._input, select.POLLOUT, deadline)
            try:
                rest = rest[os.write(self._input, rest) :]
            except BrokenPipeError:
                raise self._gone() from None
        return self._answer(deadline)

    def end(self) -> None:
        """Ends the child, also while another thread waits for its answer; harmless where it has ended."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Ends the child and closes its pipes, once no thread uses it any more."""
        self.end()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _answer(self, deadline: float) -> bytes:
        [length] = _LENGTH.unpack(self._read(_LENGTH.size, deadline))
        return self._read(length, deadline)

    def _read(self, size: int, deadline: float) -> bytes:
        data = bytearray()
        while len(data) < size:
            self._wait(self._output, select.POLLIN, deadline)
            piece = os.read(self._output, min(size - len(data), 1 << 20))
            if not piece:
                raise self._gone()
            data += piece
        return bytes(data)

    def _wait(self, pipe: int, event: int, deadline: float) -> None:
        """Returns once the pipe is ready, or its other end closed."""
        poll = select.poll()
        poll.register(pipe, event)
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            used_s = self._cpu_s() - self._cpu_before_s
            self.close()
            raise ChildGone(None, used_s)

    def _gone(self) -> ChildGone:
        """The child has closed its end, so it is ending by itself; freeing much memory may take it seconds."""
        used_s = self._cpu_s() - self._cpu_before_s
        try:
            status = self._process.wait(timeout=ENDING_S)
        except subprocess.TimeoutExpired:
            status = None
        self.close()
        return ChildGone(status, used_s)

    def _cpu_s(self) -> float:
        """Seconds of CPU time that the child has used; of one that has ended and was waited for, those before."""
        try:
            times = psutil.Process(self._process.pid).cpu_times()
        except psutil.Error:
            return self._cpu_before_s
        return times.user + times.system


class LimitedChild:
    """A child for requests that may never end, whatever is in them. It is started at the first request, and again after
    it has ended."""

    PATIENCE_S = 60.0
    """Wall-clock seconds for a request, and for a child's imports, on a busy machine."""
    BUSY_S = 0.5
    """Seconds of CPU time from which on a request itself is to blame for a child that gives no answer; most take a few
    milliseconds."""

    def __init__(self, module: str, purpose: str, limit_s: int) -> None:
        """purpose: what the process does, for errors. limit_s: seconds of CPU time for a request."""
        self._module, self._purpose, self._limit_s = module, purpose, limit_s
        self.child: Child | None = None
        self._one_at_a_time = threading.Lock()

    def ask(self, request: bytes) -> bytes | None:
        """The child's answer; None if the request used up its CPU time or its memory, or crashed the child.

        Raises InfrastructureError if the child does not start, gets no CPU time, or is killed from outside before it
        has used much.
        """
        with self._one_at_a_time:
            child = self.child = self.child or self._start()
            try:
                return child.ask(request, self.PATIENCE_S)
            except ChildGone as gone:
                self.child = None
                if gone.status in (None, -signal.SIGKILL) and gone.cpu_s < self.BUSY_S:
                    raise InfrastructureError(f"the process that {self._purpose} does not answer") from gone
                return None

    def close(self) -> None:
        if self.child is not None:
            self.child.close()
            self.child = None

    def _start(self) -> Child:
        child = Child(self._module, str(self._limit_s))
        try:
            child.started(self.PATIENCE_S)
        except ChildGone as gone:
            raise InfrastructureError(f"the process that {self._purpose} does not start") from gone
        return child


def serve_limited(answer: Callable[[bytes], bytes], memory_bytes: int) -> None:
    """The side of a `LimitedChild`'s child, once it has imported what it needs. Its argument is the limit of a
    request's CPU time, at which the kernel ends it."""
    limit_s = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    def limited(request: bytes) -> bytes:
        limit_cpu(limit_s)
        return answer(request)

    serve(limited)


def limit_cpu(seconds: int) -> None:
    """The kernel ends this process once it has used so many more seconds of CPU time."""
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit = math.ceil(used.ru_utime + used.ru_stime) + seconds
    resource.setrlimit(resource.RLIMIT_CPU, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def serve(answer: Callable[[bytes], bytes]) -> None:
    """The child's side: says that it has started, then answers requests until the parent closes its end."""
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints is not taken for an answer
    _write(answers, b"")
    while head := requests.read(_LENGTH.size):
        [length] = _LENGTH.unpack(head)
        _write(answers, answer(requests.read(length)))


def _write(answers: BinaryIO, data: bytes) -> None:
    answers.write(_LENGTH.pack(len(data)) + data)
    answers.flush()
