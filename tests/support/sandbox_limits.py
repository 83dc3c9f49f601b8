"""Programs that try to hold more than a sandbox allows, by ways that no limit of a process counts."""

CALL = """
import ctypes, errno, mmap, os, socket, struct
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    ctypes.set_errno(0)
    result = libc.syscall(number, *[a if isinstance(a, bytes) else ctypes.c_long(a) for a in arguments])
    return result if result >= 0 else errno.errorcode[ctypes.get_errno()]
def hold(some, mib):
    "Holds memory bit by bit (some() returns the bytes of a bit), until it is refused or comes to so many MiB."
    held = 0
    try:
        while held < mib << 20:
            held += some()
    except OSError as error:
        print(error.strerror, end=": ")
    print("held all" if held >= mib << 20 else f"held {held >> 20}", flush=True)
"""

UNIX_SOCKETS = """
kept, rest = [], b"x" * (1 << 20)
def some():
    a, b = socket.socketpair()
    kept.extend((a, b))
    written = 0
    for end in a, b:
        try: end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 << 20)
        except OSError: pass
        end.setblocking(False)
        try:
            while True: written += end.send(rest)
        except BlockingIOError: pass
    return written
"""

TCP = """
kept, rest = [], b"x" * (1 << 20)
server = socket.create_server(("127.0.0.1", 0))
def some():
    kept.append(socket.create_connection(server.getsockname()))
    kept.append(server.accept()[0])
    written = 0
    for end in kept[-2:]:
        end.setblocking(False)
        try:
            while True: written += end.send(rest)
        except BlockingIOError: pass
    return written
"""

UNACCEPTED = """
rest = b"x" * (1 << 20)
server = socket.socket(socket.AF_UNIX); server.bind("\\0s"); server.listen(4096)
def some():
    client = socket.socket(socket.AF_UNIX)
    client.connect("\\0s")
    client.setblocking(False)
    written = 0
    try:
        while True: written += client.send(rest)
    except BlockingIOError: pass
    return written
"""

VMSPLICE = """
kept = []
def some():
    "Fills a pipe with bits of huge pages, which stay as a whole when their mapping goes."
    kept.append(os.pipe())
    huge = 2 << 20
    pages = mmap.mmap(-1, 17 * huge)
    pages.madvise(14)
    first = -ctypes.addressof(view := ctypes.c_char.from_buffer(pages)) % huge
    vectors = b""
    for n in range(16):
        pages[first + n * huge] = 1
        vectors += struct.pack("QQ", ctypes.addressof(view) + first + n * huge, 1)
    moved = call(278, kept[-1][1], vectors, 16, 0)
    del view
    pages.close()
    if isinstance(moved, str): raise OSError(moved, moved)
    return moved * huge
"""

EXTENDED_ATTRIBUTES = """
names, value = iter(range(1 << 30)), b"x" * (60 << 10)
def some():
    os.setxattr("main.py", f"user.{next(names)}", value)
    return len(value)
"""

EMPTY_FILES = """
names = iter(range(1 << 30))
def some():
    "An inode and a name take more than a KiB of the kernel's memory."
    os.mkdir(str(next(names)))
    return 1 << 10
"""

WAYS = {
    "Unix sockets": UNIX_SOCKETS,
    "TCP": TCP,
    "connections that nobody accepts": UNACCEPTED,
    "vmsplice": VMSPLICE,
    "extended attributes": EXTENDED_ATTRIBUTES,
    "empty files": EMPTY_FILES,
}

THREAD = 0x3D0F00
"""The flags with which the C library starts a thread; of these, 0x400 is CLONE_FILES."""

RAW_THREADS = """
stacks, most = mmap.mmap(-1, {threads} << 13), 0
base = ctypes.addressof(ctypes.c_char.from_buffer(stacks))
locals = ctypes.addressof(tls := ctypes.create_string_buffer(1 << 14)) + (1 << 13)
libc.clone.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int] + [ctypes.c_void_p] * 4
wait = ctypes.cast(libc.pause, ctypes.c_void_p)
for n in range({threads}):
    "A thread that waits for ever, on two pages."
    most += libc.clone(wait, base + (n + 1 << 13), {flags}, None, base, locals, base) > 0
print(most, flush=True)
os._exit(0)
"""
