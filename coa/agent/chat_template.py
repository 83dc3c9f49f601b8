"""The chat template of a model: the text that it writes around a question, and the date in it.

Templates of Llama 3, SmolLM3, Granite and others ask for today's date. A model is trained, served and trained further
with the prompts of one day: that on which its training began. The day is written into the template itself, at its
beginning, so that whoever renders it has the same prompts.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any

from coa.agent.grammar import TAGS, THINK, tag_pattern
from coa.errors import UserError
from coa.json_object import Json
from coa.pretrained.reading import reading

if TYPE_CHECKING:
    import transformers

DEFAULT = "default"
"""The name of the template that is used where a tokenizer has several."""
_QUESTION = "\x00Is <A> & \"b\" in\n'C' ?\x00"
"""A question that a chat template has to take as it is: escaped, quoted or in other letters, it is another one."""
_THOUGHT = re.compile(rf"<{THINK}>\s*+</{THINK}>")
_ANSWER = "\x00Yes\x00"

NOW = "strftime_now"
"""The function that renderers of chat templates have for the date: transformers, vLLM and others."""
DIRECTIVES = tuple(f"%{name}" for name in ("-d", "-m", *"aAbBdejmyYDFxHIMSp"))
"""Directives that its formats may contain; the time of day is midnight."""
_BEGUN = re.compile(r"\{#- prompts have the date (\d{4}-\d\d-\d\d) -#\}")


@dataclass(frozen=True)
class ChatTemplate:
    """A template that takes a question once, as it is."""

    tokenizer: "transformers.TokenizersBackend"
    opening: str
    closing: str
    """The text after the question, the beginning of the assistant's message included."""

    def ids(self, question: str) -> list[int]:
        """The template's own tokens of a prompt."""
        return _applied(self.tokenizer, [_message("user", question)], tokenize=True)


def read_template(tokenizer: "transformers.TokenizersBackend", model: str) -> ChatTemplate:
    """Raises UserError for a template that does not take a message of text once, as it is, or that begins the
    assistant's message with a tag of ours, which the policy has to write itself, or leaves a part of its header out."""
    require_template(tokenizer, model)
    opening, closing = _around(tokenizer, model)
    for tag in TAGS.values():
        if tag.open in closing or tag.close in closing:
            raise UserError(
                f"{model}: its chat template begins the assistant's message with {tag.open}, which the policy has to "
                "write itself: take that out of the template"
            )
    between = _between(tokenizer)
    with reading(f"{model}: its chat template needs the beginning of an answer"):
        unfinished = _is_unfinished(tokenizer, between, closing)
    if unfinished or _is_other_header(tokenizer, between, closing):
        raise UserError(
            f"{model}: its chat template writes {between!r} between a question and an answer, and {closing!r} where an "
            "answer is to begin: the second has to end with the whole header of the assistant's message, and no more"
        )
    return ChatTemplate(tokenizer, opening, closing)


def require_template(tokenizer: "transformers.TokenizersBackend", model: str) -> None:
    """Raises UserError if a tokenizer has no chat template, or several of which none is the default."""
    template = tokenizer.chat_template
    if not template:
        raise UserError(f"{model}: its tokenizer has no chat template")
    if isinstance(template, Mapping) and DEFAULT not in template:
        names = ", ".join(sorted(template))
        raise UserError(f"{model}: its tokenizer has chat templates named {names}, and none named {DEFAULT}")


def _around(tokenizer: "transformers.TokenizersBackend", model: str) -> tuple[str, str]:
    """The text before and after a question. A template that takes a message as a list of parts only, as those of models
    that see images do, is refused: servers and other programs give it texts."""
    with reading(f"{model}: its chat template does not take a question as text"):
        text = str(_applied(tokenizer, [_message("user", _QUESTION)], tokenize=False))
    opening, *closings = text.split(_QUESTION)
    if len(closings) != 1:
        how = f"{len(closings)} times" if closings else "in no place, or not as it is"
        raise UserError(f"{model}: its chat template writes a question {how}, expected once")
    return opening, closings[0]


def _between(tokenizer: "transformers.TokenizersBackend") -> str:
    """The text between a question and its answer; "" for a template that takes no answer."""
    said = [_message("user", _QUESTION), _message("assistant", _ANSWER)]
    try:
        with reading("its chat template takes no answer"):
            text = _applied(tokenizer, said, tokenize=False, begins=False)
    except UserError:
        return ""
    before, *after = text.split(_ANSWER)
    return before.rpartition(_QUESTION)[2] if len(after) == 1 and _QUESTION in before else ""


def _message(role: str, text: str) -> Json:
    return {"role": role, "content": text}


def _applied(
    tokenizer: "transformers.TokenizersBackend", messages: list[Json], *, tokenize: bool, begins: bool = True
) -> Any:
    """begins: whether the beginning of the assistant's message is written after the messages."""
    options: Json = {"return_dict": False} if tokenize else {}
    return tokenizer.apply_chat_template(messages, tokenize=tokenize, add_generation_prompt=begins, **options)


def _is_other_header(tokenizer: "transformers.TokenizersBackend", between: str, closing: str) -> bool:
    """Whether the marks before an answer are not those after which an answer is to begin."""
    added = (str(token) for token in tokenizer.get_added_vocab())
    marks = [text for text in added if text.strip() and not tag_pattern().fullmatch(text)]
    mark = re.compile("|".join(map(re.escape, sorted(marks, key=len, reverse=True))))
    header = mark.findall(between) if marks else []
    return bool(header) and header != mark.findall(closing)


def _is_unfinished(tokenizer: "transformers.TokenizersBackend", between: str, closing: str) -> bool:
    """Whether a template that begins the assistant's message leaves the rest of its header out, apart from a thought
    that it writes before an answer."""
    message = _message("user", _QUESTION)
    without = _applied(tokenizer, [message], tokenize=False, begins=False).partition(_QUESTION)[2]
    header, begun = _THOUGHT.sub("", between), closing.rstrip()
    return without != closing and header.startswith(begun) and bool(header[len(begun) :].strip())


def with_date(template: object, day: date | None = None) -> Any:
    """The chat template with this day in place of today's; one that asks for no date is left as it is. day: None for
    the day that the template has already, else today. template: as a tokenizer of transformers has it; several by their
    names, or None."""
    if isinstance(template, Mapping):
        return {name: with_date(one, day) for name, one in template.items()}
    if not isinstance(template, str) or NOW not in template:
        return template
    if written := date_of(template):
        template = template.partition("\n")[2]
    day = day or written or date.today()
    filters = "".join(f" | replace('{directive}', '{day.strftime(directive)}')" for directive in DIRECTIVES)
    macro = f"{{% macro {NOW}(format) %}}{{{{ format{filters} }}}}{{% endmacro %}}"  # hides the renderer's function
    # Renderers drop the newline behind a block.
    return f"{{#- prompts have the date {day} -#}}{macro}\n{template}"


def date_of(template: object) -> date | None:
    """The day that was written into a chat template, or into the first of several that has one; None if there is
    none."""
    if isinstance(template, Mapping):
        return next(filter(None, map(date_of, template.values())), None)
    found = _BEGUN.match(template) if isinstance(template, str) else None
    return date.fromisoformat(found[1]) if found else None
