"""Programs that try to hold more than a sandbox allows, by ways that no limit of a process counts."""

CALL = """
import ctypes, errno, mmap, os, socket, struct
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    ctypes.set_errno(0)
    result = libc.syscall(number, *[a if isinstance(a, bytes) else ctypes.c_long(a) for a in arguments])
    return result if result >= 0 else errno.errorcode[ctypes.get_errno()]
rest = b"x" * (1 << 20)
def fill(end):
    "Sends until the socket takes no more; returns the bytes that it took."
    end.setblocking(False)
    written = 0
    try:
        while True: written += end.send(rest)
    except BlockingIOError: return written
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
kept = []
def some():
    kept.extend(pair := socket.socketpair())
    for end in pair:
        try: end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 << 20)
        except OSError: pass
    return sum(map(fill, pair))
"""

TCP = """
kept = []
def some():
    "A connection to itself."
    kept.append(end := socket.socket())
    end.bind(("127.0.0.1", 0))
    end.connect(end.getsockname())
    return fill(end)
"""

TCP_SERVER = """
kept = []
server = socket.create_server(("127.0.0.1", 0))
def some():
    kept.append(socket.create_connection(server.getsockname()))
    kept.append(server.accept()[0])
    return sum(map(fill, kept[-2:]))
"""

TCP_UNACCEPTED = """
server = socket.socket(); server.bind(("127.0.0.1", 0)); server.listen(4096)
def some():
    with socket.create_connection(server.getsockname()) as client: return fill(client)
"""

DATAGRAMS = """
kept, rest = [], b"x" * 60000
def some():
    kept.append(end := socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    end.bind(("127.0.0.1", 0))
    end.setblocking(False)
    for _ in range(8): end.sendto(rest, end.getsockname())
    return 8 * len(rest)
"""

PIPES = """
kept, rest = [], bytes(1 << 16)
def some():
    kept.append(os.pipe())
    return os.write(kept[-1][1], rest)
"""

UNACCEPTED = """
server = socket.socket(socket.AF_UNIX); server.bind("\\0s"); server.listen(4096)
def some():
    with socket.socket(socket.AF_UNIX) as client:
        client.connect("\\0s")
        return fill(client)
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

OWN_MEMORY = """
kept = []
def some():
    try: kept.append(bytearray(b"x") * (1 << 20))
    except MemoryError: raise OSError(errno.ENOMEM, "no memory")
    return 1 << 20
"""

MEMORY_FILES = """
kept = []
def some():
    if not kept: kept.append(os.memfd_create("m"))
    return os.write(kept[0], rest)
"""

FILES = """
names = iter(range(1 << 30))
def some():
    with open(f"/tmp/{next(names)}", "wb", buffering=0) as file: return file.write(rest)
"""

WATCHES = """
names, kept = iter(range(1 << 30)), []
def some():
    "A watch takes more than 256 bytes of the kernel's memory, and the folder that it holds a KiB."
    if not kept: kept.append(libc.inotify_init())
    if kept[0] < 0: raise OSError(1, "no inotify")
    os.mkdir(name := f"/tmp/w{next(names)}")
    if libc.inotify_add_watch(kept[0], name.encode(), 0xFFF) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return 1 << 10
"""

PAGE_TABLES = """
kept = []
def some():
    "A page of its own in each GiB of addresses: two pages of tables beside it."
    kept.append(pages := mmap.mmap(-1, 1 << 30, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000))
    pages[0] = 1
    return 12 << 10
"""

TIMERS = """
import signal
ident = ctypes.c_int()
def some():
    "A timer takes about 256 bytes, with its signal."
    if isinstance(result := call(222, 1, 0, ctypes.addressof(ident)), str): raise OSError(result, result)
    return 256
"""

MESSAGES = """
rest = ctypes.create_string_buffer(struct.pack("q", 1) + b"x" * 8000)
def some():
    "System V's message queues."
    queue = call(68, 0, 0o1600)
    if isinstance(queue, str): raise OSError(queue, queue)
    held = 0
    while not isinstance(call(69, queue, ctypes.addressof(rest), 8000, 0o4000), str): held += 8000
    return held
"""

SHARED_MEMORY = """
def some():
    "System V's shared memory, which nobody maps any more."
    key = call(29, 0, 1 << 20, 0o1600)
    if isinstance(key, str): raise OSError(key, key)
    libc.shmat.restype = ctypes.c_void_p
    at = libc.shmat(key, None, 0)
    ctypes.memset(at, 1, 1 << 20)
    libc.shmdt(ctypes.c_void_p(at))
    return 1 << 20
"""

KEYS = """
names, value = iter(range(1 << 30)), b"x" * 30000
def some():
    result = call(248, b"user", f"k{next(names)}".encode(), value, len(value), -3)
    if isinstance(result, str): raise OSError(result, result)
    return len(value)
"""

WAYS = {
    "its own memory": OWN_MEMORY,
    "memory files": MEMORY_FILES,
    "files": FILES,
    "inotify watches": WATCHES,
    "page tables": PAGE_TABLES,
    "timers": TIMERS,
    "message queues": MESSAGES,
    "System V's shared memory": SHARED_MEMORY,
    "keys of the kernel": KEYS,
    "Unix sockets": UNIX_SOCKETS,
    "TCP": TCP,
    "TCP between two ends": TCP_SERVER,
    "TCP connections that nobody accepts": TCP_UNACCEPTED,
    "datagrams": DATAGRAMS,
    "pipes": PIPES,
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
