"""API keys of services: read from the environment, sent in headers, never shown."""

import os
import re
from collections.abc import Mapping

from coa.errors import UserError

_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSW|PASSPHRASE|PASS$|PASS_|_PWD|CREDENTIAL", re.IGNORECASE)
LEAST_SECRET = 8
"""Minimum characters of a secret: a shorter value, such as `1` or `true`, may occur in a text by chance."""


def read_key(variable: str) -> str:
    """The key that an environment variable holds; raises UserError, which names the variable and never its value."""
    key = os.environ.get(variable, "").strip()
    if not key:
        raise UserError(f"the environment variable {variable} is not set; set it to the service's key")
    if not (key.isascii() and key.isprintable()):
        raise UserError(f"the environment variable {variable} holds characters that a key can't have")
    return key


def bearer(variable: str | None) -> dict[str, str]:
    """The authorization header with the variable's key; empty if no variable is named."""
    return {"Authorization": f"Bearer {read_key(variable)}"} if variable is not None else {}


def is_secret(variable: str) -> bool:
    """Whether a variable's name says that it holds a secret."""
    return _SECRET_NAME.search(variable) is not None


def secrets_in(text: str, environment: Mapping[str, str]) -> list[str]:
    """Names of the variables whose secret occurs in the text."""
    return sorted(
        name
        for name, value in environment.items()
        if is_secret(name) and len(value.strip()) >= LEAST_SECRET and value.strip() in text
    )
