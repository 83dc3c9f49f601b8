"""The zygote: a running interpreter that waits inside bubblewrap and forks for each program.

    bubblewrap
      └─ zygote          process 1 of its namespace
           ├─ nursery    for each cgroup: a zygote that was moved there, so that its forks need not be moved
           └─ init       for each call: process 1 of new namespaces of processes, mounts, network, IPC, host name, users
                └─ program

This is a script without imports of the project, which is not visible inside. Its argument is a socket's descriptor. A
message NURSERY on it asks for a nursery; with it come a socket like this one and the entrances of a cgroup. Any other
message asks for a fork; it holds the limits and a seccomp filter, and with it come five descriptors: the program's
source, its standard input, output and error, and a lifeline. On the lifeline, init's caller reads READY once
the program is confined, then, once it has ended, its exit status in one byte (128 + n for death by signal n). When the
caller's end closes, init ends, and with it the kernel kills all that is left in the namespace. Errors before READY are
written to the standard error.

A fork copies each page that it touches, so this script imports few modules: the C modules beneath `socket` and `signal`
suffice.
"""

# ruff: noqa: E402
import sys

FRESH = frozenset(sys.modules)
"""Modules that the interpreter loads at its start."""

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
"""CPU time in seconds, bytes of address space, bytes of files, number of processes and threads; the filter follows."""
NURSERY = b"nursery"
LONGEST = 1 << 14
"""Maximum bytes of a message."""
MOST_DESCRIPTORS = 8
MAIN = "/tmp/main.py"
DESCRIPTORS = 64
"""Maximum number of a program's open files, since the contents of pipes and sockets (up to 0.4 MiB for a pair) are not
in its address space."""
SIGNALS = 64
"""Maximum number of pending signals of a program; all runs share the user's maximum."""
BYTES_PER_FILE = 4096
"""A workspace of n bytes may hold n / BYTES_PER_FILE files, since an empty file takes memory too."""

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
        except OSError as error:  # a limit of processes or namespaces is reached, perhaps only for a moment
            child = -1
            if request != NURSERY:
                os.write(descriptors[3], f"{error}\n".encode())
        if child == 0:
            control.close()
            os.close(ourselves)
            if request == NURSERY:
                return serve(enter_cgroup(*descriptors))
            start(request, *descriptors)
            return True
        for descriptor in descriptors:
            os.close(descriptor)


def fork(ourselves: int, *, apart: bool) -> int:
    """Forks a child; apart: as process 1 of a new process namespace. Returns to the zygote's own namespace first, since
    a new one can be made only from there."""
    check(libc.setns(ourselves, NEW_PROCESSES))
    if apart:
        check(libc.unshare(NEW_PROCESSES))
    return os.fork()


def enter_cgroup(control: int, *entrances: int) -> socket.socket:
    """Moves this process to the cgroup of the entrances and returns its control socket."""
    check(libc.prctl(SET_NAME, b"nursery"))
    for entrance in entrances:
        os.write(entrance, b"0")
        os.close(entrance)
    return socket.socket(fileno=control)


def start(request: bytes, source: int, stdin: int, stdout: int, stderr: int, lifeline: int) -> None:
    """Makes the call's namespaces and workspace, gives up all capabilities, and forks; returns in the program's
    process."""
    os.dup2(stderr, 2)
    check(libc.prctl(SET_NAME, b"program"))
    os.setsid()  # otherwise the program could signal the zygote's process group
    cpu_s, memory, files, processes = REQUEST.unpack_from(request)
    check(libc.unshare(NEW_MOUNTS | NEW_NETWORK | NEW_IPC | NEW_HOST_NAME))
    raise_loopback()
    options = f"size={files},nr_inodes={files // BYTES_PER_FILE},mode=755"
    check(libc.mount(b"tmpfs", b"/tmp", b"tmpfs", NO_SETUID_NO_DEVICES, options.encode()))
    os.chdir("/tmp")
    with open(source, "rb") as program, open(MAIN, "wb") as file:
        file.write(program.read())
    # Last, so that all of the above belongs to a user namespace in which the program has no capabilities.
    check(libc.unshare(NEW_USER))
    check(libc.capset(struct.pack("=Ii", CAPABILITIES_VERSION_3, 0), bytes(24)))
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the kernel blocks signals to process 1 without a handler
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
    """The main loop of process 1: waits until the program has ended or the caller's end has closed. Does not return."""
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
    """Resets the interpreter to the state of one that was just started with MAIN."""
    for name in sys.modules.keys() - FRESH:
        del sys.modules[name]
    sys.modules["__main__"] = main = type(sys)("__main__")
    main.__dict__.update(__builtins__=builtins, __annotations__={})
    sys.orig_argv[-len(sys.argv) :] = [MAIN]
    sys.argv[:] = [MAIN]


def run_main() -> int:
    """Runs the program with the function behind `python FILE`, so that tracebacks and exit statuses are the same."""
    fopen, run_file = libc.fopen, ctypes.pythonapi.PyRun_SimpleFileExFlags
    fopen.restype = ctypes.c_void_p
    run_file.argtypes = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_void_p
    return run_file(fopen(MAIN.encode(), b"rb"), MAIN.encode(), 1, None)


if __name__ == "__main__":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps ended children
    gc.collect()
    gc.freeze()  # a collection in a fork would touch, and so copy, all objects
    if serve(socket.socket(fileno=int(sys.argv[1]))):
        forget()
        if run_main() != 0:
            sys.excepthook = lambda *_: None  # the error has been printed already
            raise RuntimeError
