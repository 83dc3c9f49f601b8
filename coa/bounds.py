"""Bounds of numbers, written at the field that they hold for:

@dataclass(frozen=True)
class SftConfig:
    batch: AtLeast1 = 64
    max_tokens: AtLeast1 | None = None      None has no bounds
    pauses: dict[str, Above0] = ...         those of each value

check_bounds(SftConfig(batch=0))            OutOfBounds: batch is 0, expected at least 1
"""

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from annotated_types import BaseMetadata, Ge, Gt, Interval, Le, Lt

AnyInt = Annotated[int, Interval()]
AtLeast0 = Annotated[float, Ge(0)]
AtLeast1 = Annotated[int, Ge(1)]
Above0 = Annotated[float, Gt(0)]
Share = Annotated[float, Ge(0), Le(1)]
PositiveShare = Annotated[float, Gt(0), Le(1)]
ProperShare = Annotated[float, Gt(0), Lt(1)]

Bounds = tuple[BaseMetadata, ...]
AT_LEAST_0: Bounds = (Ge(0),)
_ENDS: Mapping[type, tuple[str, Callable[[float, float], bool], str]] = {
    Ge: ("ge", operator.ge, "at least"),
    Gt: ("gt", operator.gt, "more than"),
    Le: ("le", operator.le, "at most"),
    Lt: ("lt", operator.lt, "less than"),
}


class OutOfBounds(ValueError):
    """A number of a tree of settings that is out of its bounds; begins with its dotted key."""

    def __init__(self, key: str, value: float, bounds: Bounds) -> None:
        super().__init__(f"{key} is {_number(value)}, expected {in_words(bounds)}")


def check_bounds(config: Any, default: Bounds = ()) -> None:
    """Raises OutOfBounds for the first number of a tree of dataclasses that is out of its bounds, which NaN always is.

    default: bounds of a field without any, except in a dataclass with the class variable UNBOUNDED.
    """
    for key, value, bounds in bounded_numbers(config):
        bounds = default if bounds is None else bounds
        if not all(_ENDS[type(one)][1](value, _end(one)) for one in bounds):
            raise OutOfBounds(key, value, bounds)


def bounded_numbers(config: Any, prefix: str = "") -> Iterator[tuple[str, float, Bounds | None]]:
    """Every number of a tree of dataclasses, by its dotted key, with the bounds of its field; None if it has none. A
    mapping's values are left out then: their names are free."""
    of_fields = bounds_of_fields(type(config))
    for field in fields(config):
        held, bounds = getattr(config, field.name), of_fields[field.name]
        if bounds is None and hasattr(config, "UNBOUNDED"):
            bounds = ()
        named = isinstance(held, Mapping)
        for end, value in ((f".{name}", one) for name, one in held.items()) if named else [("", held)]:
            key = f"{prefix}{field.name}{end}"
            if is_dataclass(value):
                yield from bounded_numbers(value, f"{key}.")
            elif isinstance(value, int | float) and not isinstance(value, bool) and not (named and bounds is None):
                yield key, value, bounds


def bounds_of(hint: object) -> Bounds | None:
    """The bounds in a field's type; None if it has none of its own."""
    if get_origin(hint) is Annotated:
        flat = ((tuple(one) if isinstance(one, Interval) else (one,)) for one in get_args(hint)[1:])
        return tuple(one for several in flat for one in several)
    return next((found for one in get_args(hint) if (found := bounds_of(one)) is not None), None)


def in_words(bounds: Bounds) -> str:
    """ "from 0 to 1", "more than 0 and at most 1"."""
    if [type(one) for one in bounds] == [Ge, Le]:
        return f"from {_number(_end(bounds[0]))} to {_number(_end(bounds[1]))}"
    return " and ".join(f"{_ENDS[type(one)][2]} {_number(_end(one))}" for one in bounds)


@cache
def bounds_of_fields(schema: type) -> Mapping[str, Bounds | None]:
    """The bounds in the types of a dataclass's fields, by name; None for a field that has none."""
    return {name: bounds_of(hint) for name, hint in get_type_hints(schema, include_extras=True).items()}


def _end(one: BaseMetadata) -> float:
    return getattr(one, _ENDS[type(one)][0])


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"
