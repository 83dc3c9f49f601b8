r"""Prepares answers to maths problems: finds the part that states the result, and gives equal ones one spelling.

    expression_of(r"So $x = 90^\circ$, that is \boxed{90°}.") == r"90^\circ"

Whether two expressions are equal is for `coa.grading.equivalence`; this module handles only ways of writing that its
parser does not understand.
"""

import re

from coa.grading.normalise import normalise

_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_DELIMITER = re.compile(r"(?<!\\)(?:\$+|\\[()\[\]])")
_COMMAND = re.compile(r"\\[A-Za-z]+")
_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}")
_PROSE = re.compile(r"[A-Za-z]{2}\s+[A-Za-z]{2}")
_LEAD = re.compile(r"\A.*(?:\b(?:is|are)\b|:)", re.DOTALL)
_WORDS = re.compile(r"\(?[A-Za-z]+(?:(?:[ ']+|(?<=[A-Za-z]{2})-(?=[A-Za-z]{2}))[A-Za-z]+)*\)?")

_SYMBOLS = {
    "°": r"^\circ ", "π": r"\pi ", "∞": r"\infty ", "\u00d7": r"\times ", "·": r"\cdot ", "÷": r"\div ", "±": r"\pm ",
    "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "\u222a": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "²": "^2", "³": "^3",
    "\u2212": "-", "\u2013": "-", "\u00a0": " ", "\u202f": " ", "**": "^",
}  # fmt: skip
_ROOT = re.compile(r"√\s*(?:(\d+|[A-Za-z])|(?=[({]))")
_BARE_ROOT = re.compile(r"(?<![\\A-Za-z])sqrt(?=\s*\{)")
_BARE_NAME = re.compile(r"(?<![\\A-Za-z])(pi|oo|inf|infinity|sin|cos|tan|cot|sec|csc|log|ln)(?![A-Za-z])")
_SIZE = re.compile(r"\\(?:left|right)(?![A-Za-z])")
_MEMBER = re.compile(r"\A[A-Za-z] ?\\in(?![A-Za-z])")
_APART = r"(?:\{,\}|,?\\[!,;: ] ?|[,~ ])"
_THOUSANDS = re.compile(rf"((?:\\?\$)?[+-]?\d{{1,3}}(?:{_APART}\d{{3}})+)(\.\d+)?")
_NUMERAL = re.compile(r"(?P<digits>[0-9][0-9A-F]*)(?:_(?:\{(?P<base>\d+)\}|(?P<digit>\d)))?")


def expression_of(answer: str) -> str:
    """The result that an answer states: the body of its last box, else all of the answer but its introductory words."""
    box = last_box(answer)
    text = _DELIMITER.sub("", answer if box is None else box)
    if _PROSE.search(_COMMAND.sub("", _TEXT.sub("", text))):
        text = _LEAD.sub("", text)
    return _one_spelling(text.strip())


def last_box(text: str) -> str | None:
    r"""The body of the last `\boxed{...}` with balanced braces; None if there is none."""
    for box in reversed(list(_BOX.finditer(text))):
        depth, at = 1, box.end()
        while at < len(text) and depth:
            if text[at] == "\\":
                at += 1
            elif text[at] in "{}":
                depth += 1 if text[at] == "{" else -1
            at += 1
        if not depth:
            return text[box.end() : at - 1]
    return None


def _one_spelling(text: str) -> str:
    text = _ROOT.sub(lambda root: rf"\sqrt{{{root[1]}}}" if root[1] else "sqrt", text)
    for symbol, latex in _SYMBOLS.items():
        text = text.replace(symbol, latex)
    text = _BARE_ROOT.sub(r"\\sqrt", _SIZE.sub("", text))
    text = _BARE_NAME.sub(lambda name: r"\infty " if name[1][0] in "io" else rf"\{name[1]} ", text)
    text = _MEMBER.sub("", " ".join(text.split()).replace(" ^", "^").replace("^ ", "^")).strip().removesuffix(".")
    if thousands := _THOUSANDS.fullmatch(text):
        text = re.sub(_APART, "", thousands[1]) + (thousands[2] or "")
    return text


def words_of(expression: str) -> str | None:
    r"""The words of an expression that has nothing else, normalised: "e" for `\text{(E)}`; None for any other."""
    bare = _TEXT.sub(lambda text: text[1], expression).strip().removesuffix(".")
    return normalise(bare) if _WORDS.fullmatch(bare) else None


def same_in_base(answer: str, gold: str) -> bool | None:
    """Whether two numerals of which one names its base (`40_9`) are the same; None if neither does.

    A gold's base need not be repeated; a base that an answer names must be the gold's, which is 10 where it names none.
    """
    found, right = _NUMERAL.fullmatch(answer.replace(" ", "")), _NUMERAL.fullmatch(gold.replace(" ", ""))
    its_base, base = _base(found), _base(right)
    if its_base is None and base is None:
        return None
    if found is None or right is None:
        return False
    return found["digits"] == right["digits"] and its_base in (None, base or "10")


def _base(numeral: re.Match[str] | None) -> str | None:
    return (numeral["base"] or numeral["digit"]) if numeral else None
