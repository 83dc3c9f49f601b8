"""Services' keys: read from the environment, sent in headers, never shown."""

import os

from coa.errors import UserError


def read_key(variable: str) -> str:
    """The key that an environment variable holds; raises UserError, which names the variable and never its value."""
    key = os.environ.get(variable, "").strip()
    if not key:
        raise UserError(f"the environment variable {variable} is not set; it is to hold a service's key")
    if not (key.isascii() and key.isprintable()):
        raise UserError(f"the environment variable {variable} holds characters that no key has")
    return key


def bearer(variable: str | None) -> dict[str, str]:
    """The authorization header with the variable's key; no header where no variable is named."""
    return {"Authorization": f"Bearer {read_key(variable)}"} if variable is not None else {}
