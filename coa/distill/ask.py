"""How the filter and the rewriter ask a language model: messages in, the reply's text out.

They take any `Ask`, wherever the model is.
"""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence

from coa.tools.chat import Message

Ask = Callable[[Sequence[Message]], Awaitable[str]]
"""Gives the reply's text; raises InfrastructureError if there is none."""


def messages_of(instructions: str, parts: Mapping[str, str]) -> list[Message]:
    """A system message, and a user message with each part in its tag. In texts that could close their tag or open
    another, `&lt;` stands for `<`."""
    tag_like = re.compile(rf"<(?=\s*+(?:/\s*)?(?:{'|'.join(map(re.escape, parts))})\b)", re.IGNORECASE)
    shown = (f"<{tag}>\n{tag_like.sub('&lt;', text)}\n</{tag}>" for tag, text in parts.items())
    return [{"role": "system", "content": instructions}, {"role": "user", "content": "\n\n".join(shown)}]


def without_thoughts(reply: str) -> str:
    """The reply without the thoughts that some models write before `</think>`."""
    return reply.rpartition("</think>")[2].strip()


def cut(text: str, most: int) -> str:
    """The text, or the head of one with more characters than `most`, marked as cut."""
    return text if len(text) <= most else f"{text[:most]} [cut]"
