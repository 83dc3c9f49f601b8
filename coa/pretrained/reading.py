"""Reading files that others wrote with libraries that raise errors of any kind."""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coa.errors import UserError
from coa.json_object import Json

LFS = b"version https://git-lfs"
LFS_BYTES = 1024
"""Maximum size of a git-LFS pointer."""
SHOWN = 200
"""Maximum characters of a library's message in an error."""


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Turns any error of a library that reads a user's file in the body into a UserError: "what: reason". Libraries
    raise whatever their parsers meet, and tokenizers even plain Exceptions."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{what}: {reason_of(error)}") from error


@contextmanager
def quiet() -> Iterator[None]:
    """In the body, transformers neither draws bars nor logs warnings: what is wrong becomes an error of ours."""
    from transformers.utils import logging as theirs

    level, shown = theirs.get_verbosity(), theirs.is_progress_bar_enabled()
    theirs.set_verbosity(logging.CRITICAL)
    theirs.disable_progress_bar()
    try:
        yield
    finally:
        theirs.set_verbosity(level)
        if shown:
            theirs.enable_progress_bar()


def reason_of(error: BaseException) -> str:
    """The first line of an error, with the next one if it ends in a colon, cut to `SHOWN` characters."""
    lines = [line for text in str(error).splitlines() if (line := text.strip())] or [type(error).__name__]
    line = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
    return line if len(line) <= SHOWN else f"{line[: SHOWN - 3]}..."


def require_content(path: Path) -> None:
    """Raises UserError for a link without its file, for a git-LFS pointer in place of the file, and for a file that
    can't be read."""
    try:
        with path.open("rb") as file:
            start = file.read(LFS_BYTES + 1)
    except FileNotFoundError as error:
        raise UserError(f"{path}: a link to a file that is not there") from error
    except OSError as error:
        raise UserError(f"{path}: can't be read ({error.strerror})") from error
    if start.startswith(LFS) and len(start) <= LFS_BYTES:
        raise UserError(f"{path}: a git-LFS pointer in place of the file: fetch it with `git lfs pull`")


def read_object(path: Path) -> Json:
    """The JSON object in a file; raises UserError if there is none."""
    require_content(path)
    with reading(f"{path}: not JSON"):
        found = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(found, dict):
        raise UserError(f"{path}: a {type(found).__name__}, expected an object with keys")
    return found
