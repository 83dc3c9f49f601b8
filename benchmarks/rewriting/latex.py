"""Rules for the spelling of LaTeX, for sums, equations and lists: what they make is the same answer."""

import re
from collections.abc import Iterator

from benchmarks.rewriting.forms import (
    EQUATION,
    INTEGER,
    INTERVAL,
    PLUS_MINUS,
    ROOT,
    ROOT_TIMES,
    SUM,
    TUPLE,
    WORDS,
    Rule,
    entries,
    value_of,
)

# The spelling of LaTeX.


def fractions_spelt(gold: str) -> Iterator[str]:
    for command in (r"\dfrac", r"\tfrac", r"\cfrac"):
        yield re.sub(r"\\[dt]?frac", lambda _, command=command: command, gold)
    yield re.sub(r"\\frac ?(\d) ?(\d)", r"\\frac{\1}{\2}", gold)
    yield re.sub(r"\\frac\{(\d)\}\{(\d)\}", r"\\frac\1\2", gold)


def braces(gold: str) -> Iterator[str]:
    yield re.sub(r"\^(\d)", r"^{\1}", gold)
    yield re.sub(r"\\sqrt(\d)", r"\\sqrt{\1}", gold)
    yield re.sub(r"\\sqrt\{(\d)\}", r"\\sqrt\1", gold)


def blanks(gold: str) -> Iterator[str]:
    if not WORDS.fullmatch(gold):
        yield re.sub(r"(?<![A-Za-z&]) | (?![A-Za-z&])", "", gold)
        yield re.sub(r"([-+=]|\\cup|\\pm)", r" \1 ", gold)
        yield re.sub(r", ?(?!\\!|\d{3})", r",\\, ", gold)
        yield re.sub(r", ?(?!\\!|\d{3})", r",\\; ", gold)


def brackets(gold: str) -> Iterator[str]:
    if re.search(r"[(\[]", gold) and "text" not in gold:
        bare = re.sub(r"\\(?:left|right) ?", "", gold)
        yield bare
        for opening, closing in ((r"\left", r"\right"), (r"\bigl", r"\bigr"), (r"\Big", r"\Big")):
            yield re.sub(r"[)\]]", rf"\\{closing[1:]}\g<0>", re.sub(r"[(\[]", rf"\\{opening[1:]}\g<0>", bare))


def symbols(gold: str) -> Iterator[str]:
    pairs = {r"\pi": "π", r"\infty": "∞", r"\cup": "\u222a", r"\in ": "∈ ", r"\pm": "±", "-": "\u2212"}
    for latex, symbol in pairs.items():
        yield gold.replace(latex, symbol)
    yield gold.replace(r"\pi", "pi")
    yield re.sub(r"(\d) ?\\pi", r"\1 \\cdot \\pi", gold)
    yield re.sub(r"(\d) ?\\pi", r"\1*pi", gold)


def roots(gold: str) -> Iterator[str]:
    def power(exponent: str) -> str:
        dotted = re.sub(r"(?<=\d) ?(?=\\sqrt)", r" \\cdot ", gold)
        return ROOT.sub(lambda root: f"{root[1] or root[2]}^{{{exponent}}}", dotted)

    if all((root[1] or root[2]).isdigit() for root in ROOT.finditer(gold)):
        yield from (power("1/2"), power("0.5"), power(r"\frac{1}{2}"))
        yield ROOT.sub(lambda root: f"√{root[1] or root[2]}", gold)
        yield ROOT.sub(lambda root: f"√({root[1] or root[2]})", gold)
        yield re.sub(r"(?<=[A-Za-z])(?=sqrt)", " ", ROOT.sub(lambda root: f"sqrt({root[1] or root[2]})", gold))
        yield ROOT.sub(lambda root: rf"\frac{{\sqrt{{{4 * int(root[1] or root[2])}}}}}{{2}}", gold)
    if found := ROOT_TIMES.fullmatch(gold):
        under = int(found[3] or found[4])
        yield rf"{found[1]}\sqrt{{{int(found[2]) ** 2 * under}}}"
        yield rf"{found[1]}\sqrt{{{under}}} \cdot {found[2]}"


def powers(gold: str) -> Iterator[str]:
    if re.search(r"[a-zR]\^\d", gold):
        yield re.sub(r"\^(\d)", r"**\1", gold)


# Sums, products and equations.


def turned(gold: str) -> Iterator[str]:
    """A sum with its terms in reverse: 2k+2 is 2+2k."""
    if SUM.fullmatch(gold) and not re.search(r"\\pm|\\circ|\\text|\\mbox|\\\$|%", gold):
        terms = re.findall(r"[-+]?[^-+]+", gold.replace(" ", "") if "\\" not in gold else gold)
        if len(terms) > 1:
            yield "".join(term if term[0] in "+-" else f"+{term}" for term in reversed(terms)).removeprefix("+")
            yield f"({gold} + 3) - 3"


def multiplied(gold: str) -> Iterator[str]:
    if re.fullmatch(r"-?\d+[a-z]?(?:[-+ ]+\d*[a-z]?)+", gold) or re.fullmatch(r"[^,=]*[a-z]\^[^,=]*", gold):
        yield rf"\frac{{2({gold})}}{{2}}"
        yield rf"1 \cdot \left({gold}\right)"
    if found := re.fullmatch(r"(\([^()]*\))(\([^()]*\))", gold):
        yield from (f"{found[2]}{found[1]}", rf"{found[1]} \cdot {found[2]}", f"{found[1]}*{found[2]}")


def equations(gold: str) -> Iterator[str]:
    if (found := EQUATION.fullmatch(gold)) and r"\in" not in gold:
        left, right = found.groups()
        yield f"{right} = {left}"
        yield f"{left} - ({right}) = 0"
        if left.isalpha():
            yield right
            yield f"2{left} = 2({right})"
        else:
            yield f"-({left}) = {right}"


# Lists, tuples, intervals, matrices.


def lists(gold: str) -> Iterator[str]:
    found = entries(gold)
    if found and not TUPLE.fullmatch(gold):
        yield from (", ".join(reversed(found)), rf"\{{{gold}\}}", ", ".join(f"x = {entry}" for entry in found))
        yield rf"{', '.join(found[:-1])} \text{{ and }} {found[-1]}"
        yield f"{', '.join(found[:-1])} and {found[-1]}"
        yield f"{', '.join(found[:-1])} or {found[-1]}"
    if found := re.fullmatch(r"\\\{(.*),(.*)\\\}", gold):
        yield from (
            rf"\{{{found[2]}, {found[1]}\}}",
            f"{found[1]}, {found[2]}",
            rf"\lbrace {found[1]}, {found[2]} \rbrace",
        )


def plus_minus(gold: str) -> Iterator[str]:
    if found := PLUS_MINUS.fullmatch(gold):
        yield from (
            f"{found[1]} + {found[2]}, {found[1]} - {found[2]}",
            rf"\{{{found[1]} - {found[2]}, {found[1]} + {found[2]}\}}",
        )
        yield rf"x = {gold}"


def tuples(gold: str) -> Iterator[str]:
    found = entries(gold) if TUPLE.fullmatch(gold) else []
    if found:
        yield f"({', '.join(found)})"
        yield f"({','.join(found)})"
        yield f"({', '.join(spelt_entry(entry) for entry in found)})"
        if all(INTEGER.fullmatch(entry) for entry in found):
            yield f"({', '.join(f'{entry}.0' for entry in found)})"
        if len(found) == 3:
            yield f"(x,y,z) = ({', '.join(found)})"


def spelt_entry(entry: str) -> str:
    value = value_of(entry)
    return entry if value is None else f"{2 * value.numerator}/{2 * value.denominator}"


def intervals(gold: str) -> Iterator[str]:
    if r"\cup" in gold:
        yield r" \cup ".join(reversed([part.strip() for part in gold.split(r"\cup")]))
    bare = re.sub(r"\\(?:left|right) ?", "", gold)
    if (found := INTERVAL.fullmatch(bare)) and re.search(r"[\[\]]|infty", bare):
        yield rf"x \in {bare.removeprefix('x ').removeprefix(chr(92) + 'in ')}"
        yield bare.removeprefix(r"x \in ")
        below, above = (r"\le" if bracket in "[]" else "<" for bracket in (found["open"], found["close"]))
        if "infty" in found["low"]:
            yield rf"x {above} {found['high']}"
        elif "infty" in found["high"]:
            yield f"x {below.replace('<', '>').replace('le', 'ge')} {found['low']}"
        else:
            yield rf"{found['low']} {below} x {above} {found['high']}"


def matrices(gold: str) -> Iterator[str]:
    if "pmatrix" in gold:
        yield gold.replace("pmatrix", "bmatrix")
        yield re.sub(r"(-?)(\d+)/(\d+)", r"\1\\frac{\2}{\3}", gold)
        yield re.sub(r"-?\d+(?:/\d+)?", r"\g<0> + 0", gold)


def boxes(gold: str) -> Iterator[str]:
    """Each entry of a list in a box of its own."""
    found = entries(gold)
    if found and not TUPLE.fullmatch(gold):
        boxed = [rf"\boxed{{{entry}}}" for entry in found]
        yield ", ".join(boxed)
        yield f"The solutions are {', '.join(f'${box}$' for box in boxed[:-1])} and ${boxed[-1]}$."
        yield f"{', '.join(boxed[:-1])} or {boxed[-1]}"


RULES: dict[str, Rule] = {
    rule.__name__: rule
    for rule in (
        fractions_spelt,
        braces,
        blanks,
        brackets,
        symbols,
        roots,
        powers,
        turned,
        multiplied,
        equations,
        lists,
        plus_minus,
        tuples,
        intervals,
        matrices,
    )
}
"""Rules whose answers stand in a frame."""
WHOLE: dict[str, Rule] = {boxes.__name__: boxes}
"""Rules that make a frame of their own."""
