r"""Prepares answers to maths problems: finds the part that states the result, and normalizes its notation.

    expression_of(r"So $x = 90^\circ$, that is \boxed{90°}.") == r"90^\circ"

`coa.grading.mathematics` decides whether two expressions are equal; this module handles only notation.
"""

import re
from fractions import Fraction

from coa.grading.normalise import normalise

_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_BETWEEN_BOXES = re.compile(
    r"[\s$]*(?:,|;|(?:,\s*)?(?:\\text\s*\{\s*)?\b(?:and|or)\b(?:\s*\})?)[\s$]*(?:[A-Za-z](?:_\{?\w\}?)?\s*=[\s$]*)?"
)
_DELIMITER = re.compile(r"(?<!\\)(?:\$+|\\[()\[\]])")
_COMMAND = re.compile(r"\\[A-Za-z]+")
_BOLD = re.compile(r"(?<![^\s(:])\*\*(?=[^\s*])([^*\n]+)(?<=\S)\*\*(?![^\s.,;:!)])")
_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}")
_PROSE = re.compile(r"[A-Za-z]{2}\s+[A-Za-z]{2}")
_LABEL = re.compile(r"\W*(?:(?:final|the|my)\s+)*(?:answer|result|solution)s?\b", re.IGNORECASE)
_LEAD = re.compile(r"\b(?:is|are|equals)\b|(?<!\d):|\b(?:answer|result|solution)s?\b", re.IGNORECASE)
_NO_RESULT = re.compile(r"\W*(?:the|my|our|a)\b[^\d\\]*", re.IGNORECASE)
_BEFORE = re.compile(r"\s(?:is|are)\s+(?:the|my|our|a)\b", re.IGNORECASE)
_HEDGE = re.compile(
    r"(?:(?:about|approximately|approx|roughly|around|nearly|exactly|only)\b\.?|\\(?:approx|sim)(?![A-Za-z])|~|≈|=)\s*",
    re.IGNORECASE,
)
_WORDS = re.compile(r"\(?[A-Za-z]+(?:(?:[ ']+|(?<=[A-Za-z]{2})-(?=[A-Za-z]{2}))[A-Za-z]+)*\)?")

_SYMBOLS = {
    "°": r"^\circ ", "π": r"\pi ", "∞": r"\infty ", "\u00d7": r"\times ", "·": r"\cdot ", "÷": r"\div ", "±": r"\pm ",
    "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "\u222a": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "²": "^2", "³": "^3",
    "\u2212": "-", "\u2013": "-", "\u00a0": " ", "\u202f": " ", "**": "^", "≈": r"\approx ",
    r"\langle": "(", r"\rangle": ")", r"\varnothing": r"\emptyset",
}  # fmt: skip
_ROOT = re.compile(r"√\s*(?:(\d+|[A-Za-z])|(?=[({]))")
_BARE_ROOT = re.compile(r"\\?(?<![A-Za-z])sqrt\s*(?:(?=\{)|\(([^()]*)\))")
_BARE_NAME = re.compile(r"(?<![\\A-Za-z])(pi|oo|inf|infinity|sin|cos|tan|cot|sec|csc|log|ln)(?![A-Za-z])")
_SIZE = re.compile(r"\\(?:left|right|[bB]igg?[lrm]?|displaystyle|textstyle)(?![A-Za-z]) ?")
_FRACTION = re.compile(r"\\[dtc]frac(?![A-Za-z])")
_THIN = re.compile(r"(?<!\\)(?:\\[,;:! ]|~|\\q?quad(?![A-Za-z]))")
_APART = re.compile(r"(?<=\d)(?:\{,\}|,?\\! ?|(?<!\\)\\[,;: ]|~)(?=\d{3}(?!\d))")
_STYLE = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|boldsymbol|bm|mbox)\s*\{((?=[^{}]*\d)[^{}]*)\}")
_DECIMAL_POWER = re.compile(r"\^ ?(?:\{ ?(-?\d*\.\d{1,9}) ?\}|\((-?\d*\.\d{1,9})\)|(-?\d*\.\d{1,9}))")
_MEMBER = re.compile(r"\A[A-Za-z] ?\\in(?![A-Za-z])")
_NUMERAL = re.compile(
    r"(?:\((?P<inner>[0-9][0-9A-F]*)\)|(?P<digits>[0-9][0-9A-F]*))"
    r"(?:_(?:\{\(?(?P<braced>\d+)\)?\}|\(?(?P<base>\d+)\)?)|(?:\(|in)?base(?P<named>\d+)\)?)?"
)


def expression_of(answer: str) -> str:
    """The result that an answer states: the body of its last box, or else the answer without introductory words."""
    box = last_box(answer)
    text = _DELIMITER.sub("", _BOLD.sub(r"\1", answer) if box is None else box).strip()
    if _LABEL.match(text) or _PROSE.search(_COMMAND.sub("", _TEXT.sub("", text))):
        text = _result_of(text)
    return _one_spelling(text.strip())


def last_box(text: str) -> str | None:
    r"""The body of the last `\boxed{...}` with balanced braces; None if there is none.

    Boxes with nothing but a comma, "and" or "or" between them are one result: `\boxed{1}, \boxed{-2}` is "1, -2".
    """
    found: list[str] = []
    begin = len(text)
    for box in reversed(list(_BOX.finditer(text))):
        end = _end_of(text, box.end())
        if end is None or end > begin:  # no box, or one around the next
            continue
        if found and not _BETWEEN_BOXES.fullmatch(text, end, begin):
            break
        found.append(text[box.end() : end - 1])
        begin = box.start()
    return ", ".join(reversed(found)) if found else None


def _end_of(text: str, at: int) -> int | None:
    """Offset of the brace that closes the one opened before `at`; None if it is not closed."""
    depth = 1
    while at < len(text):
        if text[at] == "\\":
            at += 1
        elif text[at] in "{}":
            depth += 1 if text[at] == "{" else -1
            if not depth:
                return at + 1
        at += 1
    return None


def _result_of(prose: str) -> str:
    """The text after the last word that introduces a result."""
    for lead in reversed(list(_LEAD.finditer(prose))):
        rest = prose[lead.end() :]
        if re.search(r"\w", rest) and not _NO_RESULT.fullmatch(rest):
            return rest
    return _BEFORE.split(prose, maxsplit=1)[0]


def _one_spelling(text: str) -> str:
    text = _ROOT.sub(lambda root: rf"\sqrt{{{root[1]}}}" if root[1] else "sqrt", text)
    for symbol, latex in _SYMBOLS.items():
        text = text.replace(symbol, latex)
    text = _FRACTION.sub(r"\\frac", _SIZE.sub("", text))
    text = _BARE_ROOT.sub(lambda root: rf"\sqrt{{{root[1]}}}" if root[1] else r"\sqrt", text)
    text = _BARE_NAME.sub(lambda name: r"\infty " if name[1][0] in "io" else rf"\{name[1]} ", text)
    text = _THIN.sub(" ", _APART.sub("", _STYLE.sub(r"\1", text)))
    text = _DECIMAL_POWER.sub(_power, " ".join(text.split()).replace(" ^", "^").replace("^ ", "^"))
    text = _MEMBER.sub("", text.strip()).strip()
    while hedge := _HEDGE.match(text):
        text = text[hedge.end() :]
    return text.rstrip(" .;,")


def _power(decimal: re.Match[str]) -> str:
    r"""Powers are exact: `^{0.5}` becomes `^{1/2}`."""
    return f"^{{{Fraction(decimal[1] or decimal[2] or decimal[3])}}}"


def words_of(expression: str) -> str | None:
    r"""The normalized words of an expression of only words: "e" for `\text{(E)}`; None for any other expression."""
    bare = _TEXT.sub(lambda text: text[1], expression).strip().removesuffix(".")
    return normalise(bare) if _WORDS.fullmatch(bare) else None


def same_in_base(answer: str, gold: str) -> bool | None:
    """Whether two numerals, at least one of them with a base (`40_9`), are the same; None if neither has a base.

    An answer may omit the gold's base; a base in the answer must be the gold's, which is 10 by default.
    """
    found, right = _NUMERAL.fullmatch(answer.replace(" ", "")), _NUMERAL.fullmatch(gold.replace(" ", ""))
    its_base, base = _base(found), _base(right)
    if its_base is None and base is None:
        return None
    if found is None or right is None:
        return False
    same = (found["digits"] or found["inner"]) == (right["digits"] or right["inner"])
    return same and its_base in (None, base or "10")


def _base(numeral: re.Match[str] | None) -> str | None:
    return (numeral["braced"] or numeral["base"] or numeral["named"]) if numeral else None
