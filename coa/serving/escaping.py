"""Takes special tokens and tags out of what clients of the model alone write: they would begin a message of somebody
else's, or end a tool's result."""

import json
from collections.abc import Callable, Collection, Mapping
from typing import Any

from coa.agent.grammar import escape
from coa.serving.faults import invalid

Json = dict[str, Any]

DROPPED = {"coa", "priority", "request_id", "kv_transfer_params", "ec_transfer_params", "vllm_xargs", "chat_template"}
"""Fields that reach around the prompt, or around other clients."""
SHOWN = ("messages", "system", "prompt", "tools", "documents", "chat_template_kwargs", "suffix")
"""Fields that templates print."""
FORMS = ("role", "type")
"""Keys whose values are words of the protocol."""


class Escaping:
    """`marks`: the texts of tokens that only the template may write, with their ids."""

    def __init__(self, marks: Mapping[str, int]) -> None:
        self._marks = sorted(marks, key=len, reverse=True)
        self._ids = frozenset(marks.values())

    def request(self, body: Json) -> Json:
        """The request without them. Raises ApiError for a prompt of token ids that has one."""
        kept = {name: value for name, value in body.items() if name not in DROPPED}
        self._refuse_ids(kept.get("prompt"))
        return {name: self._each(value) if name in SHOWN else value for name, value in kept.items()}

    def text(self, text: str) -> str:
        for mark in self._marks:
            if mark in text:
                text = text.replace(mark, f"{mark[0]}\\{mark[1:]}")
        return escape(text)

    def _each(self, value: Any, key: str = "") -> Any:
        match value:
            case str():
                return value if key in FORMS and not self._has(value) else self._of(key)(value)
            case Mapping():
                return {self.text(name): self._each(item, name) for name, item in value.items()}
            case list():
                return [self._each(item, key) for item in value]
            case _:
                return value

    def _of(self, key: str) -> Callable[[str], str]:
        return self._arguments if key == "arguments" else self.text

    def _arguments(self, text: str) -> str:
        """JSON in a string: its values are escaped, and not its own text, which would be no JSON any more."""
        try:
            return json.dumps(self._each(json.loads(text)))
        except ValueError:
            return self.text(text)

    def _has(self, text: str) -> bool:
        return self.text(text) != text

    def _refuse_ids(self, prompt: Any) -> None:
        lists = prompt if isinstance(prompt, list) and prompt and isinstance(prompt[0], list) else [prompt]
        for ids in lists:
            if isinstance(ids, list) and self._ids.intersection(one for one in ids if isinstance(one, int)):
                raise invalid("the prompt has a special token, which only a chat template may write", "prompt")


def marks_of(added: Collection[tuple[str, int, bool]]) -> dict[str, int]:
    """Of a tokenizer's added tokens (text, id, whether it is special): all special ones, and others that look like
    marks, such as Qwen's `<tool_call>`."""
    return {text: id for text, id, special in added if special or (text.startswith("<") and text.endswith(">"))}
