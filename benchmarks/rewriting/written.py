"""Rules for what models and users write around and instead of LaTeX: fonts, Markdown, other keyboards, other countries.

RULES and WHOLE make the same answer, OTHER and WHOLE_OTHER another one.
"""

import re
from collections.abc import Iterator

from benchmarks.rewriting.forms import INTEGER, INTERVAL, NUMERAL, WORDS, Rule, entries, value_of

_FULL_WIDTH = str.maketrans({sign: chr(ord(sign) + 0xFEE0) for sign in "(),;=+-<>%:"})
_DIGITS = str.maketrans({digit: chr(ord(digit) + 0xFEE0) for digit in "0123456789"})
_SUBSCRIPTS = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")
_BASES = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def fonts(gold: str) -> Iterator[str]:
    if "=" not in gold:
        yield from (rf"\color{{blue}}{{{gold}}}", rf"{{\color{{red}}{gold}}}", rf"\textcolor{{blue}}{{{gold}}}")
        yield from (rf"\underline{{{gold}}}", rf"\large {gold}", rf"\color{{blue}}{gold}", rf"{{\bf {gold}}}")


def markdown(gold: str) -> Iterator[str]:
    yield f"`{gold}`"
    if not re.search(r"[*_]", gold):
        yield f"*{gold}*"


def full_width(gold: str) -> Iterator[str]:
    if "\\" not in gold and not WORDS.fullmatch(gold):
        yield gold.translate(_FULL_WIDTH)
        yield gold.translate(_DIGITS)
    if (found := entries(gold)) and "\\" not in gold and not gold.startswith("("):
        yield "、".join(found)


def outward(gold: str) -> Iterator[str]:
    """Open ends of intervals as brackets that point outwards, and infinities with their sign."""
    parts = [re.sub(r"\\(?:left|right) ?", "", part).strip() for part in gold.split(r"\cup")]
    found = [INTERVAL.fullmatch(part) for part in parts]
    if all(found) and re.search(r"[\[\]]|infty", gold):
        turned = (
            f"{'[]'[one['open'] == '(']}{one['low']}, {one['high']}{'[]'[one['close'] == ']']}" for one in found if one
        )
        yield r" \cup ".join(turned)
        yield re.sub(r"(?<!-)\\infty", r"+\\infty", gold)
        yield re.sub(r"(?<!-)\\infty", "+∞", gold)


def choices(gold: str) -> Iterator[str]:
    if (found := WORDS.fullmatch(gold)) and len(letter := found[1]) == 1:
        yield from (rf"\textbf{{({letter})}}\ 12", rf"\text{{({letter}) }}12", f"{letter}: the third", f"{letter}. 12")
        yield from (f"({letter}) x^2 + 1", f"{letter}) none of them", f"Option {letter}", f"{letter}、12")


def bases(gold: str) -> Iterator[str]:
    if (found := NUMERAL.fullmatch(gold)) and int(found[2]) <= 10:
        name = _BASES[int(found[2]) - 2]
        yield from (rf"{found[1]}_{{\text{{{name}}}}}", rf"{found[1]}_\text{{{name}}}", f"{found[1]} in base {name}")
        yield f"{found[1]}{found[2].translate(_SUBSCRIPTS)}"


def units(gold: str) -> Iterator[str]:
    if INTEGER.fullmatch(gold):
        yield from (
            f"{gold} (miles)",
            rf"{gold}\text{{ (miles)}}",
            f"{gold} €",
            f"{gold}元",
            f"{gold}個",
            f"{gold} Äpfel",
        )


def imaginary(gold: str) -> Iterator[str]:
    if re.search(r"\di(?![A-Za-z])", gold) and "\\" not in gold:
        yield from (re.sub(r"(?<=\d)i", "j", gold), re.sub(r"(?<=\d)i", "*I", gold))


RULES: dict[str, Rule] = {
    rule.__name__: rule for rule in (fonts, markdown, full_width, outward, choices, bases, units, imaginary)
}
"""Rules of the same answer that stand in a frame."""


def explained(gold: str) -> Iterator[str]:
    if not WORDS.fullmatch(gold):
        yield rf"\boxed{{{gold}}}. This follows from the above."
        yield f"The answer is ${gold}$. This is what was to be found."
        yield f"The answer is ${gold}$, because the other case is impossible."


def marked(gold: str) -> Iterator[str]:
    yield from (
        f"#### {gold}",
        f"It is computed step by step.\n#### {gold}",
        f"答案\uff1a${gold}$。",
        f"答えは${gold}$です。",
    )


WHOLE: dict[str, Rule] = {rule.__name__: rule for rule in (explained, marked)}
"""Rules of the same answer that make a frame of their own."""


def calculations(gold: str) -> Iterator[str]:
    """What would have to be calculated to get the number."""
    if INTEGER.fullmatch(gold) and (number := int(gold)) > 0:
        yield from (
            rf"\min({number}, {number + 1})",
            rf"\max({number - 1}, {number})",
            rf"\gcd({number}, {2 * number})",
        )
        yield from (rf"\int_0^{{{number}}} 1 \, dx", rf"\sum_{{k=1}}^{{{number}}} 1", rf"\lim_{{x \to {number}}} x")
        yield from (rf"\lfloor {number}.5 \rfloor", rf"\sqrt{{{number**2}}}", rf"2 \cdot {number} - {number}")
        yield from (
            f"({number} + 1) * 2 - {number} - 2",
            rf"\binom{{{number}}}{{1}}",
            rf"{number}\sin^2 x + {number}\cos^2 x",
        )


def indices(gold: str) -> Iterator[str]:
    if value_of(gold) is not None and "," not in gold:
        yield from (f"{gold}_{{5}}", rf"{gold}_{{\text{{five}}}}", f"{gold}_x")


def unreadable(gold: str) -> Iterator[str]:
    if value_of(gold) is not None:
        yield from (rf"\neg {gold}", rf"\unknown{{{gold}}}", rf"{gold} \unknown", rf"\cancel{{{gold}}}", f"??{gold}")


def rounded(gold: str) -> Iterator[str]:
    value = value_of(gold)
    if value is not None and value.denominator == 1 and len(digits := str(abs(int(value)))) > 1:
        sign, first, power = "-" if value < 0 else "", digits[0], len(digits) - 1
        if digits[1:].strip("0"):
            yield from (rf"{sign}{first}.0 \times 10^{{{power}}}", f"{sign}{first}e{power}", f"{sign}{first}.0e{power}")


def python(gold: str) -> Iterator[str]:
    """What Python reads as the number, and mathematics does not."""
    if re.fullmatch(r"[1-9]\d+", gold):
        yield from (f"{gold[:-1]}_{gold[-1]}", hex(int(gold)), bin(int(gold)), oct(int(gold)), f"{gold}L")


def other_choices(gold: str) -> Iterator[str]:
    if (found := WORDS.fullmatch(gold)) and len(letter := found[1]) == 1:
        other = chr(ord(letter) + 1)
        yield from (rf"\textbf{{({other})}}\ 12", f"{other}. 12", f"{other}: {letter}", f"({letter}) or ({other})")
        yield from (f"({letter}) 12, ({other}) 13", f"{letter}{other}", f"{letter} + 1", f"not {letter}")


def turned_brackets(gold: str) -> Iterator[str]:
    if (found := INTERVAL.fullmatch(re.sub(r"\\(?:left|right) ?", "", gold))) and re.search(r"[\[\]]|infty", gold):
        yield (
            f"]{found['low']}, {found['high']}[" if found["open"] + found["close"] != "()" else f"[{found['low']}, 99["
        )


OTHER: dict[str, Rule] = {
    rule.__name__: rule for rule in (calculations, indices, unreadable, rounded, python, other_choices, turned_brackets)
}
"""Rules of another answer that stand in a frame."""


def taken_back(gold: str) -> Iterator[str]:
    other = f"{int(gold) + 1}" if INTEGER.fullmatch(gold) else "77"
    yield from (f"It is {gold}. Wait, it is {other}.", f"#### {gold}\n#### {other}", f"答案不是{gold}")
    yield f"I am not sure that it is ${gold}$."


WHOLE_OTHER: dict[str, Rule] = {taken_back.__name__: taken_back}
"""Rules of another answer that make a frame of their own."""
