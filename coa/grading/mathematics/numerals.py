r"""Compares numerals of a base: same_in_base(r"11111_{\text{two}}", "11111_2") is True."""

import re

from coa.grading.notation import STYLED

_NAMES = "two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
_BASES = {name: str(base) for base, name in enumerate(_NAMES.split(), 2)} | {
    "binary": "2",
    "octal": "8",
    "hexadecimal": "16",
}
_NAMED = rf"\d+|{'|'.join(_BASES)}"
_STYLED = re.compile(rf"\\(?:{STYLED})")
_NUMERAL = re.compile(
    r"(?P<sign>-?)(?:\((?P<inner>[0-9][0-9a-f]*)\)|(?P<digits>[0-9][0-9a-f]*))"
    rf"(?:_(?:\{{\(?(?:base)?(?P<braced>{_NAMED})\)?\}}|\(?(?P<base>{_NAMED})\)?)"
    rf"|(?:\(|in)?(?:base)(?P<named>{_NAMED})\)?|(?:\(|in)(?P<alone>binary|octal|hexadecimal)\)?)?",
    re.IGNORECASE,
)


def same_in_base(answer: str, gold: str) -> bool | None:
    """Whether two numerals, at least one of them with a base (`40_9`), are the same; None if neither has a base.

    An answer may omit the gold's base; a base in the answer must be the gold's, which is 10 by default.
    """
    found, right = (_NUMERAL.fullmatch(_squeezed(text)) for text in (answer, gold))
    its_base, base = _base(found), _base(right)
    if its_base is None and base is None:
        return None
    if found is None or right is None:
        return False
    same = [found["sign"], _digits(found)] == [right["sign"], _digits(right)]
    return same and its_base in (None, base or "10")


def _squeezed(text: str) -> str:
    """The text without fonts and blanks, and without braces around the digits and the base."""
    bare = _STYLED.sub("", text).replace(" ", "").replace("{{", "{").replace("}}", "}")
    return re.sub(r"\A(-?)\{([0-9A-Fa-f]+)\}(?=_)", r"\1\2", bare)


def _digits(numeral: re.Match[str]) -> str:
    return (numeral["digits"] or numeral["inner"]).lower()


def _base(numeral: re.Match[str] | None) -> str | None:
    if numeral is None:
        return None
    name = numeral["braced"] or numeral["base"] or numeral["named"] or numeral["alone"]
    return name and _BASES.get(name.lower(), name)
