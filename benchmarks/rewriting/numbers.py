"""Rules for numbers, with and without a unit, and for words: what they make is the same answer."""

import re
from collections.abc import Iterator

from benchmarks.rewriting.forms import (
    DECIMAL,
    DEGREES,
    INTEGER,
    MEASURE,
    MIXED,
    MONEY,
    NUMERAL,
    UNITS,
    WORDS,
    Rule,
    ends,
    spelt,
    value_of,
)


def decimal(gold: str) -> Iterator[str]:
    value = value_of(gold)
    if value is not None and (places := ends(value)) is not None:
        text = f"{abs(value.numerator) * 10**places // value.denominator:0{places + 1}d}"
        sign = "-" if value < 0 else ""
        point = f"{text[: len(text) - places]}.{text[len(text) - places :]}"
        yield f"{sign}{point}0"
        if places:
            yield f"{sign}{point}"
            yield f"{sign}{point}".replace("0.", ".", 1) if abs(value) < 1 else f"{sign}{point}00"


def fraction(gold: str) -> Iterator[str]:
    value = value_of(gold)
    if value is not None:
        over, under = value.numerator, value.denominator
        sign = "-" if value < 0 else ""
        yield rf"{sign}\frac{{{3 * abs(over)}}}{{{3 * under}}}"
        yield f"{2 * over}/{2 * under}"
        if under > 1:
            yield f"{over}/{under}"
            yield rf"{sign}\tfrac{{{abs(over)}}}{{{under}}}"
            yield rf"\frac{{{over}}}{{{under}}}"


def arithmetic(gold: str) -> Iterator[str]:
    if INTEGER.fullmatch(gold):
        number = int(gold)
        yield f"{number - 5} + 5"
        yield rf"{2 * number} \div 2"
        if factor := next((n for n in range(2, 99) if abs(number) > n and number % n == 0), None):
            yield rf"{number // factor} \cdot {factor}"
            yield rf"{number // factor} \times {factor}"


def grouped(gold: str) -> Iterator[str]:
    if (value := value_of(gold)) is not None and value.denominator == 1 and value >= 1000:
        commas = f"{int(value):,}"
        yield from (f"{int(value)}", commas, commas.replace(",", "{,}"), commas.replace(",", r"\,"))
        yield from (commas.replace(",", r",\!"), f"x = {commas}", f"{commas} dollars")
        digits = str(int(value)).rstrip("0")
        yield rf"{digits[0]}.{digits[1:] or 0} \times 10^{{{len(str(int(value))) - 1}}}"


def zeros(gold: str) -> Iterator[str]:
    """The answer to a contest's problem, with its three digits."""
    if re.fullmatch(r"\d{1,2}", gold):
        yield gold.zfill(3)


def named(gold: str) -> Iterator[str]:
    if value_of(gold) is not None:
        yield from (f"x = {gold}", f"N={gold}", f"m+n = {gold}", f"={gold}", rf"\angle ABC = {gold}", f"f(2) = {gold}")


def hedged(gold: str) -> Iterator[str]:
    if INTEGER.fullmatch(gold):
        yield from (f"about {gold}", rf"\approx {gold}", f"exactly {gold}")


def with_unit(gold: str) -> Iterator[str]:
    if INTEGER.fullmatch(gold) or DECIMAL.fullmatch(gold):
        yield from (f"{gold}{unit}" for unit in UNITS)


def styled(gold: str) -> Iterator[str]:
    if value_of(gold) is not None:
        yield from (rf"\mathbf{{{gold}}}", rf"{{{gold}}}", rf"\displaystyle {gold}", rf"\left({gold}\right)")
    if INTEGER.fullmatch(gold):
        yield from (rf"\text{{{gold}}}", rf"\textbf{{{gold}}}", rf"\mathrm{{{gold}}}")


def improper(gold: str) -> Iterator[str]:
    value = value_of(gold)
    if MIXED.fullmatch(gold) and value is not None:
        yield from (spelt(value), f"{value}")


# Units.


def degrees(gold: str) -> Iterator[str]:
    if found := DEGREES.fullmatch(gold):
        number = found[1]
        for sign in (
            "°",
            r"\degree",
            r"^{\circ}",
            r"^\circ",
            r" ^ \circ",
            " degrees",
            r"\text{ degrees}",
            r"^{\circ }",
            "",
        ):
            yield f"{number}{sign}"
        yield rf"\theta = {number}^\circ"


def money(gold: str) -> Iterator[str]:
    if found := MONEY.fullmatch(gold):
        amount = found[1]
        flat = re.sub(r",\\!", "", amount)
        yield from (
            flat,
            f"{flat} dollars",
            rf"{flat}\text{{ dollars}}",
            rf"\${flat}",
            rf"\text{{\${flat}}}",
            f"{flat} USD",
        )
        if "." not in flat:
            yield from (f"{int(flat):,}", rf"\${int(flat):,}", f"{flat}.00")


def measure(gold: str) -> Iterator[str]:
    if found := MEASURE.fullmatch(gold):
        number, unit, square = found[1], found[2], found[3] or ""
        yield from (
            number,
            f"{number} {unit}{square}",
            rf"{number}\ \text{{{unit}}}{square}",
            rf"{number}\,\mathrm{{{unit}}}{square}",
        )
        if square:
            yield from (f"{number} square {unit}", rf"{number} \text{{ {unit}}}^{{2}}", f"{number} {unit}²")


def numeral(gold: str) -> Iterator[str]:
    if found := NUMERAL.fullmatch(gold):
        digits, base = found[1], found[2]
        yield from (f"{digits}_{base}", f"{digits}_{{{base}}}", rf"{digits}_{{\text{{{base}}}}}", digits)
        yield from (
            f"({digits})_{base}",
            rf"{digits} \text{{ (base {base})}}",
            f"{digits} in base {base}",
            f"{digits}_{{({base})}}",
        )


def words(gold: str) -> Iterator[str]:
    if found := WORDS.fullmatch(gold):
        word = found[1]
        bare = gold.removeprefix(r"\text{").removesuffix("}")
        yield from (
            bare,
            word,
            word.upper(),
            word.lower(),
            f"{word}.",
            rf"\textbf{{{bare}}}",
            rf"\mathrm{{{bare}}}",
            rf"\text{{{word}}}",
        )


RULES: dict[str, Rule] = {
    rule.__name__: rule
    for rule in (
        decimal,
        fraction,
        arithmetic,
        grouped,
        zeros,
        named,
        hedged,
        with_unit,
        styled,
        improper,
        degrees,
        money,
        measure,
        numeral,
        words,
    )
}
"""Rules whose answers stand in a frame."""
