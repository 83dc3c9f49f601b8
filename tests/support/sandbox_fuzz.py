"""Programs of system calls at random: half of them allowed ones with valid arguments, the others anything."""

from coa.tools.sandbox.filter import allowed_calls

PROGRAM = """
import ctypes, fcntl, mmap, os, random, select, signal, socket, threading, time
draw = random.Random({seed})
libc = ctypes.CDLL(None, use_errno=True)
signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)  # what blocks is interrupted
deadline = time.monotonic() + 0.5
buffer = ctypes.create_string_buffer(b"x" * 65536)
address, page = ctypes.addressof(buffer), mmap.mmap(-1, 1 << 20)
kept, allowed = [], {allowed}

def name(): return draw.choice("abcdefgh")
def some(): return draw.choice(kept)
def keep(*things): kept.extend(things)
def listen():
    server = socket.socket(draw.choice([1, 2]), 1)
    server.bind("\\0" + name() if server.family == 1 else ("127.0.0.1", 0))
    server.listen(4096)
    keep(server)
    for _ in range(30):
        client = socket.socket(server.family); client.setblocking(False)
        try: client.connect(server.getsockname()); client.send(b"x" * 400000)
        except BlockingIOError: pass
        keep(client)
def pair():
    a, b = socket.socketpair(); a.setblocking(False)
    a.setsockopt(1, draw.choice([7, 8]), 1 << 22); keep(a, b); a.send(b"x" * (1 << 20))
    socket.send_fds(b, [b"x"], [a.fileno(), b.fileno()])
def datagrams():
    a = socket.socket(2, 2); a.bind(("127.0.0.1", 0)); keep(a)
    for _ in range(20): a.sendto(b"x" * 60000, a.getsockname())
def pipe():
    r, w = os.pipe(); os.set_blocking(w, False); os.write(w, bytes(1 << 16)); keep(r, w)
def file():
    with open(name(), "ab") as f: f.write(b"x" * draw.randrange(1 << 18)); f.truncate(draw.randrange(1 << 20))
def many():
    for n in range(200): os.mkdir(name() + str(draw.random()))
def epoll():
    e = select.epoll(); keep(e)
    for thing in kept[-20:]:
        if hasattr(thing, "fileno"): e.register(thing)
VALID = [
    listen, pair, datagrams, pipe, file, many, epoll,
    lambda: keep(mmap.mmap(-1, draw.randrange(1, 1 << 24))), lambda: keep(b"x" * draw.randrange(1 << 24)),
    lambda: threading.Thread(target=time.sleep, args=(0.1,), daemon=True).start(),
    lambda: os.symlink(name() * 200, name()), lambda: os.rename(name(), name()), lambda: os.unlink(name()),
    lambda: os.link(name(), name()), lambda: os.mkfifo("fifo" + name()),
    lambda: os.truncate(name(), draw.randrange(1 << 30)),
    lambda: os.stat(name()), lambda: os.listdir(draw.choice(["/", "/usr/lib", "."])), lambda: keep(os.eventfd(0)),
    lambda: fcntl.flock(0, fcntl.LOCK_EX), lambda: fcntl.fcntl(0, fcntl.F_GETFL), lambda: os.getpriority(0, 0),
    lambda: page.madvise(draw.choice([4, 8, 14])), lambda: os.sched_getaffinity(0), lambda: signal.sigpending(),
    lambda: keep(open(os.__file__)), lambda: os.posix_fallocate(os.open(name(), 66), 0, draw.randrange(1 << 22)),
    lambda: os.kill(draw.choice([0, 1, os.getpid()]), 0), lambda: time.sleep(0.001), lambda: os.utime(name()),
]
EDGES = [0, 1, 2, 3, 4, 7, 9, 16, 64, 255, 4096, 65536, 1 << 20, 1 << 31, 1 << 40, (1 << 63) - 1, -1, -100]
def argument():
    return draw.choice([draw.choice(EDGES), draw.randrange(300), address + draw.randrange(60000), draw.getrandbits(64)])
def anything():
    number = draw.choice([draw.choice(allowed), draw.randrange(480), draw.getrandbits(32)])
    if number not in {ends}:
        libc.syscall(ctypes.c_long(number), *[ctypes.c_long(argument()) for _ in range(6)])
made = 0
while time.monotonic() < deadline and made < 300:
    made += 1
    try: draw.choice(VALID)() if draw.random() < 0.5 else anything()
    except (OSError, ValueError, MemoryError, RuntimeError, IndexError): pass
os._exit(0)
"""


def program(seed: int) -> str:
    """One that ends by itself, in half a second, if no call of its own ends it before."""
    calls = allowed_calls()
    # The end of the program or of its thread, and a wait that its alarm may not end.
    ends = {calls[name] for name in ("exit", "exit_group", "rt_sigreturn")}
    return PROGRAM.format(seed=seed, allowed=sorted(calls.values()), ends=ends)
