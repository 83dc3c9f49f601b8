"""Programs that attack a sandbox, and what the policy is told of each."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Attack:
    program: str
    output: str
    """A pattern for all that the policy is told."""
    wall_s: float | None = None
    """Where it is the wall limit that ends it."""


SHORT = 0.3
OUT_OF_TIME = r"(.*\n)*stopped: over the limit of 0\.3 s"
OUT_OF_CPU = r"stopped: (over the limit of 1 s of CPU time|killed, out of CPU time or memory)"
OUT_OF_MEMORY = r"MemoryError: over the limit of 256 MiB"
REFUSED = r"PermissionError: \[Errno 1\] Operation not permitted"
TRY = """
def attempt(action, *arguments):
    try:
        print(action.__name__, action(*arguments))
    except OSError as error:
        print(error.strerror)
"""

PROCESSES = {
    "a fork": Attack("import os; os.fork()", REFUSED),
    "a fork bomb": Attack("import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", OUT_OF_CPU),
    "a double fork": Attack(
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: time.sleep(60)", REFUSED
    ),
    "a new terminal": Attack("import pty; pty.fork()", r".*(Errno|Error).*"),
    "a shell": Attack("import os; print(os.system('true'))", "-1|32512"),
    "a subprocess": Attack("import subprocess, sys; subprocess.run([sys.executable])", REFUSED),
    "multiprocessing": Attack(
        "import multiprocessing as m\nm.get_context('fork').Process(target=print).start()", REFUSED
    ),
    "a spawn": Attack("import os, sys; os.posix_spawn(sys.executable, ['x'], {})", REFUSED + ".*"),
    "another program in its place": Attack(
        "import os, sys; os.execv(sys.executable, ['python', '-ISc', 'import os; print(os.getpid()); os.fork()'])",
        r"2\n" + REFUSED,
    ),
    "forks by the C library": Attack(
        "import ctypes; c = ctypes.CDLL(None); print(c.fork(), c.vfork(), c.daemon(0, 0), c.popen(b'x', b'r'))",
        r"-1 -1 -1 0",
    ),
    "threads without end": Attack(
        "import _thread, time\n_thread.stack_size(1 << 15)\nwhile True: _thread.start_new_thread(time.sleep, (9,))",
        "RuntimeError: can't start new thread|.*",  # with no memory left, the end may be as sudden as it likes
    ),
    "threads that spin": Attack(
        "import threading\ndef f():\n    while True: pass\nfor n in range(8): threading.Thread(target=f).start()",
        OUT_OF_CPU,
    ),
}

SIGNALS = {
    "killing everything": Attack("import os; os.kill(-1, 9)", r"(ProcessLookupError.*|PermissionError.*)?"),
    "killing the first process": Attack(
        "import os, signal\nfor n in range(1, 65): os.kill(1, n); os.kill(os.getppid(), n)\nprint('alive')", "alive"
    ),
    "killing the process group": Attack("import os; os.kill(0, 9)", "stopped: killed, out of CPU time or memory"),
    "stopping the first process": Attack("import os, signal, time\nos.kill(1, 19); time.sleep(60)", OUT_OF_TIME, SHORT),
    "killing by all numbers": Attack(
        "import os\nfor n in range(3, 40000):\n    try: os.kill(n, 9); print(n)\n    except ProcessLookupError: pass",
        "",
    ),
    "deaf to signals": Attack(
        "import signal, time\nfor n in set(signal.valid_signals()) - {9, 19}: signal.signal(n, signal.SIG_IGN)\n"
        "time.sleep(60)",
        OUT_OF_TIME,
        SHORT,
    ),
    "deaf to the CPU limit": Attack(
        "import signal; signal.signal(signal.SIGXCPU, lambda *_: None)\nwhile True: pass", OUT_OF_CPU
    ),
    "sleeping": Attack("import time; time.sleep(1e6)", OUT_OF_TIME, SHORT),
    "waiting for input for ever": Attack("import os\nr, w = os.pipe(); os.read(r, 1)", OUT_OF_TIME, SHORT),
    "stopping itself": Attack("import os, signal; os.kill(os.getpid(), signal.SIGSTOP)", OUT_OF_TIME, SHORT),
    "raising its limits": Attack(
        "import resource as r; r.setrlimit(r.RLIMIT_CPU, (r.RLIM_INFINITY, r.RLIM_INFINITY))",
        "ValueError: not allowed to raise maximum limit",
    ),
    "limits for the first process": Attack(
        "import resource as r; r.prlimit(1, r.RLIMIT_CPU, (0, 0))", "PermissionError.*"
    ),
    "a slow first process": Attack(
        "import os\nos.setpriority(0, 1, 19)\nwhile True: pass",
        OUT_OF_TIME,
        SHORT,
    ),
    "an idle first process": Attack("import os; os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0))", REFUSED),
    "real-time priority": Attack(
        "import os; os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))", "PermissionError.*"
    ),
}

MEMORY = {
    "bytes": Attack("x = b'x' * (1 << 40)", OUT_OF_MEMORY),
    "a list": Attack("x = [0]\nwhile True: x += x", OUT_OF_MEMORY),
    "mapped memory": Attack("import mmap\nx = [mmap.mmap(-1, 1 << 24) for n in range(99)]", ".*Cannot allocate memory"),
    "a deep recursion": Attack("def f(): f()\nf()", "RecursionError: maximum recursion depth exceeded"),
    "a recursion without limit": Attack(
        "import sys; sys.setrecursionlimit(1 << 30)\nclass A:\n    def __repr__(self): return repr(self)\nrepr(A())",
        "exit status 139|(MemoryError|RecursionError).*",  # from Python 3.12 on, C code has a limit of its own
    ),
    "a deep expression": Attack("eval('(' * 100_000 + ')' * 100_000)", "(SyntaxError|MemoryError).*"),
    "a huge number": Attack("x = 7 ** 10 ** 9", OUT_OF_CPU + "|" + OUT_OF_MEMORY),
    "full pipes": Attack(
        "import os\nwhile True:\n    r, w = os.pipe(); os.set_blocking(w, False); os.write(w, bytes(1 << 20))",
        r"OSError: \[Errno 24\] Too many open files",
    ),
    "open files": Attack("x = [open('main.py') for n in range(9999)]", r"OSError: \[Errno 24\] Too many open files.*"),
    "files without a name": Attack("import os; os.memfd_create('x')", REFUSED),
    "shared memory": Attack(
        "from multiprocessing.shared_memory import SharedMemory as S; S(create=True, size=9)", ".*Error.*"
    ),
}

OUTPUT = {
    "output without end": Attack("while True: print('x' * 1000)", r"[x\n]*(\[.*\n)?[x\n]*stopped: .*", SHORT),
    "one line without end": Attack(
        "while True: print('x' * 9999, end='')", r"x+\n\[\d+ bytes left out\]\nx+\nstopped: .*"
    ),
    "errors without end": Attack("import sys\nwhile True: sys.stderr.write('x' * 9999)", "stopped: .*", SHORT),
    "no text": Attack("import sys; sys.stdout.buffer.write(bytes(range(256)))", "(?s)\0\x01.*�"),
    "a deaf reader": Attack("import os\nos.close(0); os.close(1); os.close(2)\nprint(1)", "exit status 120|.*"),
    "writing to every descriptor": Attack(
        "import os\nfor n in range(3, 4096):\n    try: print(n, os.write(n, b'+\\0'))\n    except OSError: pass\n"
        "os._exit(7)",
        "exit status 7",
    ),
    "closing every descriptor": Attack("import os; os.closerange(0, 4096); os._exit(0)", ""),
    "reading every descriptor": Attack(
        "import os\nfor n in range(1, 4096):\n    try: print(n, os.read(n, 9))\n    except OSError: pass", ""
    ),
}

SECRETS = (
    *("/etc/shadow", "/etc/passwd", "/proc", "/proc/1/environ", "/proc/self/mem", "/proc/self/fd", "/sys", "/dev/mem"),
    *("/dev/shm", "/root/.ssh", "/home", "/var", "/run", str(Path(__file__).parents[2])),
)
FILES = {
    "secrets": Attack(
        f"import os; print([path for path in {SECRETS} if os.path.exists(path)])",
        r"\[\]",
    ),
    "writing anywhere": Attack(
        "import os, sys\nfor folder in '/', '/usr', '/usr/lib', '/dev', '/etc', sys.prefix, os.__file__[:-6]:\n"
        "    try: open(folder + '/escape', 'w'); print(folder)\n    except OSError: pass",
        "",
    ),
    "changing what is there": Attack(
        TRY + "import os, sys\nfor p in '/', '/dev', '/dev/null', '/usr/lib', sys.executable, os.__file__:\n"
        "    attempt(os.chmod, p, os.stat(p).st_mode); attempt(os.utime, p); attempt(os.rename, p, p + 'x')\n"
        "    attempt(os.unlink, p)",
        "((Read-only file system|Device or resource busy|Is a directory)\n?)+",
    ),
    "devices": Attack("import os, stat; os.mknod('sda', 0o600 | stat.S_IFBLK, os.makedev(8, 0))", REFUSED),
    "links out of the workspace": Attack(
        TRY + "import os\nos.symlink('/etc/shadow', 'a'); os.symlink('../../..', 'b'); os.rename('b', 'main.py')\n"
        "attempt(open, 'a'); attempt(open, 'main.py/etc/passwd'); attempt(os.link, os.__file__, 'c')\n"
        "print(os.listdir('main.py/etc'))",
        r"(No such file or directory\n){2}Invalid cross-device link\n\['ld.so.cache'\]",
    ),
    "a workspace that is gone": Attack(
        "import os, shutil\nos.unlink('main.py'); os.mkdir('a'); os.chdir('a'); os.rmdir('../a'); os.getcwd()",
        "FileNotFoundError.*",
    ),
    "a huge file": Attack(
        "x = open('x', 'wb')\nwhile True: x.write(bytes(1 << 20))", ".*(File too large|No space left on device)"
    ),
    "a sparse file": Attack("open('x', 'wb').truncate(1 << 40)", ".*File too large"),
    "large files": Attack("for n in range(9): open(str(n), 'wb').write(bytes(1 << 20))", ".*No space left on device.*"),
    "many files": Attack(
        "import os\nfor n in range(1 << 30): os.mkdir(str(n))", ".*No space left on device.*|" + OUT_OF_CPU
    ),
}

NETWORK = {
    "IPv4": Attack("import socket; socket.create_connection(('198.51.100.1', 80), 1)", ".*Network is unreachable"),
    "IPv6": Attack("import socket; socket.create_connection(('2001:db8::1', 80), 1)", ".*(unreachable|assign).*"),
    "datagrams": Attack(
        "import socket as s; s.socket(2, 2).sendto(b'x', ('198.51.100.1', 53))", ".*Network is unreachable"
    ),
    "names": Attack("import socket; socket.getaddrinfo('example.org', 80)", "socket.gaierror.*"),
    "raw sockets": Attack("import socket as s; s.socket(s.AF_INET, s.SOCK_RAW, 1)", REFUSED),
    "packets": Attack("import socket as s; s.socket(s.AF_PACKET, s.SOCK_RAW)", REFUSED),
    "a new address": Attack(
        "import socket as s, fcntl; fcntl.ioctl(s.socket(2, 2), 0x8914, b'lo' + bytes(38))", REFUSED
    ),
    "the host's name": Attack("import socket; socket.sethostname('x')", REFUSED),
    "the clock": Attack("import time; time.clock_settime(time.CLOCK_REALTIME, 0)", REFUSED),
}

NATIVE = {
    "a crash": Attack("import ctypes; ctypes.string_at(0)", "exit status 139"),
    "an abort": Attack("import os; os.abort()", "exit status 134"),
    "a crash of the interpreter": Attack(
        "import faulthandler; faulthandler.enable(); faulthandler._sigsegv()", "exit status 139|.*"
    ),
    "becoming root": Attack(
        "import ctypes; c = ctypes.CDLL(None); print(c.setuid(0), c.setgid(0), c.setgroups(0, 0), c.chroot(b'.'))",
        "-1 -1 -1 -1",
    ),
    "rights": Attack(
        "import ctypes, struct; rights = ctypes.create_string_buffer(24)\n"
        "print(ctypes.CDLL(None).capget(struct.pack('Ii', 0x20080522, 0), rights), set(rights.raw))",
        r"0 \{0\}",
    ),
    "namespaces": Attack(
        "import ctypes; c = ctypes.CDLL(None); print(c.unshare(0x10000000), c.unshare(0x20000), c.setns(0, 0))",
        "-1 -1 -1",
    ),
    "mounts": Attack(
        "import ctypes; c = ctypes.CDLL(None)\n"
        "print(c.mount(b'x', b'/tmp', b'tmpfs', 0, 0), c.mount(0, b'/', 0, 0x1020, 0),"
        " c.mount(b'x', b'/tmp', b'proc', 0, 0), c.umount2(b'/tmp', 2), c.umount2(b'/dev/null', 2))",
        "-1 -1 -1 -1 -1",
    ),
    "tracing": Attack(
        "import ctypes; c = ctypes.CDLL(None); print([c.ptrace(n, 1, 0, 0) for n in (0, 16, 0x4206)])",
        r"\[-1, -1, -1\]",
    ),
}

ALL = {
    f"{family}: {name}": attack
    for family, attacks in {
        "processes": PROCESSES,
        "signals": SIGNALS,
        "memory": MEMORY,
        "output": OUTPUT,
        "files": FILES,
        "network": NETWORK,
        "native": NATIVE,
    }.items()
    for name, attack in attacks.items()
}
