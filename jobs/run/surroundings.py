"""The environment on which every command relies, whatever has started it: UTF-8, a home, and a short path of temporary
files.

`prepare` sets environment variables, so that child processes, Ray's and vLLM's among them, have the same. A program
that calls a command (`coa.train`) keeps its own encoding.
"""

import atexit
import locale
import os
import re
import secrets
import sys
import tempfile
from collections.abc import MutableMapping
from contextlib import suppress
from pathlib import Path

LONGEST_TEMPORARY = 30
"""Maximum bytes of the path of temporary files. A socket's path has up to 107, of which Ray adds 75 to this one."""
PLAIN_PATH = re.compile(r"[\w./-]+", re.ASCII)
SHORT_PLACES = ("/tmp", "/var/tmp", "/dev/shm")
CACHES = {"VLLM_CACHE_ROOT": "vllm", "VLLM_CONFIG_ROOT": "vllm-config", "TRITON_CACHE_DIR": "triton"}
"""Variables of folders that libraries would otherwise make in the home, and the folders' names."""


def prepare(environment: MutableMapping[str, str] = os.environ) -> None:
    environment["PYTHONUTF8"] = "1"
    shorten_temporary(environment)
    provide_home(environment)


def in_utf8() -> None:
    """Starts this program again in Python's UTF-8 mode if its locale has another encoding, so that names of files and
    texts are the same in all processes. Returns if nothing is to be done."""
    if not sys.flags.utf8_mode and locale.getencoding().lower().replace("-", "") != "utf8":
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])


def shorten_temporary(environment: MutableMapping[str, str]) -> None:
    """Puts a link with a short and plain path in place of a folder of temporary files whose path is too long for
    sockets in it, or has other characters than letters of ASCII, digits and a few signs. The link ends with the
    process."""
    for variable in ("TMPDIR", "RAY_TMPDIR"):
        path = environment.get(variable)
        if not path or (len(os.fsencode(path)) <= LONGEST_TEMPORARY and PLAIN_PATH.fullmatch(path)):
            continue
        place = next((place for place in SHORT_PLACES if _is_writable(Path(place))), None)
        if place is None or not _is_writable(Path(path)):
            continue
        link = Path(place, f"coa-{secrets.token_hex(6)}")
        link.symlink_to(Path(path).absolute())
        atexit.register(_unlink, link, os.getpid())
        environment[variable] = str(link)
        tempfile.tempdir = None  # it is looked up again


def provide_home(environment: MutableMapping[str, str]) -> None:
    """Gives a process without a home or a user's name both, and one whose home is read-only other folders for caches,
    all of them in the folder of temporary files."""
    home = Path(os.path.expanduser("~"))
    if not (home.is_absolute() and home.is_dir()):
        environment["HOME"] = str(_own_folder())
    elif not _is_writable(home):
        for variable, name in CACHES.items():
            environment.setdefault(variable, str(_own_folder() / name))
    if not any(environment.get(name) for name in ("LOGNAME", "USER")) and not _is_known(os.getuid()):
        environment["USER"] = f"uid-{os.getuid()}"


def _is_known(user: int) -> bool:
    import pwd

    try:
        pwd.getpwuid(user)
    except KeyError:
        return False
    return True


def _own_folder() -> Path:
    """A folder of this user alone, the same for all commands."""
    folder = Path(tempfile.gettempdir(), f"coa-home-{os.getuid()}")
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    ours = folder.is_dir() and not folder.is_symlink() and found.st_uid == os.getuid()
    return folder if ours else Path(tempfile.mkdtemp(prefix="coa-home-"))


def _is_writable(folder: Path) -> bool:
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)


def _unlink(link: Path, owner: int) -> None:
    if os.getpid() == owner:  # and not a child that was forked
        with suppress(OSError):
            link.unlink()
