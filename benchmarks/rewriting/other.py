"""Rules that make another answer of a gold answer: it looks alike, and is not the same.

Each is made so that its value differs: a number grown by one, another sign, an entry lost, another bracket. An answer
that is only less exact (0.33 for a third) is another one, too.
"""

import re
from collections.abc import Iterator
from fractions import Fraction

from benchmarks.rewriting.forms import (
    DEGREES,
    EQUATION,
    INTEGER,
    INTERVAL,
    MEASURE,
    MONEY,
    NUMERAL,
    ROOT,
    TUPLE,
    WORDS,
    Rule,
    ends,
    entries,
    spelt,
    value_of,
)

_EXPONENT_OF_UNIT = re.compile(r"\\(?:text|mbox)\{.*?\}\^2")
_NUMBER = re.compile(r"(?<![\d.])\d+(?![\d.])")
_SIGN = re.compile(r"(?<=[\w})]) ?([-+]) ?(?=[\w\\(])")


def near_number(gold: str) -> Iterator[str]:
    """Numbers near a number, written as it may be written."""
    value = value_of(gold)
    if value is None:
        return
    others = {value + 1, value - 1, -value, value * 10, value * 2, value / 10, value + Fraction(1, 100)}
    if value:
        others |= {1 / value, value / 2}
    for other in sorted(others - {value}):
        yield spelt(other)
    places = ends(value)
    if places is None:
        yield from (f"{float(value):.2f}", f"{float(value):.3f}")
    else:
        yield f"{float(value):.{places}f}" + ("7" if places else ".7")


def digits(gold: str) -> Iterator[str]:
    """A whole number with a digit lost, doubled, or changed in place with the next."""
    if re.fullmatch(r"-?[1-9]\d+", gold):
        sign, number = ("-", gold[1:]) if gold[0] == "-" else ("", gold)
        yield from (f"{sign}{number[:-1]}", f"{sign}{number[1:]}", f"{sign}{number}{number[-1]}")
        if number[0] != number[1]:
            yield f"{sign}{number[1]}{number[0]}{number[2:]}"


def groups(gold: str) -> Iterator[str]:
    value = value_of(gold)
    if value is not None and value.denominator == 1 and value >= 1000:
        first, *rest = f"{int(value):,}".split(",")
        yield first
        yield ",".join([first, *rest[:-1], f"{(int(rest[-1]) + 1) % 1000:03d}"])
        yield ",".join([str(int(first) + 1), *rest])
        yield f"{int(value)}000"


def alternatives(gold: str) -> Iterator[str]:
    if INTEGER.fullmatch(gold) and int(gold):
        other = int(gold) + 1
        yield from (
            f"{gold} or {other}",
            f"{gold}, {other}",
            rf"\{{{gold}, {other}\}}",
            rf"{gold} \pm 1",
            f"x = {other}",
        )
        yield from (
            f"{other} cm",
            f"about {other}",
            f"{gold} + 1",
            f"2({gold} + 1)",
            f"n - {gold}",
            f"{gold}x",
            f"x > {gold}",
        )


def empty(gold: str) -> Iterator[str]:
    yield from ("", "?", "none of these", r"\text{no answer}", "x = x", r"\emptyset")
    if value_of(gold) != 0:
        yield "0=0"


def other_number(gold: str) -> Iterator[str]:
    """Each number in an expression, grown by one; the exponent of a unit counts for nothing."""
    if value_of(gold) is not None:
        return
    end = found.end() - 2 if (found := _EXPONENT_OF_UNIT.search(gold)) else len(gold)
    for number in list(_NUMBER.finditer(gold, 0, end))[:5]:
        if ",\\!" not in gold or number.end() == end:
            yield f"{gold[: number.start()]}{int(number[0]) + 1}{gold[number.end() :]}"


def signs(gold: str) -> Iterator[str]:
    """Each sign between two terms turned; and the sign before all of it."""
    if re.search(r"\\infty|\\begin|\\!", gold) or WORDS.fullmatch(gold) or value_of(gold) == 0:
        return
    for sign in list(_SIGN.finditer(gold))[:5]:
        yield f"{gold[: sign.start(1)]}{'-' if sign[1] == '+' else '+'}{gold[sign.end(1) :]}"
    if not re.search(r"[=,_]|\\pm|\\in", gold):
        yield gold[1:].strip() if gold.startswith("-") and not _SIGN.search(gold) else f"-({gold})"


def more(gold: str) -> Iterator[str]:
    if value_of(gold) is None and not re.search(r"[=,_$]|\\(?:text|mbox|begin|circ|in |cup|pm)", gold):
        yield from (f"{gold} + 1", f"2({gold})", f"({gold})^2", f"{gold} + C")


def constants(gold: str) -> Iterator[str]:
    if r"\pi" in gold:
        yield from (gold.replace(r"\pi", r"\pi^2"), gold.replace(r"\pi", "e")) if r"\pi^" not in gold else ()
        yield gold.replace(r"\pi", r"\phi")
        yield re.sub(r"(\d) ?\\pi", r"\1 \\cdot 3.14", gold).replace(r"\pi", "3.14")
    for root in ROOT.finditer(gold):
        under = root[1] or root[2]
        before = gold[: root.start()].rstrip()
        times = r" \cdot " if before[-1:].isdigit() else " "
        yield f"{before}{times}{under}{gold[root.end() :]}"
        yield gold.replace(root[0], rf"\sqrt[3]{{{under}}}", 1)
    if re.search(r"\di$", gold):
        yield f"{gold[:-1]}"


def lost_entry(gold: str) -> Iterator[str]:
    found = entries(gold)
    if found:
        opening, closing = ("(", ")") if TUPLE.fullmatch(gold) else ("", "")
        made = [found[:-1], found[1:], [*found, "99"], [*found, found[0]], [*found[:-1], "99"]]
        if opening and found != found[::-1]:
            made += [found[::-1], [*found[1:], found[0]]]
        yield from (f"{opening}{', '.join(some)}{closing}" for some in made if len(some) > 1 or not opening)


def other_brackets(gold: str) -> Iterator[str]:
    bare = re.sub(r"\\(?:left|right) ?", "", gold)
    if not (found := INTERVAL.fullmatch(bare)) or (TUPLE.fullmatch(gold) and len(entries(gold)) != 2):
        return
    low, high = found["low"], found["high"]
    for opening, closing in ("()", "[]", "(]", "[)"):
        infinite = ("infty" in low and opening != "(") or ("infty" in high and closing != ")")
        if (opening, closing) != (found["open"], found["close"]) and not infinite:
            yield f"{opening}{low}, {high}{closing}"
    yield rf"\{{{low}, {high}\}}"
    yield f"({high}, {low})"


def unions(gold: str) -> Iterator[str]:
    if r"\cup" in gold:
        parts = [part.strip() for part in gold.split(r"\cup")]
        yield from parts
        yield gold.replace(r"\cup", r"\cap")
        if not parts[-1].endswith(r"\infty)"):
            yield rf"{gold} \cup (1000, 1001)"
        yield (
            parts[0].replace("(", "[") + r" \cup " + parts[1] if "infty" not in parts[0] else parts[0].replace(")", "]")
        )


def matrix_entries(gold: str) -> Iterator[str]:
    if found := re.fullmatch(r"(\\begin\{pmatrix\}) (.*) (\\end\{pmatrix\})", gold):
        rows = found[2].split(r" \\ ")
        for some in (rows[:-1], [*rows, rows[0]], rows[::-1]):
            if some != rows and len(some) > 1:
                yield rf"{found[1]} {' '.join([(chr(92) * 2 + ' ').join(some)])} {found[3]}"
        if "&" not in gold:
            yield rf"{found[1]} {' & '.join(rows)} & 1 {found[3]}"


def variables(gold: str) -> Iterator[str]:
    """Another letter for a variable."""
    if not re.search(r"text|mbox|begin|_|circ|\\in(?![a-z])", gold):
        bare = re.sub(r"\\[A-Za-z]+", "", gold)
        for letter in sorted(set(re.findall(r"(?<![A-Za-z])[a-hj-zR](?![A-Za-z])", bare)))[:2]:
            yield re.sub(rf"(?<![A-Za-z\\]){letter}(?![A-Za-z])", "w", gold)


def sides(gold: str) -> Iterator[str]:
    if (found := EQUATION.fullmatch(gold)) and r"\in" not in gold:
        left, right = found.groups()
        yield from (
            f"{left} = {right} + 1",
            f"{left} = -({right})" if right != "0" else f"{left} = 1",
            "0 = 0",
            f"{right} = {right}",
            left,
        )
        yield rf"{left} \neq {right}"
        yield f"{left} < {right}"


def other_unit(gold: str) -> Iterator[str]:
    if found := DEGREES.fullmatch(gold):
        yield from (f"{found[1]} radians", rf"{found[1]}\text{{ radians}}", rf"{found[1]}\pi")
    if found := MONEY.fullmatch(gold):
        flat = re.sub(r",\\!", "", found[1])
        yield from (f"{flat} cents", rf"{flat}\text{{ cents}}", f"{flat}¢", f"1{flat}")
    if found := MEASURE.fullmatch(gold):
        other = "dollars" if found[2] == "cents" else "feet"
        yield from (f"{found[1]} {other}", rf"{found[1]}\text{{ {other}}}", rf"1{found[1]} \text{{ {found[2]}}}")


def other_base(gold: str) -> Iterator[str]:
    if found := NUMERAL.fullmatch(gold):
        number, base = found[1], int(found[2])
        yield from (f"{number}_{{{base + 1}}}", f"{number}_{{10}}", f"{number}0_{base}")
        if number != number[::-1]:
            yield f"{number[::-1]}_{base}"


def other_words(gold: str) -> Iterator[str]:
    if found := WORDS.fullmatch(gold):
        word = found[1]
        if len(word) == 1:
            yield from (
                gold.replace(word, chr(ord(word) + 1)),
                chr(ord(word) + 1),
                rf"\text{{({word}) or ({chr(ord(word) + 1)})}}",
            )
        else:
            yield from (
                rf"\text{{{word[::-1]}}}",
                rf"\text{{{word[:-1]}}}",
                rf"\text{{not {word}}}",
                f"{word} or not",
                "7",
            )


def corrected(gold: str) -> Iterator[str]:
    """The right answer in a box, and then another one in the last box."""
    other = f"{int(gold) + 1}" if INTEGER.fullmatch(gold) else "77"
    yield rf"First \boxed{{{gold}}} seemed right. After checking, the answer is \boxed{{{other}}}."
    yield f"It is not {gold}: the answer is \\boxed{{{other}}}."


def lost_box(gold: str) -> Iterator[str]:
    found = entries(gold)
    if found and not TUPLE.fullmatch(gold):
        yield rf"The solutions are \boxed{{{found[0]}}}."
        yield ", ".join(rf"\boxed{{{entry}}}" for entry in [*found, "99"])


RULES: dict[str, Rule] = {
    rule.__name__: rule
    for rule in (
        near_number,
        digits,
        groups,
        alternatives,
        empty,
        other_number,
        signs,
        more,
        constants,
        lost_entry,
        other_brackets,
        unions,
        matrix_entries,
        variables,
        sides,
        other_unit,
        other_base,
        other_words,
    )
}
"""Rules whose answers stand in a frame."""
WHOLE: dict[str, Rule] = {rule.__name__: rule for rule in (corrected, lost_box)}
"""Rules that make a frame of their own."""
