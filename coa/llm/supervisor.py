"""A supervisor: a small process that ends a program as soon as the program's owner is gone.

    python -I -S supervisor.py LOG PROGRAM ARGUMENT...                    standard input is a socket
    owner ══ socket ══ supervisor ── program ── its child processes       the last two in their own process group

The supervisor writes "PID\\n" once the program runs and "STATUS\\n" once it has ended (minus n for death by signal n).
When the owner's end of the socket closes, however the owner ended, the group gets SIGTERM, and SIGKILL after GRACE_S.
The supervisor is not a child of the owner, so killing the owner's children does not affect it. Standard output and
error of the program go to the file LOG.
"""

import os
import select
import signal
import subprocess
import sys
from contextlib import suppress

GRACE_S = 5.0
"""Seconds between SIGTERM and SIGKILL."""
OWNER = 0
"""The socket's descriptor."""


def main(log: str, *program: str) -> None:
    if os.fork():
        os._exit(0)
    os.setsid()
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(output, sys.stderr.fileno())
    child = subprocess.Popen(program, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True)
    ended = os.pidfd_open(child.pid)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    report(child.pid)
    if ended not in wait_for(OWNER, ended):
        end(child.pid, signal.SIGTERM)
        wait_for(ended, seconds=GRACE_S)
    end(child.pid, signal.SIGKILL)  # before the child is waited for, since then its pid cannot be reused
    report(child.wait())


def wait_for(*descriptors: int, seconds: float | None = None) -> list[int]:
    return select.select(descriptors, (), (), seconds)[0]


def end(group: int, number: int) -> None:
    with suppress(ProcessLookupError):  # all processes may have ended
        os.killpg(group, number)


def report(number: int) -> None:
    with suppress(OSError):  # the owner may be gone
        os.write(OWNER, f"{number}\n".encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
