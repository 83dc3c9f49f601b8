"""Escapes special tokens and tags in the input of clients of the model alone: they could begin a message of another
role, or end a tool's result."""

import json
from collections.abc import Callable, Mapping

from coa.agent.untrusted import Untrusted
from coa.json_object import Json
from coa.serving.faults import invalid

SHOWN = ("messages", "system", "prompt", "tools", "documents", "chat_template_kwargs", "suffix")
"""Fields that chat templates print."""
FORMS = ("role", "type")
"""Keys whose values are words of the protocol."""


class Escaping:
    """Escapes requests. untrusted: escapes the marks of the model's tokenizer, which only the template may write."""

    def __init__(self, untrusted: Untrusted) -> None:
        self.text = untrusted.escaped
        self._ids = frozenset(untrusted.marks.values())

    def request(self, body: Json) -> Json:
        """The escaped request. Raises ApiError for a prompt of token ids that contains a mark."""
        self._refuse_ids(body.get("prompt"))
        return {name: self._each(value) if name in SHOWN else value for name, value in body.items()}

    def _each(self, value: object, key: str = "") -> object:
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
        """Escapes the values of JSON in a string; escaping the string itself would make the JSON invalid."""
        try:
            return json.dumps(self._each(json.loads(text)))
        except ValueError:
            return self.text(text)

    def _has(self, text: str) -> bool:
        return self.text(text) != text

    def _refuse_ids(self, prompt: object) -> None:
        lists = prompt if isinstance(prompt, list) and prompt and isinstance(prompt[0], list) else [prompt]
        for ids in lists:
            if isinstance(ids, list) and self._ids.intersection(one for one in ids if isinstance(one, int)):
                raise invalid("the prompt has a special token, which only a chat template may write", "prompt")
