"""A command that is ended without a chance to say so."""

import signal
import subprocess
import sys
import textwrap

import pytest

LINE = "coa: gone größer"


def ended(within: str) -> tuple[int, str]:
    """Exit status and stderr of a process that does this within the context."""
    program = f"""
import os, signal, sys, time
from jobs.run.last_words import last_words
with last_words({LINE!r}):
{textwrap.indent(within, "    ")}
print("left", file=sys.stderr)
"""
    process = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True)
    _, err = process.communicate(timeout=60)  # until the waiting process has closed it, too
    return process.returncode, err


@pytest.mark.parametrize(
    ("within", "status"), [("os._exit(1)", 1), ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL)]
)
def test_a_process_that_is_ended_has_its_line(within: str, status: int) -> None:
    assert ended(within) == (status, f"{LINE}\n")


def test_one_that_goes_on_has_none() -> None:
    assert ended("pass") == (0, "left\n")


def test_an_exception_is_told_by_itself() -> None:
    status, err = ended("raise SystemExit(3)")
    assert (status, err) == (3, "")


def test_an_interrupt_of_the_whole_group_does_not_end_what_waits() -> None:
    status, err = ended("time.sleep(0.5); os.killpg(os.getpgid(0), signal.SIGINT) if os.setpgrp() is None else 0")
    assert status != 0
    assert LINE not in err
    assert "KeyboardInterrupt" in err
