r"""Spells sets in one way: set_of(r"]-\infty,0[\cup]0,+\infty[") == r"(-\infty,0) \cup (0,+\infty)"."""

import re

from coa.grading.latex import unstyled
from coa.grading.normalise import normalise

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
