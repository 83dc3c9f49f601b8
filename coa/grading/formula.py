"""Formulas over named terms, checked when they are read: `parse("grade * form + overlong", known)`.

A formula has only sums, differences, products, signs, numbers and parentheses, so that a recipe can't run code.
"""

import ast
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

LARGEST = 1e9
"""Maximum absolute value of a number in a formula."""

_OPERATORS = {ast.Add: float.__add__, ast.Sub: float.__sub__, ast.Mult: float.__mul__}


@dataclass(frozen=True, slots=True)
class Formula:
    """A formula that has been read."""

    text: str
    tree: ast.expr
    terms: tuple[str, ...]
    """The names in the formula, each once, in alphabetical order."""

    def value(self, values: Mapping[str, float]) -> float:
        """The formula's value for these values of `terms`: parse("a * b + 1", "ab").value({"a": 2, "b": 3}) == 7."""
        return _value(self.tree, values)


def parse(text: str, known: Collection[str]) -> Formula:
    """Reads a formula; raises ValueError, in one line, for an invalid formula or an unknown term."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        why = error.msg if isinstance(error, SyntaxError) else error
        raise ValueError(f"{text!r} is not a formula: {why}") from error
    for node in ast.walk(tree):
        _check(node, text)
    terms = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    for term in sorted(terms - set(known)):
        nearest = get_close_matches(term, known, n=1, cutoff=0.0)[0]
        raise ValueError(
            f"{text!r}: unknown term {term}; the nearest known term is {nearest}, all are {', '.join(sorted(known))}"
        )
    return Formula(text, tree, tuple(sorted(terms)))


def _check(node: ast.AST, text: str) -> None:
    """Raises ValueError for a node that is not arithmetic."""
    match node:
        case ast.BinOp(op=ast.Add() | ast.Sub() | ast.Mult()) | ast.UnaryOp(op=ast.USub() | ast.UAdd()) | ast.Name():
            pass
        case ast.Constant(int() | float() as number) if not isinstance(number, bool) and abs(number) <= LARGEST:
            pass
        case ast.expr():
            what = ast.unparse(node)
            raise ValueError(f"{text!r}: {what} is not allowed; a formula has terms, numbers, +, -, * and brackets")


def _value(node: ast.expr, values: Mapping[str, float]) -> float:
    match node:
        case ast.BinOp(left, op, right):
            return _OPERATORS[type(op)](_value(left, values), _value(right, values))
        case ast.UnaryOp(op, operand):
            return -_value(operand, values) if isinstance(op, ast.USub) else _value(operand, values)
        case ast.Name(name):
            return float(values[name])
        case ast.Constant(number) if isinstance(number, int | float):
            return float(number)
    raise AssertionError(node)
