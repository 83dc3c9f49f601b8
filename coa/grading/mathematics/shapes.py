r"""Splits an answer of several parts: shape_of(r"(3, 4]") == Shape("(", ("3", "4"), "]"), and spells sets in one way:
set_of(r"]-\infty,0[\cup]0,+\infty[") == r"(-\infty,0) \cup (0,+\infty)".

A list is not a set: repeated entries count. Entries in braces are a list, too.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from string import ascii_lowercase

from coa.grading.latex import unstyled
from coa.grading.normalise import normalise
from coa.grading.notation import STYLED

_OPEN, _CLOSE = "([{", ")]}"
_JOINTS = "或者|或|和|及|または|と(?!おり)|、|또는|와"
_JOINT = f"and|or|und|oder|et|ou|{_JOINTS}"
_SEPARATOR = re.compile(
    rf",? ?\\(?:{STYLED}) ?\{{ ?(?:{_JOINT}) ?\}} ?|,? (?:and|or|und|oder|et|ou) (?=\S)"
    rf"| ?(?:{_JOINTS}) ?"
    r"|(?:\\[,;:! ]|~)*[,;](?:\\[,;:! ]|~)*"
)
_THOUSANDS = re.compile(r",(?=\d{3}(?!\d))")
_BRACED = re.compile(r"(?:(?P<plain>\{)|\\\{|\\lbrace(?![A-Za-z]))(?P<inner>.*)(?:\\\}|(?<!\\)\}|\\rbrace)", re.DOTALL)
_MATRIX = re.compile(r"\\begin ?\{[pb]?matrix\}(.*)\\end ?\{[pb]?matrix\}", re.DOTALL)
_ASSIGNED = re.compile(r"(\\?[A-Za-z]+(?:_\w|_\{\w+\})?) ?=")
_PLUS_MINUS = re.compile(r"\\pm(?![A-Za-z])")

Equal = Callable[[str, str], bool]
"""Compares an entry of an answer with an entry of the gold."""

_NAMED = dict.fromkeys(("all real numbers", "all reals", "all real x"), r"\mathbb{R}") | {
    "empty set": r"\emptyset",
    "all integers": r"\mathbb{Z}",
}
_EMPTY = re.compile(r"\\?\{ ?\\?\}")
_REALS = re.compile(r"\( ?-\\infty ?[,;] ?\\infty ?\)|-\\infty ?< ?[a-z] ?< ?\\infty")
_BUILDER = re.compile(
    r"\\?\{ ?[a-z](?: ?\\in ?\\mathbb\{R\})? ?(?:\\(?:mid|vert)(?![A-Za-z])|\||:) ?(?P<condition>.+)\}"
)
_RELATION = re.compile(r"[<>=]|\\(?:[lg]e|ne)(?![A-Za-z])")
_UNION = re.compile(r" ?\\cup(?![A-Za-z]) ?| ?(?<=[\[\])]) ?(?:U|or|\\text ?\{ ?or ?\}) ?(?=[\[\](])")
_INTERVAL = re.compile(r"(?P<opening>[\[\](]) ?(?P<low>[^\[\],;]*) ?[,;] ?(?P<high>[^\[\],;]*) ?(?P<closing>[\[\])])")
_OR = re.compile(r",? ?(?:\\text ?\{ ?or ?\}|(?<= )or(?= )) ?")
_AND = re.compile(r",? ?(?:\\text ?\{ ?and ?\}|(?<= )and(?= )) ?")
_BOUND = re.compile(r"(?P<name>[a-z]) ?(?P<sign><|>|\\le|\\ge) ?(?P<bound>(?:(?!\\[lgn]e(?![a-z]))[^<>=,;])+)")
_BELOW = {"<": ")", r"\le": "]"}
_DIFFERENCE = re.compile(r"\\mathbb\{R\} ?- ?(?=\\?\{)")


@dataclass(frozen=True, slots=True)
class Shape:
    """An answer's parts and its brackets; a single part without brackets is the answer itself."""

    opening: str
    entries: tuple[str, ...]
    closing: str = ""

    @property
    def listed(self) -> bool:
        """Whether it is a list, whose order does not matter."""
        return (not self.opening and len(self.entries) > 1) or self.opening == "{"

    @property
    def single(self) -> bool:
        return not self.opening and len(self.entries) == 1


def shape_of(text: str) -> Shape:
    """The shape of a single result."""
    if found := _BRACED.fullmatch(text):
        inner = tuple(_split(found["inner"]))
        if is_whole(found["inner"]) and (len(inner) > 1 or not found["plain"]):
            return Shape("{", _expanded(inner), "}")
    if text[:1] in "([" and text[-1:] in ")]" and is_whole(text[1:-1]):
        inner = tuple(_split(text[1:-1], bracketed=True))
        if len(inner) > 1:
            return Shape(text[0], inner, text[-1])
    entries = tuple(_split(text))
    return Shape("", _expanded(entries) if entries else (text,))


def vector_of(text: str) -> str:
    r"""A matrix of one row or column as a point: (1, 2) for `\begin{pmatrix}1\\2\end{pmatrix}`; any other text as it
    is."""
    if found := _MATRIX.fullmatch(text):
        rows = [row.strip() for row in found[1].strip().removesuffix(r"\\").split(r"\\")]
        entries = [entry.strip() for entry in rows[0].split("&")] if len(rows) == 1 else rows
        if len(entries) > 1 and not any("&" in entry for entry in entries):
            return f"({', '.join(entries)})"
    return text


def is_whole(inner: str) -> bool:
    """Whether every closing bracket in the text has its opening bracket in the text."""
    depth = 0
    for sign in inner:
        depth += (sign in _OPEN) - (sign in _CLOSE)
        if depth < 0:
            return False
    return depth == 0


def _split(text: str, *, bracketed: bool = False) -> Iterator[str]:
    """The parts between separators outside of brackets. A comma right before three digits is a thousands separator if
    other commas are followed by a blank and no bracket surrounds it."""
    grouped = not bracketed or ", " in text
    depth, at, begin = 0, 0, 0
    while at < len(text):
        if text[at] in _OPEN:
            depth += 1
        elif text[at] in _CLOSE:
            depth -= 1
        elif depth == 0 and (found := _SEPARATOR.match(text, at)) and found.end() > at:
            thousands = grouped and found[0] == "," and text[at - 1 : at].isdigit() and _THOUSANDS.match(text, at)
            if not thousands:
                yield text[begin:at].strip()
                begin = found.end()
            at = found.end() - 1
        at += 1
    yield text[begin:].strip()


def _expanded(entries: Sequence[str]) -> tuple[str, ...]:
    r"""The entries, with each entry with `\pm` as two."""
    both = ((_PLUS_MINUS.sub("+", entry), _PLUS_MINUS.sub("-", entry)) for entry in entries)
    return tuple(each for plus, minus in both for each in ((plus,) if plus == minus else (plus, minus)))


def same_shape(found: Shape, right: Shape, equal: Equal) -> bool | None:
    """Whether two answers are the same part by part; None if their shapes do not decide it.

    A set, a point or an interval needs the gold's brackets, but a list without brackets in the gold's order is a point,
    and so are coordinates with their names. Values without the gold's names are in the gold's order.
    """
    if right.single or found.single:
        return None
    if len(found.entries) != len(right.entries):
        return False
    if right.listed and found.listed:
        names = _names(right.entries)
        of_variables = len(set(names)) > 1 and not any("_" in name for name in names)  # x_1 and x_2 are of one
        if of_variables and not any("=" in entry for entry in found.entries):
            return all(map(equal, found.entries, right.entries))
        return _same_in_any_order(found.entries, right.entries, equal)
    brackets = (right.opening, right.closing)
    if (found.opening, found.closing) not in (brackets, ("", "")) and (right.opening or found.opening != "("):
        return False
    if not found.opening and (brackets != ("(", ")") or any(r"\infty" in bound for bound in right.entries)):
        return False
    entries = found.entries if found.opening else _coordinates(found.entries)
    return bool(entries) and all(map(equal, entries, right.entries))


def _names(entries: Sequence[str]) -> tuple[str, ...]:
    """The names of values, as in `x=2, y=3`; empty unless each entry has one."""
    names = tuple(found[1] for entry in entries if (found := _ASSIGNED.match(entry)))
    return names if len(names) == len(entries) else ()


def _coordinates(entries: Sequence[str]) -> Sequence[str]:
    """The entries of a point: in the order of their names if these are neighbours in the alphabet, as x and y are, and
    else as they are written; none if a name has two values."""
    names = _names(entries)
    if len(set(names)) < len(names):
        return ()
    return sorted(entries) if names and "".join(sorted(names)) in ascii_lowercase else entries


def _same_in_any_order(found: Sequence[str], right: Sequence[str], equal: Equal) -> bool:
    rest = list(found)
    for gold in right:
        index = next((index for index, entry in enumerate(rest) if equal(entry, gold)), None)
        if index is None:
            return False
        del rest[index]
    return True


def set_of(text: str) -> str:
    """The text, in which a set stands as intervals in round and square brackets; any other text as it is."""
    if name := _NAMED.get(normalise(unstyled(text))):
        return name
    if _EMPTY.fullmatch(text):
        return r"\emptyset"
    if (builder := _BUILDER.fullmatch(text)) and _RELATION.search(builder["condition"]):
        text = builder["condition"].rstrip("\\ ")
    text = _DIFFERENCE.sub(r"\\mathbb{R} \\setminus ", _bounded(text))
    if re.search(r"[\[\]]|\\cup|\\infty", text):
        parts = [_INTERVAL.fullmatch(part.strip()) for part in _UNION.split(text)]
        if all(parts):
            text = r" \cup ".join(_interval(part) for part in parts if part)
    return r"\mathbb{R}" if _REALS.fullmatch(text) else text


def _interval(part: re.Match[str]) -> str:
    """An interval, whose open end may be an outward bracket, as in `]2,3[`."""
    opening, closing = part["opening"].replace("]", "("), part["closing"].replace("[", ")")
    return f"{opening}{part['low'].strip()},{part['high'].strip()}{closing}"


def _bounded(text: str) -> str:
    """Two bounds of a variable, joined by "and" or "or", as intervals; any other text as it is."""
    for joint, either in ((_OR, True), (_AND, False)):
        bounds = [_BOUND.fullmatch(part.strip()) for part in joint.split(text)]
        if len(bounds) != 2 or not all(bounds):
            continue
        found = [bound for bound in bounds if bound]
        if found[0]["name"] != found[1]["name"]:
            return text
        if either:
            return r" \cup ".join(map(_ray, found))
        below, above = sorted(found, key=lambda bound: bound["sign"] in _BELOW)
        if below["sign"] not in _BELOW and above["sign"] in _BELOW:
            return f"{_ray(below).partition(',')[0]},{_ray(above).partition(',')[2]}"
    return text


def _ray(bound: re.Match[str]) -> str:
    value = bound["bound"].strip()
    if bound["sign"] in _BELOW:
        return rf"(-\infty,{value}{_BELOW[bound['sign']]}"
    return rf"{'(' if bound['sign'] == '>' else '['}{value},\infty)"
