"""The interface by which stages ask a language model: messages in, the reply's text out."""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence

Message = dict[str, str]
Ask = Callable[[Sequence[Message]], Awaitable[str]]
"""Gives the reply's text; raises InfrastructureError if there is none."""


def messages_of(instructions: str, parts: Mapping[str, str]) -> list[Message]:
    """A system message, and a user message with each part in its tag. Within the parts, a `<` that begins one of these
    tags is written as `&lt;`."""
    tag_like = re.compile(rf"<(?=\s*+(?:/\s*)?(?:{'|'.join(map(re.escape, parts))})\b)", re.IGNORECASE)
    shown = (f"<{tag}>\n{tag_like.sub('&lt;', text)}\n</{tag}>" for tag, text in parts.items())
    return [{"role": "system", "content": instructions}, {"role": "user", "content": "\n\n".join(shown)}]


def without_thoughts(reply: str) -> str:
    """The reply without the thoughts that some models write before `</think>`."""
    return reply.rpartition("</think>")[2].strip()


def cut(text: str, most: int) -> str:
    """The text; if it is longer than `most` characters, its beginning, marked as cut."""
    return text if len(text) <= most else f"{text[:most]} [cut]"
