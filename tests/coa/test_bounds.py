from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest
from annotated_types import Ge, Le

from coa.bounds import (
    AT_LEAST_0,
    Above0,
    AnyInt,
    AtLeast1,
    Bounds,
    OutOfBounds,
    ProperShare,
    Share,
    bounded_numbers,
    check_bounds,
)


@dataclass(frozen=True)
class Inner:
    shares: dict[str, Share] = field(default_factory=dict)
    free: dict[str, Any] = field(default_factory=lambda: {"x": -1})
    flag: bool = False
    lr: Above0 = 1.0
    middle: ProperShare = 0.5
    topk: Annotated[int, Ge(1), Le(20)] = 3
    seed: AnyInt = -1


@dataclass(frozen=True)
class Outer:
    steps: int = 0
    batch: AtLeast1 | None = None
    inner: Inner = field(default_factory=Inner)
    named: dict[str, Inner] = field(default_factory=dict)


@dataclass(frozen=True)
class Free:
    UNBOUNDED = True
    offset: float = -3.0
    count: AtLeast1 = 1


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (Outer(batch=0), "batch is 0, expected at least 1"),
        (Outer(steps=-2), "steps is -2, expected at least 0"),
        (Outer(inner=Inner(lr=0)), "inner.lr is 0, expected more than 0"),
        (Outer(inner=Inner(lr=float("nan"))), "inner.lr is nan, expected more than 0"),
        (Outer(inner=Inner(topk=21)), "inner.topk is 21, expected from 1 to 20"),
        (Outer(named={"a": Inner(middle=1.0)}), "named.a.middle is 1, expected more than 0 and less than 1"),
        (Outer(inner=Inner(shares={"b": 1.5})), "inner.shares.b is 1.5, expected from 0 to 1"),
        (Free(count=0), "count is 0, expected at least 1"),
    ],
)
def test_a_number_out_of_bounds_is_named_by_its_whole_key(config: object, said: str) -> None:
    with pytest.raises(OutOfBounds) as refused:
        check_bounds(config, AT_LEAST_0)
    assert str(refused.value) == said


@pytest.mark.parametrize("config", [Outer(), Outer(batch=1), Outer(inner=Inner(shares={"b": 1.0})), Free()])
def test_numbers_within_their_bounds_pass(config: object) -> None:
    check_bounds(config, AT_LEAST_0)


def test_a_field_without_bounds_has_those_that_the_caller_names() -> None:
    unbounded: Bounds = ()
    check_bounds(Outer(steps=-2), unbounded)


def test_flags_and_values_under_free_names_are_no_numbers_with_bounds() -> None:
    assert {key for key, _, _ in bounded_numbers(Inner(shares={"b": 1.0}))} == {
        "shares.b",
        "lr",
        "middle",
        "topk",
        "seed",
    }
