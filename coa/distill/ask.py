"""A language model as the filter and the rewriter ask it: messages in, the reply's text out.

Anything that is an `Ask` will do: what they decide does not depend on where the model is.
"""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence

from coa.tools.chat import Message

Ask = Callable[[Sequence[Message]], Awaitable[str]]
"""The reply's text; raises InfrastructureError where nobody answers."""


def messages_of(instructions: str, parts: Mapping[str, str]) -> list[Message]:
    """The parts each in its tag. Text that could close its tag or open another is shown with `&lt;` for `<`."""
    tag_like = re.compile(rf"<(?=\s*/?\s*(?:{'|'.join(map(re.escape, parts))})\b)", re.IGNORECASE)
    shown = (f"<{tag}>\n{tag_like.sub('&lt;', text)}\n</{tag}>" for tag, text in parts.items())
    return [{"role": "system", "content": instructions}, {"role": "user", "content": "\n\n".join(shown)}]


def without_thoughts(reply: str) -> str:
    return reply.rpartition("</think>")[2].strip()


def cut(text: str, most: int) -> str:
    """The head of a text of more characters than `most`, marked as such."""
    return text if len(text) <= most else f"{text[:most]} [cut]"
