"""The filter of system calls, as the kernel reads it: which calls are allowed, and with which arguments."""

import re
import struct
from pathlib import Path
from types import SimpleNamespace

import pytest

from coa.tools.sandbox import filter as sandbox_filter
from coa.tools.sandbox.filter import CASES, allowed_calls, program_filter

ALLOWED, GRANTED, REFUSED, MISSING, KILLED = 0x7FFF0000, 0x50000, 0x50001, 0x50026, 0x80000000
X86, ARM = 0xC000003E, 0xC00000B7
THREAD = 0x3D0F00


def verdict(lines: bytes, number: int, *arguments: int, audit: int = X86) -> int:
    """What a program of classic BPF returns for a call, by the rules of the kernel's interpreter."""
    arguments += (0,) * (6 - len(arguments))
    data = struct.pack("<iIQ6Q", number - (1 << 32) * (number >= 1 << 31), audit, 0, *arguments)
    operations, at, register = list(struct.iter_unpack("<HBBI", lines)), 0, 0
    while True:
        code, if_true, if_false, value = operations[at]
        at += 1
        match code:
            case 0x20:
                (register,) = struct.unpack_from("<I", data, value)
            case 0x05:
                at += value
            case 0x54:
                register &= value
            case 0x15:
                at += if_true if register == value else if_false
            case 0x35:
                at += if_true if register >= value else if_false
            case _:
                assert code == 0x06
                return value


@pytest.fixture(params=[("x86_64", X86), ("aarch64", ARM)], ids=["x86_64", "aarch64"])
def audit(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    machine, audit = request.param
    monkeypatch.setattr(sandbox_filter.os, "uname", lambda: SimpleNamespace(machine=machine))
    return audit


def made(*, sockets: bool = True, threads: bool = True) -> bytes:
    return program_filter.__wrapped__(sockets=sockets, threads=threads)


def test_only_what_the_table_allows_is_allowed(audit: int) -> None:
    plain = {number for name, number in allowed_calls().items() if name not in CASES}
    lines = made()
    answers = {number: verdict(lines, number, 99, 99, 99, 1 << 18, audit=audit) for number in range(500)}
    assert {number for number, answer in answers.items() if answer == ALLOWED} == plain
    others = {number: answer for number, answer in answers.items() if answer not in (ALLOWED, GRANTED)}
    assert others == {
        number: REFUSED if number < 424 or number in allowed_calls().values() else MISSING for number in others
    }
    for number in (1 << 20, 0x40000000, 0x40000039, 0xFFFFFFFF):
        assert verdict(lines, number, audit=audit) == MISSING
    assert verdict(lines, 0, audit=0x40000003) == KILLED


ARGUMENTS = {
    ("clone", (THREAD,)): ALLOWED,
    ("clone", (THREAD | 0x400000,)): ALLOWED,
    ("clone", (THREAD & ~0x400,)): REFUSED,  # a table of descriptors of its own
    ("clone", (THREAD & ~0x200,)): REFUSED,
    ("clone", (THREAD | 0x10000000,)): REFUSED,  # a user namespace
    ("clone", (17,)): REFUSED,  # a fork
    ("clone", (0x4111,)): REFUSED,
    ("prlimit64", (0,)): ALLOWED,
    ("prlimit64", (1,)): REFUSED,
    ("socket", (1, 1)): ALLOWED,
    ("socket", (1, 0x80802)): ALLOWED,
    ("socket", (2, 1)): ALLOWED,
    ("socket", (10, 2)): ALLOWED,
    ("socket", (2, 3)): REFUSED,  # raw
    ("socket", (16, 2)): REFUSED,  # netlink
    ("socket", (17, 3)): REFUSED,  # packets
    ("socket", (38, 5)): REFUSED,  # the kernel's cryptography
    ("socket", (40, 1)): REFUSED,  # the virtual machine's host
    ("socketpair", (1, 1)): ALLOWED,
    ("socketpair", (2, 1)): REFUSED,
    ("setsockopt", (3, 1, 7)): GRANTED,
    ("setsockopt", (3, 1, 8)): GRANTED,
    ("setsockopt", (3, 1, 32)): REFUSED,
    ("setsockopt", (3, 1, 2)): ALLOWED,
    ("setsockopt", (3, 6, 1)): ALLOWED,
    ("setsockopt", (3, 6, 31)): REFUSED,
    ("setsockopt", (3, 1, 26)): REFUSED,  # a filter of its own
    ("fcntl", (3, 0)): ALLOWED,
    ("fcntl", (3, 1030)): ALLOWED,
    ("fcntl", (3, 4)): ALLOWED,
    ("fcntl", (3, 6)): GRANTED,
    ("fcntl", (3, 7)): GRANTED,
    ("fcntl", (3, 8)): REFUSED,  # F_SETOWN
    ("fcntl", (3, 37)): REFUSED,
    ("fcntl", (3, 1024)): REFUSED,  # F_SETLEASE
    ("fcntl", (3, 1026)): REFUSED,  # F_NOTIFY
    ("fcntl", (3, 1031)): REFUSED,  # F_SETPIPE_SZ
    ("flock", (3, 2)): GRANTED,
    ("fsync", (3,)): GRANTED,
    ("ioctl", (0, 0x5401)): ALLOWED,
    ("ioctl", (0, 0x5412)): REFUSED,  # characters into a terminal
    ("mmap", (0, 4096, 3, 0x22)): ALLOWED,
    ("mmap", (0, 4096, 3, 0x40022)): REFUSED,  # huge pages
    ("madvise", (0, 4096, 4)): ALLOWED,
    ("madvise", (0, 4096, 12)): REFUSED,  # KSM
    ("madvise", (0, 4096, 21)): REFUSED,  # pages out of memory
    ("prctl", (15,)): ALLOWED,
    ("prctl", (22,)): REFUSED,
}


@pytest.mark.parametrize(("name", "arguments"), ARGUMENTS)
def test_some_calls_are_allowed_with_certain_arguments(name: str, arguments: tuple[int, ...], audit: int) -> None:
    assert verdict(made(), allowed_calls()[name], *arguments, audit=audit) == ARGUMENTS[name, arguments]


def test_without_a_cgroup_only_pairs_of_sockets_are_allowed(audit: int) -> None:
    lines, calls = made(sockets=False, threads=False), allowed_calls()

    def answer(name: str, *arguments: int) -> int:
        return verdict(lines, calls[name], *arguments, audit=audit)

    assert answer("socketpair", 1, 0x80801) == ALLOWED
    assert [answer("socketpair", 1, 2), answer("socket", 1, 1), answer("socket", 2, 1)] == [REFUSED] * 3
    assert answer("clone", THREAD) == REFUSED
    assert answer("read", 3) == ALLOWED


HEADERS = {
    "x86_64": (Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"), r"__NR_"),
    "aarch64": (Path("/usr/include/asm-generic/unistd.h"), r"__NR(?:3264)?_"),
}


@pytest.mark.parametrize("machine", HEADERS)
def test_the_numbers_are_the_kernels(machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    header, prefix = HEADERS[machine]
    if not header.exists():
        pytest.skip("needs the headers of the kernel")
    monkeypatch.setattr(sandbox_filter.os, "uname", lambda: SimpleNamespace(machine=machine))
    numbers = {m[1]: int(m[2]) for m in re.finditer(rf"#define {prefix}(\w+) (\d+)\n", header.read_text())}
    numbers.setdefault("newfstatat", numbers.get("fstatat", -1))
    assert {name: numbers.get(name) for name in allowed_calls()} == allowed_calls()
