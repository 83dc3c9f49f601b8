"""The zygote: a running interpreter that waits inside bubblewrap and forks for each program.

    bubblewrap
      └─ zygote          process 1 of its namespace
           ├─ nursery    for each cgroup: a zygote that was moved there, so that its forks need not be
           └─ init       for each call: process 1 of new namespaces of processes, mounts, network, IPC, host name, users
                └─ program

This is a script without imports of the project, which is not visible inside. Its argument is the number of a socket. A
message NURSERY on it asks for a nursery; with it come a socket like this one and the entrances of a cgroup. Any other
message asks for a fork; it holds the limits and a seccomp filter, and with it come five descriptors: the program's
source, its standard input, output and error, and a lifeline. On the lifeline, init's caller reads READY once
the program is confined, then, once it has ended, its exit status in one byte (128 + n for death by signal n). When the
caller's end closes, init ends, and with it the kernel kills all that is left in the namespace. What fails before READY
is said on the standard error.

A fork copies each page that it touches, so this script is sparing with modules: the C modules beneath `socket` and
`signal` will do.
"""

# ruff: noqa: E402
import sys

FRESH = frozenset(sys.modules)
"""What an interpreter has loaded when it starts."""

import _signal as signal  # pyright: ignore[reportMissingImports]
import _socket as socket
import builtins
import ctypes
import fcntl
import gc
import os
import resource
import select
import struct

READY = b"+"
REQUEST = struct.Struct("=QQQQ")
"""CPU time in seconds, address space and files in bytes, processes with all their threads; the filter follows."""
NURSERY = b"nursery"
LONGEST = 1 << 14
"""Bytes of a message."""
MOST_DESCRIPTORS = 8
MAIN = "/tmp/main.py"
DESCRIPTORS = 256
"""Open files of a program: what pipes and sockets hold is not in its address space."""
SIGNALS = 64
"""Signals that wait for a program; the user has a number of them, which all runs share."""
BYTES_PER_FILE = 4096
"""A workspace of n bytes may hold n / BYTES_PER_FILE files: an empty one takes memory too."""

NEW_USER, NEW_PROCESSES = 0x10000000, 0x20000000
NEW_MOUNTS, NEW_NETWORK, NEW_IPC, NEW_HOST_NAME = 0x00020000, 0x40000000, 0x08000000, 0x04000000
NO_SETUID_NO_DEVICES = 0x2 | 0x4
SET_INTERFACE_FLAGS, INTERFACE_UP = 0x8914, 0x1
SET_SECCOMP, FILTER, SET_NAME = 22, 2, 15
CAPABILITIES_VERSION_3 = 0x20080522

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def serve(control: socket.socket) -> bool:
    """Forks for each request. Returns False in the zygote and its nurseries, once the socket is closed, and True in a
    program's process."""
    ourselves = os.pidfd_open(os.getpid())
    control.send(READY)
    while True:
        request, ancillary, _, _ = control.recvmsg(LONGEST, socket.CMSG_SPACE(MOST_DESCRIPTORS * 4))
        if not request:
            return False
        descriptors = [number for (number,) in struct.iter_unpack("=i", ancillary[0][2])]
        try:
            child = fork(ourselves, apart=request != NURSERY)
        except OSError as error:  # no room for one more process or namespace; there may be soon
            child = -1
            if request != NURSERY:
                os.write(descriptors[3], f"{error}\n".encode())
        if child == 0:
            control.close()
            os.close(ourselves)
            if request == NURSERY:
                return serve(moved(*descriptors))
            start(request, *descriptors)
            return True
        for descriptor in descriptors:
            os.close(descriptor)


def fork(ourselves: int, *, apart: bool) -> int:
    """Forks a child, `apart`: one that is process 1 of a new namespace, which can be made only from the zygote's own:
    it goes back there first."""
    check(libc.setns(ourselves, NEW_PROCESSES))
    if apart:
        check(libc.unshare(NEW_PROCESSES))
    return os.fork()


def moved(control: int, *entrances: int) -> socket.socket:
    """Moves this process to where the entrances lead."""
    check(libc.prctl(SET_NAME, b"nursery"))
    for entrance in entrances:
        os.write(entrance, b"0")
        os.close(entrance)
    return socket.socket(fileno=control)


def start(request: bytes, source: int, stdin: int, stdout: int, stderr: int, lifeline: int) -> None:
    """Makes the call's namespaces and workspace, gives up all rights, and forks: returns in the program's process."""
    os.dup2(stderr, 2)
    check(libc.prctl(SET_NAME, b"program"))
    os.setsid()  # else the program could signal the zygote's process group
    cpu_s, memory, files, processes = REQUEST.unpack_from(request)
    check(libc.unshare(NEW_MOUNTS | NEW_NETWORK | NEW_IPC | NEW_HOST_NAME))
    raise_loopback()
    options = f"size={files},nr_inodes={files // BYTES_PER_FILE},mode=755"
    check(libc.mount(b"tmpfs", b"/tmp", b"tmpfs", NO_SETUID_NO_DEVICES, options.encode()))
    os.chdir("/tmp")
    with open(source, "rb") as program, open(MAIN, "wb") as file:
        file.write(program.read())
    # Last, so that all of the above belongs to a user namespace in which the program has no rights.
    check(libc.unshare(NEW_USER))
    check(libc.capset(struct.pack("=Ii", CAPABILITIES_VERSION_3, 0), bytes(24)))
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the kernel keeps from process 1 what it has no handler for
    if program := os.fork():
        watch(program, lifeline)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for target, descriptor in enumerate((stdin, stdout, stderr, lifeline)):
        os.dup2(descriptor, target)
    os.closerange(4, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    confine(cpu_s, memory, files, processes, request[REQUEST.size :])
    os.write(3, READY)
    os.close(3)


def raise_loopback() -> None:
    any_socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    fcntl.ioctl(any_socket, SET_INTERFACE_FLAGS, struct.pack("16sh22x", b"lo", INTERFACE_UP))
    any_socket.close()


def watch(program: int, lifeline: int) -> None:
    """What process 1 does: waits until the program has ended, or the caller's end has closed. Does not return."""
    poll = select.poll()
    poll.register(lifeline, select.POLLIN)
    poll.register(os.pidfd_open(program), select.POLLIN)
    if lifeline not in dict(poll.poll()):
        code = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
        os.write(lifeline, bytes([code if code >= 0 else 128 - code]))
    os._exit(0)


def confine(cpu_s: int, memory: int, files: int, processes: int, filter: bytes) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    resource.setrlimit(resource.RLIMIT_NPROC, (processes, processes))
    resource.setrlimit(resource.RLIMIT_SIGPENDING, (SIGNALS, SIGNALS))
    resource.setrlimit(resource.RLIMIT_FSIZE, (files, files))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
    lines = ctypes.create_string_buffer(filter, len(filter))
    check(libc.prctl(SET_SECCOMP, FILTER, struct.pack("HP", len(filter) // 8, ctypes.addressof(lines)), 0, 0))


def forget() -> None:
    """Makes the interpreter look as if it had just been started with MAIN."""
    for name in sys.modules.keys() - FRESH:
        del sys.modules[name]
    sys.modules["__main__"] = main = type(sys)("__main__")
    main.__dict__.update(__builtins__=builtins, __annotations__={})
    sys.orig_argv[-len(sys.argv) :] = [MAIN]
    sys.argv[:] = [MAIN]


def run_main() -> int:
    """Runs the program by the function behind `python FILE`, so that tracebacks and exit statuses are the same."""
    fopen, run_file = libc.fopen, ctypes.pythonapi.PyRun_SimpleFileExFlags
    fopen.restype = ctypes.c_void_p
    run_file.argtypes = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_void_p
    return run_file(fopen(MAIN.encode(), b"rb"), MAIN.encode(), 1, None)


if __name__ == "__main__":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel clears away what has ended
    gc.collect()
    gc.freeze()  # a collection in a fork would touch, and so copy, all that there is
    if serve(socket.socket(fileno=int(sys.argv[1]))):
        forget()
        if run_main() != 0:
            sys.excepthook = lambda *_: None  # it has been shown
            raise RuntimeError
