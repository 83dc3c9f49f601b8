"""The command lines of the sandbox: the parts of the file system that bubblewrap shows, and the program it starts."""

import os
import shutil
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from coa.errors import ToolDown, UserError
from coa.tools.sandbox.cgroup import MIB
from coa.tools.sandbox.run import Confines, RunLimits
from coa.tools.sandbox.zygote import BYTES_PER_FILE, DESCRIPTORS, SIGNALS

INSTALL = "install bubblewrap and util-linux (Debian, Ubuntu: apt-get install bubblewrap util-linux)"
FLAGS = ("-I", "-S", "-E", "-B", "-X", "utf8")
PACKAGES = "/packages"
"""The path at which a program sees the virtual environment of its packages."""
ZYGOTE = Path(__file__).with_name("zygote.py")
_JOIN = 'until [ "$1" = -- ]; do echo 0 > "$1"; shift; done; shift; exec "$@"'
"""Shell script that moves itself to the cgroup whose entrances are its first arguments, then runs the command."""
_WORKSPACE = 'mount -t tmpfs -o "$1" tmpfs /sys && shift && exec "$@"'
"""Shell script that mounts a workspace with a limit on the number of files, which bubblewrap has no option for, at an
unused path."""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """The interpreter of programs, and the host's files that it needs."""

    command: tuple[str, ...]
    """Command inside the sandbox."""
    bare: tuple[str, ...]
    """Command outside the sandbox."""
    binds: tuple[str, ...]
    """Options of bubblewrap that bind its files."""
    environment: tuple[str, ...] = ()
    """Options of bubblewrap that set environment variables."""


def interpreter_of(packages: str | None = None) -> Interpreter:
    """The base interpreter, or that of the virtual environment `packages`, whose packages programs may import.

    Raises UserError for a folder that is no virtual environment.
    """
    if packages is None:
        python = Path(base_python())
        return Interpreter((str(python), *FLAGS), (str(python), *FLAGS), _base_binds(python))
    link = Path(packages, "bin", "python")
    python, folder = link.resolve(), Path(packages).resolve()
    if not (folder / "pyvenv.cfg").is_file() or not python.is_file() or python.is_relative_to(folder):
        make = f"{base_python()} -m venv {packages}"
        raise UserError(f"tools.sandbox.packages={packages} is not a virtual environment; make one with: {make}")
    flags = tuple(flag for flag in FLAGS if flag != "-S")
    return Interpreter(
        command=(f"{PACKAGES}/bin/python", *flags),
        bare=(str(link), *flags),
        binds=(*_base_binds(python), "--ro-bind", str(folder), PACKAGES),
        # On a machine with many cores, a library's threads, one for each core, would use up the address space.
        environment=("--setenv", "OMP_NUM_THREADS", "1", "--setenv", "OPENBLAS_NUM_THREADS", "1"),
    )


def cold_command(
    interpreter: Interpreter, limits: RunLimits, confines: Confines, *, source: int, notes: int, seccomp: int
) -> tuple[str, ...]:
    """The command for one program. source, notes, seccomp: numbers of open file descriptors."""
    files = limits.files_mib * MIB
    if confines.group is not None:
        around = ("/bin/sh", "-c", _JOIN, "sh", *confines.group.entrances, "--")
        workspace = ("--size", str(files), "--tmpfs", "/tmp")
    else:
        options = f"size={files},nr_inodes={files // BYTES_PER_FILE},mode=755"
        around = (_find("unshare"), "--user", "--map-root-user", "--mount", "/bin/sh", "-c", _WORKSPACE, "sh", options)
        workspace = ("--bind", "/sys", "/tmp")
    prlimit = _find("prlimit")
    return (
        *around,
        *_bubblewrap(interpreter),
        *("--cap-drop", "ALL", "--json-status-fd", str(notes), "--seccomp", str(seccomp)),
        *workspace,
        *("--perms", "0644", "--file", str(source), "/tmp/main.py"),
        # Set inside the sandbox, where only the program's processes are counted.
        *("--ro-bind", prlimit, prlimit, "--remount-ro", "/"),
        *(prlimit, f"--nproc={confines.processes}", f"--sigpending={SIGNALS}", *_limits(limits), "--"),
        *(*interpreter.command, "/tmp/main.py"),
    )


def zygote_command(interpreter: Interpreter, control: int) -> tuple[str, ...]:
    """The command of the zygote, which may create namespaces, mounts and a network interface in its own namespaces.

    control: number of the descriptor of its socket.
    """
    return (
        *_bubblewrap(interpreter),
        *("--as-pid-1", "--cap-drop", "ALL", "--cap-add", "CAP_SYS_ADMIN", "--cap-add", "CAP_NET_ADMIN"),
        *("--ro-bind", str(ZYGOTE), "/tmp/zygote.py"),
        *("--remount-ro", "/", *interpreter.command, "/tmp/zygote.py", str(control)),
    )


def bare_command(interpreter: Interpreter, limits: RunLimits, path: str) -> tuple[str, ...]:
    """The command for one program without a sandbox, only with limits."""
    return (_find("prlimit"), *_limits(limits), "--", *interpreter.bare, path)


def _limits(limits: RunLimits) -> tuple[str, ...]:
    """Options of prlimit."""
    return (
        *(f"--cpu={limits.cpu_s}:{limits.cpu_s + 1}", "--core=0"),
        *(f"--as={limits.memory_mib * MIB}", f"--fsize={limits.files_mib * MIB}", f"--nofile={DESCRIPTORS}"),
    )


def _base_binds(python: Path) -> tuple[str, ...]:
    library = str(python.parent.parent / "lib")
    return ("--ro-bind", str(python), str(python), "--ro-bind", library, library)


def _bubblewrap(interpreter: Interpreter) -> tuple[str, ...]:
    """The bubblewrap command with new namespaces of all kinds and a read-only file system."""
    return (
        *(_find("bwrap"), "--unshare-all", "--die-with-parent", "--new-session"),
        *("--uid", "65534", "--gid", "65534", "--clearenv", "--setenv", "HOME", "/tmp"),
        *interpreter.environment,
        *_system_binds(),
        *interpreter.binds,
        # A read-only mount does not prevent writing to the device, but protects its mode.
        *("--dev-bind", "/dev/null", "/dev/null", "--remount-ro", "/dev/null", "--dir", "/tmp", "--chdir", "/tmp"),
    )


def _find(tool: str) -> str:
    path = shutil.which(tool)
    if path is None:
        raise ToolDown(f"{tool} is missing: {INSTALL}")
    return path


def base_python() -> str:
    """Path of the base interpreter; the interpreter of a virtual environment would not work in the sandbox, which does
    not contain its folder."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return str((Path(sys.base_prefix) / "bin" / name).resolve())


@cache
def _system_binds() -> tuple[str, ...]:
    """Options that show the shared libraries and the loader's cache; where /lib is a link, it is one inside too."""
    binds: list[str] = []
    for name in ("/usr/lib", "/usr/lib64", "/lib", "/lib64"):
        if os.path.islink(name):
            binds += ("--symlink", os.readlink(name), name)
        elif os.path.isdir(name):
            binds += ("--ro-bind", name, name)
    return (*binds, "--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache")
