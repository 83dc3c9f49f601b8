r"""Tells a value from a calculation that was not done: `2^{10}` is a value of 1024, `\min(27,28)` none of 27.

An operation is allowed where the accepted answer has it, too.
"""

import re

from coa.grading.mathematics.numbers import number_of

_CALCULATION = re.compile(
    r"\\(?P<name>i+nt|oint|sum|prod|lim|limsup|liminf|min|max|sup|inf|gcd|lcm|det|binom|lfloor|lceil|bmod|pmod|mod"
    r"|partial)(?![A-Za-z])|(?P<matrix>\\begin ?\{vmatrix\})|\\frac ?\{ ?(?P<derivative>d)[^{}]*\} ?\{ ?d"
    r"|(?<![A-Za-z\\])(?P<word>min|max|gcd|lcm|floor|ceil|det|sum|lim|mod)(?![A-Za-z])"
    r"|\d ?(?P<chosen>[CP]) ?\d|(?<![A-Za-z])(?P<call>[CP]) ?\( ?\d"
)
_TRIGONOMETRY = re.compile(r"\\?(?<![A-Za-z])(?:arc)?(?:sin|cos|tan|cot|sec|csc)h?(?![A-Za-z])")
_VARIABLE = re.compile(r"(?<![A-Za-z\\])[a-df-hj-zA-Z](?![A-Za-z])")
_COMMAND = re.compile(r"\\[A-Za-z]+")
_INDEX = re.compile(r"[\d)}\]!] ?_|\\(?:pi|infty) ?_")
_NAMED = re.compile(r"\\(?:mathbb|mathrm|mathbf|mathcal|text|operatorname|vec|hat|bar|overline) ?\{[^{}]*\}")
_IRRATIONAL = re.compile(r"\\(?:pi|sqrt|ln|log|exp)|e")

_BRACKETS = re.compile(r"[({\[]([#P])[)}\]]")
_STEPS = (
    (re.compile(r"\\frac(?:\{\d+\}|\d)(?:\{\d+\}|\d)"), "#"),
    (re.compile(r"\d+(?:[.,]\d+)*\.?|\.\d+"), "#"),
    (re.compile(r"(?<![#P)}\]!])[-+]"), ""),
    (re.compile(r"(?<![#P/^!)}])#/#(?![#P/^!])"), "#"),
)
_RAISED = re.compile(r"[#P]\^[#P]|[#P]!")
_ONE_STEP = re.compile(r"[#P](?:(?:[-+*/:]|\\(?:cdot|times|div))?[#P])?|\\frac[#P][#P]")
_FACTORS = re.compile(r"[#P](?:(?:\*|\\cdot|\\times)[#P])+")


def is_value(found: str, right: str) -> bool:
    """Whether an answer is evaluated as far as the accepted one is, and has no index that the accepted one has not."""
    if _calculations(found) - _calculations(right) or ("'" in found) != ("'" in right):  # the reader drops primes
        return False
    if _INDEX.search(_NAMED.sub("x", found)) and not _INDEX.search(_NAMED.sub("x", right)):
        return False
    named = _TRIGONOMETRY.search(right) or _VARIABLE.search(_COMMAND.sub("", right))
    if _TRIGONOMETRY.search(found) and not named:
        return False
    number = number_of(right)
    rounded = number is not None and number.places is not None and number.value.denominator > 1
    return number is None or (rounded and _IRRATIONAL.search(found) is not None) or _is_closed(found)


def _calculations(text: str) -> set[str]:
    """The kinds of calculations in a text, which are never the form of a result unless they are asked for."""
    return {next(name for name in found.groups() if name) for found in _CALCULATION.finditer(text)}


def _is_closed(found: str) -> bool:
    """Whether a text is a form of a number: one operation at most (`3^3`, `5!`, `22 + 5`), or factors with powers."""
    form = found.replace(" ", "")
    before = ""
    while form != before:
        before = form
        for pattern, sign in _STEPS:
            form = pattern.sub(sign, form)
        form = _BRACKETS.sub(r"\1", _RAISED.sub("P", form))
    return bool(_ONE_STEP.fullmatch(form) or ("P" in form and _FACTORS.fullmatch(form)))
