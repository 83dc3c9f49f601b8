"""Values of a traced program: texts, numbers, lists and dicts, with holes in the place of tool results."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

MOST_STEPS, MOST_CHARACTERS = 10_000, 100_000
"""Limits of tracing, since a program is a model's text."""
UNKNOWN = -1
"""A hole for a value that is shown but whose text is not needed."""


class NotFollowed(Exception):
    """A program does more than call tools and show their results."""


@dataclass(frozen=True, slots=True)
class Text:
    """A text with holes: a part that is a number stands for the result of the call of that number, from 0. Texts beside
    each other are joined, and no text is empty."""

    parts: tuple[str | int, ...]

    @property
    def known(self) -> str | None:
        """The text; None for one with holes."""
        return "".join(map(str, self.parts)) if all(isinstance(part, str) for part in self.parts) else None


def give_up() -> NoReturn:
    raise NotFollowed


def as_text(value: object) -> Text:
    """What `str` makes of a value."""
    match value:
        case Text():
            return value
        case str() | int() | float() | None:
            return Text((str(value),) if value != "" else ())
        case list() | dict():
            return Text((str(literal(value)),))
    give_up()


def as_shown(value: object) -> Text:
    """The text that is shown for a statement's value; a hole if that is unknown."""
    try:
        return as_text(value)
    except NotFollowed:
        return Text((UNKNOWN,))


def literal(value: object) -> object:
    """A value without holes; raises NotFollowed for a value with a hole, whose text is unknown."""
    match value:
        case Text():
            return value.known if value.known is not None else give_up()
        case list():
            return [literal(one) for one in value]
        case dict():
            return {key: literal(one) for key, one in value.items()}
    return value


def join_texts(texts: Sequence[Text]) -> Text:
    parts: list[str | int] = []
    for part in (part for one in texts for part in one.parts):
        if parts and isinstance(part, str) and isinstance(last := parts[-1], str):
            parts[-1] = last + part
        else:
            parts.append(part)
    if sum(len(part) for part in parts if isinstance(part, str)) > MOST_CHARACTERS:
        give_up()
    return Text(tuple(parts))


def elements(value: object) -> list[object]:
    """The elements over which a loop over the value iterates."""
    return list(value) if isinstance(value, list | dict) else give_up()


def add(left: object, right: object) -> object:
    match left, right:
        case list(), list():
            return [*left, *right]
        case ((str() | Text()), (str() | Text())):
            return join_texts([as_text(left), as_text(right)])
    give_up()


def repeat(left: object, right: object) -> str:
    match left, right:
        case (str(one), int(times)) | (int(times), str(one)) if times * len(one) <= MOST_CHARACTERS:
            return one * times
    give_up()


def item_of(held: object, key: object) -> object:
    match held, key:
        case list(), int() if -len(held) <= key < len(held):
            return held[key]
        case dict(), str() | int() if key in held:
            return held[key]
    give_up()


def call_method(value: object, method: str, arguments: list[object]) -> object:
    match value, method, arguments:
        case list(), "append", [one]:
            value.append(one)
            return None
        case dict(), "items", []:
            return [[key, one] for key, one in value.items()]
        case dict(), "values", []:
            return list(value.values())
        case str(), "join", [list() as texts] if all(isinstance(one, str | Text) for one in texts):
            return join_texts([part for one in texts for part in (as_text(value), as_text(one))][1:])
    give_up()


def _range(*bounds: object) -> list[int]:
    known = [bound for bound in bounds if isinstance(bound, int)]
    if len(known) != len(bounds) or not 1 <= len(bounds) <= 2:
        give_up()
    numbers = range(*known)
    return list(numbers) if len(numbers) <= MOST_STEPS else give_up()


def _zip(*lists: object) -> list[list[object]]:
    return [list(row) for row in zip(*map(elements, lists), strict=False)]


def _enumerate(*arguments: object) -> list[list[object]]:
    match arguments:
        case [several]:
            return _enumerate(several, 0)
        case [several, int(first)]:
            return [list(pair) for pair in enumerate(elements(several), first)]
    give_up()


def _one(make: Callable[[object], object]) -> Callable[..., object]:
    return lambda *arguments: make(arguments[0]) if len(arguments) == 1 else give_up()


FUNCTIONS: Mapping[str, Callable[..., object]] = {
    "str": _one(as_text),
    "list": _one(elements),
    "range": _range,
    "zip": _zip,
    "enumerate": _enumerate,
}
