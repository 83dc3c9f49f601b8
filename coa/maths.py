"""Equivalence of mathematical answers, by Math-Verify in a child process that can be ended.

An answer such as 9^(9^9) keeps a comparison busy for ever, inside one call that nothing can interrupt. So a child
compares, one JSON line in and one out; one that takes too long is killed, and the answer counts as not equal.
"""

import json
import resource
import select
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path

LIMIT_S = 5.0
"""Seconds for one comparison."""
START_S = 60.0
"""Seconds for a child to import what it needs, on a busy machine."""
MEMORY_BYTES = 4 << 30


class Comparer:
    """Asks a child, which is started at the first question and again after it had to be killed."""

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self._limit_s = limit_s
        self._child: subprocess.Popen[str] | None = None
        self._one_at_a_time = threading.Lock()

    def equal(self, answer: str, accepted: tuple[str, ...]) -> bool:
        """Whether the answer equals some accepted one; False where that can't be found out within the limit."""
        with self._one_at_a_time:
            if self._child is not None and self._child.poll() is not None:
                self.close()
            child = self._child or self._start()
            assert child.stdin is not None
            child.stdin.write(json.dumps([answer, accepted]) + "\n")
            child.stdin.flush()
            told = self._read(child, self._limit_s)
            if not told:
                self.close()
            return told == "true"

    def close(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            self._child = None

    def _start(self) -> subprocess.Popen[str]:
        self._child = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=Path(__file__).parents[1],
        )
        if self._read(self._child, START_S) != "ready":
            self.close()
            raise RuntimeError("the process that compares mathematical answers does not start")
        return self._child

    @staticmethod
    def _read(child: subprocess.Popen[str], seconds: float) -> str:
        """One line, or "" where none comes in time (or the child has died)."""
        assert child.stdout is not None
        ready, _, _ = select.select([child.stdout], [], [], seconds)
        return child.stdout.readline().strip() if ready else ""


@cache
def comparer() -> Comparer:
    """This process's own."""
    return Comparer()


def _serve() -> None:
    from math_verify import parse, verify

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    print("ready", flush=True)
    for line in sys.stdin:
        answer, accepted = json.loads(line)
        # Math-Verify's own limits are off (0): the parent keeps the time.
        given = parse(answer, parsing_timeout=0)
        golds = (parse(f"${gold}$", parsing_timeout=0) for gold in accepted)
        print(json.dumps(any(verify(gold, given, timeout_seconds=0) for gold in golds)), flush=True)


if __name__ == "__main__":
    _serve()
