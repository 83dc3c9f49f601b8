"""What is found by name."""

import math

import pytest

from coa.errors import UserError
from coa.registry import Registry


def test_an_entry_is_found_by_its_name_and_once() -> None:
    numbers = Registry("number", {"one": 1})
    numbers.register("two", 2)
    numbers.register("two", 2)
    assert dict(numbers) == {"one": 1, "two": 2}
    with pytest.raises(ValueError, match=r"^there is a number 'two' already$"):
        numbers.register("two", 3)
    assert numbers.find("two") == 2


def test_an_unknown_name_is_a_mistake_that_lists_the_known_ones() -> None:
    with pytest.raises(UserError, match=r"^unknown number 'tow': known are one, two$"):
        Registry("number", {"one": 1, "two": 2}).find("tow")


def test_a_lazy_entry_is_imported_when_it_is_looked_at() -> None:
    numbers = Registry("number", {"one": 1}, lazy={"tau": "math:tau", "gone": "math:gone"})
    assert list(numbers) == ["one", "tau", "gone"]
    assert numbers.find("tau") == numbers["tau"] == math.tau
    with pytest.raises(AttributeError):
        numbers.find("gone")
    with pytest.raises(ValueError, match=r"^there is a number 'gone' already$"):
        numbers.register("gone", 3)


def test_an_entry_may_be_added_before_it_can_be_imported() -> None:
    numbers: Registry[float] = Registry("number", {"one": 1.0})
    numbers.register_lazily("tau", "math:tau")
    assert numbers.find("tau") == 6.283185307179586
    with pytest.raises(ValueError, match="there is a number 'one' already"):
        numbers.register_lazily("one", "math:pi")
