"""The seccomp filter (classic BPF) of a sandboxed program, made from the table of allowed calls (calls.py).

Other calls fail with EPERM, so that a program sees why. Calls that the kernel has had only since 2019 fail with ENOSYS
instead, since programs that use them have a fallback for older kernels.
"""

import os
import struct
from collections.abc import Mapping, Sequence
from functools import cache

from coa.errors import ToolDown
from coa.tools.sandbox.calls import CASES, NUMBERS, UNCOUNTED, UNTHREADED, Case

# By machine: audit architecture, and the column of its numbers in calls.py.
_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
NEW = 424
"""First number of the calls since 2019, which have the same numbers on all machines. clone3 is among them: its flags
are in memory, which a filter cannot read, and the C library falls back on clone."""

_EPERM, _ENOSYS = 1, 38
_LOAD, _EQUAL, _AT_LEAST, _AND, _JUMP, _RETURN = 0x20, 0x15, 0x35, 0x54, 0x05, 0x06
_ALLOW, _KILL, _ANSWER = 0x7FFF0000, 0x80000000, 0x00050000
# Offsets into struct seccomp_data.
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16


def allowed_calls() -> dict[str, int]:
    """Names and numbers, on this machine, of the allowed calls, some of them only with certain arguments."""
    machine = os.uname().machine
    if machine not in _ARCHITECTURES:
        raise ToolDown(f"there is no sandbox for machines of type {machine}")
    column = 1 + _ARCHITECTURES[machine][1]
    rows = [row.split() for group in NUMBERS.values() for row in group.split(",")]
    return {row[0]: int(row[column]) for row in rows if row[column] != "-"}


@cache
def program_filter(*, sockets: bool = True, threads: bool = True) -> bytes:
    """The filter for `bwrap --seccomp` and for prctl(PR_SET_SECCOMP): an array of struct sock_filter, 8 bytes each.

    sockets: whether the program may make sockets other than connected pairs, threads: whether it may start threads.
    """
    calls = allowed_calls()
    cases = {**CASES, **({} if sockets else UNCOUNTED), **({} if threads else UNTHREADED)}
    # Each number maps to the answer for all calls from it up to the next number.
    refused, missing = _answer(_EPERM), _answer(_ENOSYS)
    answers: dict[int, tuple[bytes, ...]] = {0: refused, NEW: missing}
    for number in calls.values():
        answers.setdefault(number + 1, missing if number + 1 >= NEW else refused)
    for name, number in calls.items():
        answers[number] = _judged(cases[name], answers_else=refused) if name in cases else (_op(_RETURN, _ALLOW),)
    # The x32 numbers of the same calls, from 0x40000000 on, need no extra lines, since they are above NEW.
    lines = [_op(_LOAD, _ARCHITECTURE), _op(_EQUAL, _audit(), 1, 0), _op(_RETURN, _KILL), _op(_LOAD, _NUMBER)]
    starts = sorted(start for start in answers if start == 0 or answers[start] != _before(answers, start))
    return b"".join((*lines, *_searched([(start, answers[start]) for start in starts])))


def _searched(answers: Sequence[tuple[int, tuple[bytes, ...]]]) -> tuple[bytes, ...]:
    """Binary search for the answer, since the kernel evaluates a new filter for every call number when it is
    installed."""
    if len(answers) == 1:
        return answers[0][1]
    middle = len(answers) // 2
    low, high = _searched(answers[:middle]), _searched(answers[middle:])
    # The distance of a conditional jump is limited to 8 bits.
    return (_op(_AT_LEAST, answers[middle][0], 0, 1), _op(_JUMP, len(low)), *low, *high)


def _before(answers: Mapping[int, tuple[bytes, ...]], start: int) -> tuple[bytes, ...]:
    return answers[max(other for other in answers if other < start)]


def _judged(cases: tuple[Case, ...], answers_else: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """The answer of the first case whose arguments all match."""
    lines: list[bytes] = []
    for case in cases:
        checks: list[bytes] = []
        decision = _answer(0) if case.granted else (_op(_RETURN, _ALLOW),)
        # From the last check to the first, since each check contains the distance to the end of the case.
        for position, values in reversed(tuple(case.arguments.items())):
            wrong = len(checks) + len(decision)
            check = [_op(_LOAD, _ARGUMENTS + 8 * position)]
            if position in case.masks:
                check.append(_op(_AND, case.masks[position]))
            for left, value in reversed(tuple(enumerate(reversed(values)))):
                check.append(_op(_EQUAL, value, left, 0 if left else wrong))
            checks = check + checks
        lines += (*checks, *decision)
    return (*lines, *answers_else)


def _answer(error: int) -> tuple[bytes, ...]:
    """The answer that the call is not made and returns this error, or 0."""
    return (_op(_RETURN, _ANSWER | error),)


def _audit() -> int:
    return _ARCHITECTURES[os.uname().machine][0]


def _op(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("<HBBI", code, if_true, if_false, value)
