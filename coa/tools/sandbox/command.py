"""The command lines of the sandbox: what bubblewrap shows of the file system, and what it starts inside."""

import os
import shutil
import sys
from functools import cache
from pathlib import Path

from coa.errors import ToolDown
from coa.tools.sandbox.run import MIB, RunLimits
from coa.tools.sandbox.zygote import DESCRIPTORS

INSTALL = "install bubblewrap and util-linux (Debian, Ubuntu: apt-get install bubblewrap util-linux)"
FLAGS = ("-I", "-S", "-E", "-B", "-X", "utf8")
ZYGOTE = Path(__file__).with_name("zygote.py")


def cold_command(limits: RunLimits, *, source: int, notes: int, seccomp: int) -> tuple[str, ...]:
    """The command for one program. source, notes, seccomp: numbers of open file descriptors."""
    return (
        *_limited(limits),
        *_bubblewrap(),
        *("--cap-drop", "ALL", "--json-status-fd", str(notes), "--seccomp", str(seccomp)),
        *("--size", str(limits.files_mib * MIB), "--tmpfs", "/tmp"),
        *("--perms", "0644", "--file", str(source), "/tmp/main.py"),
        *("--remount-ro", "/", base_python(), *FLAGS, "/tmp/main.py"),
    )


def zygote_command(control: int) -> tuple[str, ...]:
    """The command for the zygote, which may make namespaces, mounts and a network interface inside its own namespaces.

    control: number of the descriptor of its socket.
    """
    return (
        *_bubblewrap(),
        *("--as-pid-1", "--cap-drop", "ALL", "--cap-add", "CAP_SYS_ADMIN", "--cap-add", "CAP_NET_ADMIN"),
        *("--ro-bind", str(ZYGOTE), "/tmp/zygote.py"),
        *("--remount-ro", "/", base_python(), *FLAGS, "/tmp/zygote.py", str(control)),
    )


def bare_command(limits: RunLimits, path: str) -> tuple[str, ...]:
    """The command for one program without a sandbox, with limits alone."""
    return (*_limited(limits), base_python(), *FLAGS, path)


def _limited(limits: RunLimits) -> tuple[str, ...]:
    return (
        *(_find("prlimit"), f"--cpu={limits.cpu_s}:{limits.cpu_s + 1}", "--core=0"),
        *(f"--as={limits.memory_mib * MIB}", f"--fsize={limits.files_mib * MIB}", f"--nofile={DESCRIPTORS}", "--"),
    )


def _bubblewrap() -> tuple[str, ...]:
    """Bubblewrap with all namespaces new and a read-only file system."""
    python = Path(base_python())
    library = str(python.parent.parent / "lib")
    return (
        *(_find("bwrap"), "--unshare-all", "--die-with-parent", "--new-session"),
        *("--uid", "65534", "--gid", "65534", "--clearenv", "--setenv", "HOME", "/tmp"),
        *_system_binds(),
        *("--ro-bind", str(python), str(python), "--ro-bind", library, library),
        # A device is written in spite of a read-only mount, but its mode is safe.
        *("--dev-bind", "/dev/null", "/dev/null", "--remount-ro", "/dev/null", "--dir", "/tmp", "--chdir", "/tmp"),
    )


def _find(tool: str) -> str:
    path = shutil.which(tool)
    if path is None:
        raise ToolDown(f"{tool} is missing: {INSTALL}")
    return path


def base_python() -> str:
    """Path of the base interpreter; a virtual environment's own would not work inside, where its folder is not."""
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
