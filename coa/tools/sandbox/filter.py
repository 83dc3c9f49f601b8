"""The seccomp filter (classic BPF) of a sandboxed program: which system calls it may make.

The program may start threads but no processes, so that limits on the one process are limits on the run. Refused are
also calls that reach other processes, make or enter namespaces, hold memory that no limit of a process counts, or open
large parts of the kernel that a small program has no use for. Namespaces and permissions do the rest.
"""

import os
import struct
from functools import cache

from coa.errors import ToolDown

# Per machine: audit architecture, the numbers of clone and of prlimit64, and those of fork and vfork.
_ARCHITECTURES = {"x86_64": (0xC000003E, 56, 302, (57, 58)), "aarch64": (0xC00000B7, 220, 261, ())}

_REFUSED = {  # name: numbers on x86_64 and aarch64
    # Other processes: their memory, descriptors and state.
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "process_madvise": (440, 440),
    "move_pages": (279, 239),
    "migrate_pages": (256, 238),
    # Namespaces and mounts.
    "unshare": (272, 97),
    "setns": (308, 268),
    "chroot": (161, 51),
    "pivot_root": (155, 41),
    "mount": (165, 40),
    "umount2": (166, 39),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    # Memory that stays when it is not mapped.
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    # Large parts of the kernel.
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "fanotify_init": (300, 262),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
}

_CLONE3 = 435
_CLONE_THREAD = 0x10000
_EPERM, _ENOSYS = 1, 38
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _REFUSE = 0x7FFF0000, 0x80000000, 0x00050000
# Offsets into struct seccomp_data.
_NUMBER, _ARCHITECTURE, _ARGUMENT = 0, 4, 16


def refused_calls() -> dict[str, int]:
    """Names and numbers, on this machine, of the calls that are refused whatever their arguments; without forks."""
    column = tuple(_ARCHITECTURES).index(os.uname().machine)
    return {name: numbers[column] for name, numbers in _REFUSED.items()}


@cache
def one_process_filter() -> bytes:
    """The filter for `bwrap --seccomp` and for prctl(PR_SET_SECCOMP): an array of struct sock_filter, 8 bytes each."""
    machine = os.uname().machine
    if machine not in _ARCHITECTURES:
        raise ToolDown(f"there is no sandbox for machines of type {machine}")
    audit, clone, prlimit, forks = _ARCHITECTURES[machine]
    refused = (*forks, *refused_calls().values())

    # Numbers from 0x40000000 on are the x32 names of the same calls.
    lines = [_op(_LOAD, _ARCHITECTURE), _op(_EQUAL, audit, 1, 0), _op(_RETURN, _KILL), _op(_LOAD, _NUMBER)]
    lines += [_op(_AT_LEAST, 0x40000000, 0, 1), _op(_RETURN, _REFUSE | _ENOSYS)]
    # clone3 keeps its flags in memory, where a filter cannot look; "no such call" makes the C library use clone.
    lines += [_op(_EQUAL, _CLONE3, 0, 1), _op(_RETURN, _REFUSE | _ENOSYS)]
    for number in refused:
        lines += [_op(_EQUAL, number, 0, 1), _op(_RETURN, _REFUSE | _EPERM)]
    # The limits of the program itself (process 0) may be asked for and lowered; those of others not.
    lines += [_op(_EQUAL, prlimit, 0, 4), _op(_LOAD, _ARGUMENT), _op(_EQUAL, 0, 1, 0)]
    lines += [_op(_RETURN, _REFUSE | _EPERM), _op(_RETURN, _ALLOW)]
    lines += [_op(_EQUAL, clone, 1, 0), _op(_RETURN, _ALLOW)]
    lines += [_op(_LOAD, _ARGUMENT), _op(_ANY_BIT, _CLONE_THREAD, 1, 0), _op(_RETURN, _REFUSE | _EPERM)]
    return b"".join((*lines, _op(_RETURN, _ALLOW)))


def _op(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("<HBBI", code, if_true, if_false, value)
