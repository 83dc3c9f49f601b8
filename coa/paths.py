"""Paths that a user writes."""

import os
import re

from coa.errors import UserError

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*+://")
_HUB = re.compile(r"https?://(?:huggingface\.co|hf\.co)/(?P<name>[\w.-]+/[\w.-]+)")


def local(path: str, key: str) -> str:
    """The path with the home folder in place of `~`.

    Raises UserError, which names `key`, for a URL, and if no home folder is known.
    """
    if _URL.match(path):
        from coa.http.addresses import redact  # slow to import

        model = _HUB.match(path)
        instead = f", or the name {model['name']}" if model else ""
        raise UserError(
            f"{key} is the URL {redact(path)}, expected a path on this machine{instead}; only checkpoints.storage may "
            "be at an address"
        )
    found = os.path.expanduser(path)
    if found == path and (path == "~" or path.startswith("~/")):
        raise UserError(f"{key} is {path}, but no home folder is known: set HOME, or write the whole path")
    return found
