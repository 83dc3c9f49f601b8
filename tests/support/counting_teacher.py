"""A teacher of docs/examples/two_calls.py: how many cups are N ? It is wrong about every fourth."""

import re
from typing import Any

from tests.support.endpoints import Messages


def reply(messages: Messages, seed: int | None) -> str | dict[str, Any]:
    asked = re.search(r"cups are (\d+)", str(messages[-1]["content"]))
    return asked[1] if asked and int(asked[1]) % 4 else "none"
