"""The seccomp filter (classic BPF) of a sandboxed program, made from the table of the system calls that it may make:
those that CPython, NumPy, SymPy and pandas use.

A program is one process, with threads, its own files, pipes, and sockets that lead to itself. All other calls are
refused, including those that later kernels add. It may not listen: what a connection holds that nobody accepts, the
kernel counts for nobody, and no descriptor limits their number.

Calls that are not allowed fail with EPERM, so that a program sees why. Calls that the kernel has had only since 2019
fail with ENOSYS instead, since programs that use them have a fallback for older kernels.
"""

import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType

from coa.errors import ToolDown

NUMBERS = {  # why: names with their numbers on x86_64 and aarch64, "-" where a machine has no such call
    "the process itself": """
        execve 59 221, exit 60 93, exit_group 231 94, getpid 39 172, getppid 110 173, gettid 186 178, getuid 102 174,
        geteuid 107 175, getgid 104 176, getegid 108 177, getresuid 118 148, getresgid 120 150, getgroups 115 158,
        getpgrp 111 -, getpgid 121 155, getsid 124 156, capget 125 90, uname 63 160, umask 95 166, getrlimit 97 163,
        setrlimit 160 164, prlimit64 302 261, getrusage 98 165, times 100 153, wait4 61 260, waitid 247 95,
        kill 62 129, getpriority 140 141, setpriority 141 140, arch_prctl 158 -, prctl 157 167
    """,
    "threads": """
        clone 56 220, futex 202 98, set_robust_list 273 99, set_tid_address 218 96, rseq 334 293, sched_yield 24 124,
        sched_getaffinity 204 123, getcpu 309 168, tgkill 234 131
    """,
    "signals and alarms to itself": """
        rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigreturn 15 139, rt_sigpending 127 136, rt_sigsuspend 130 133,
        rt_sigtimedwait 128 137, sigaltstack 131 132, restart_syscall 219 128, pause 34 -, alarm 37 -,
        getitimer 36 102, setitimer 38 103
    """,
    "time and chance": """
        clock_gettime 228 113, clock_getres 229 114, clock_nanosleep 230 115, nanosleep 35 101, gettimeofday 96 169,
        time 201 -, getrandom 318 278
    """,
    "memory that the limit of address space counts": """
        brk 12 214, mmap 9 222, munmap 11 215, mprotect 10 226, mremap 25 216, msync 26 227, madvise 28 233
    """,
    "open files": """
        read 0 63, write 1 64, readv 19 65, writev 20 66, pread64 17 67, pwrite64 18 68, preadv 295 69, pwritev 296 70,
        lseek 8 62, close 3 57, close_range 436 436, dup 32 23, dup2 33 -, dup3 292 24, fcntl 72 25, ioctl 16 29,
        fstat 5 80, ftruncate 77 46, fallocate 285 47, fsync 74 82, fdatasync 75 83, flock 73 32
    """,
    "files by their names": """
        open 2 -, openat 257 56, creat 85 -, stat 4 -, lstat 6 -, newfstatat 262 79, statx 332 291, access 21 -,
        faccessat 269 48, faccessat2 439 439, readlink 89 -, readlinkat 267 78, getcwd 79 17, chdir 80 49,
        fchdir 81 50, getdents64 217 61, mkdir 83 -, mkdirat 258 34, mknod 133 -, mknodat 259 33, rmdir 84 -,
        unlink 87 -, unlinkat 263 35, rename 82 -, renameat 264 38, renameat2 316 276, link 86 -, linkat 265 37,
        symlink 88 -, symlinkat 266 36, truncate 76 45, chmod 90 -, fchmod 91 52, fchmodat 268 53, chown 92 -,
        fchown 93 55, lchown 94 -, fchownat 260 54, utime 132 -, utimes 235 -, utimensat 280 88, statfs 137 43,
        fstatfs 138 44
    """,
    "extended attributes, which shutil looks for when it copies; none can be set": """
        getxattr 191 8, lgetxattr 192 9, fgetxattr 193 10, listxattr 194 11, llistxattr 195 12, flistxattr 196 13
    """,
    "pipes and waiting": """
        pipe 22 -, pipe2 293 59, eventfd2 290 19, poll 7 -, ppoll 271 73, select 23 -, pselect6 270 72,
        epoll_create 213 -, epoll_create1 291 20, epoll_ctl 233 21, epoll_wait 232 -, epoll_pwait 281 22
    """,
    "sockets, in a network of its own": """
        socket 41 198, socketpair 53 199, bind 49 200, connect 42 203, getsockname 51 204, getpeername 52 205,
        getsockopt 55 209, setsockopt 54 208, sendto 44 206, recvfrom 45 207, sendmsg 46 211, recvmsg 47 212,
        shutdown 48 210
    """,
}


@dataclass(frozen=True, slots=True)
class Case:
    """Arguments with which a call is allowed: `Case({0: (1, 2)}, {0: 0xF})` for 1 or 2 in the low bits of the first."""

    arguments: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    masks: Mapping[int, int] = field(default_factory=dict)
    granted: bool = False
    """Whether the call is answered with success but not made, since its purpose is fulfilled anyway."""


_UNIX, _INTERNET = (1,), (2, 10)
_STREAM, _DATAGRAM = 1, 2
_KIND = {1: 0xF}
"""Mask of the socket's type, which shares argument 1 with flags."""
_TO_OTHERS = Case({0: _INTERNET, 1: (_STREAM, _DATAGRAM)}, _KIND)
_LOCAL = Case({0: _UNIX, 1: (_STREAM, _DATAGRAM)}, _KIND)
_PAIR = Case({0: _UNIX, 1: (_STREAM,)}, _KIND)

CASES: Mapping[str, tuple[Case, ...]] = MappingProxyType(
    {
        # Only threads: all flags of what threads of one process share are required. 0x400000 (set by musl) is a no-op.
        "clone": (Case({0: (0x3D0F00,)}, {0: 0xFFBFFFFF}),),
        # The program may read and lower its own limits.
        "prlimit64": (Case({0: (0,)}),),
        # ARCH_SET_FS: the loader sets the thread's register.
        "arch_prctl": (Case({0: (0x1002,)}),),
        # PR_SET_NAME and PR_GET_NAME.
        "prctl": (Case({0: (15, 16)}),),
        # No MAP_HUGETLB, whose pages are reserved for the whole system.
        "mmap": (Case({3: (0,)}, {3: 0x40000}),),
        # No KSM, which shares pages with other runs, and no MADV_REMOVE or MADV_HWPOISON.
        "madvise": (Case({2: (0, 1, 2, 3, 4, 8, 14, 15, 16, 17)}),),
        # Locks are granted without effect: a run is one process, whose own locks never block it, and no other process
        # sees its files. No lease (F_SETLEASE), no larger pipe (F_SETPIPE_SZ), no notice (F_NOTIFY).
        "fcntl": (Case({1: (0, 1, 2, 3, 4, 5, 1030, 1032)}), Case({1: (6, 7)}, granted=True)),
        "flock": (Case(granted=True),),
        # The workspace is in memory, so there is nothing to write to a disk.
        "fsync": (Case(granted=True),),
        "fdatasync": (Case(granted=True),),
        # Whether it is a terminal, and its size; FIONBIO, FIONREAD, FIOCLEX and FIONCLEX.
        "ioctl": (Case({1: (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)}),),
        "socket": (_LOCAL, _TO_OTHERS),
        "socketpair": (Case({0: _UNIX, 1: (_STREAM, _DATAGRAM)}, _KIND),),
        "setsockopt": (
            # Sizes of buffers are only hints to the kernel.
            Case({1: (1,), 2: (7, 8)}, granted=True),
            # Reuse of addresses, broadcast, keepalive, linger, timeouts.
            Case({1: (1,), 2: (2, 6, 9, 13, 15, 20, 21)}),
            # TCP: no delay, keepalive. IP and IPv6: errors, hop limits, IPv6 only.
            Case({1: (6,), 2: (1, 4, 5, 6)}),
            Case({1: (0,), 2: (2, 11)}),
            Case({1: (41,), 2: (25, 26)}),
        ),
    }
)
UNCOUNTED: Mapping[str, tuple[Case, ...]] = MappingProxyType(
    {
        # If the memory of sockets is not counted: only connected pairs, which event loops need and descriptors limit.
        "socket": (),
        "socketpair": (_PAIR,),
    }
)
UNTHREADED: Mapping[str, tuple[Case, ...]] = MappingProxyType({"clone": ()})
"""Cases if nothing limits the number of threads: no threads."""

# By machine: audit architecture, and the column of its numbers in NUMBERS.
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
