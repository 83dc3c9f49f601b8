"""Other ways to write an answer to a problem of mathematics, by rule: equal ones, and ones that look alike and differ.

    rewritings("\\\\frac{1}{2}")  gives  Rewriting(gold, "**0.5**", same=True, rule="decimal", frame="bold"), ...

A rule makes answers of a gold answer's text alone. It applies to every gold of its form and knows nothing of graders.
Each answer stands in a frame, the words in which a model may state it. Which one is drawn by a hash, so that the same
golds give the same rewritings.
"""

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from benchmarks.rewriting import latex, numbers, other, written
from benchmarks.rewriting.forms import INTEGER, NUMERAL, WORDS, Rule, entries, value_of

FRAMES = {
    "bare": "{}",
    "boxed": r"\boxed{{{}}}",
    "boxed sentence": r"So the final answer is $\boxed{{{}}}$.",
    "boxed after another": r"At first \boxed{{0}} looked right, but the answer is \boxed{{{}}}.",
    "boxed display": "We check that $2 + 2 = 4$.\n\n**Final Answer**\n\n\\[\n\\boxed{{{}}}\n\\]\n",
    "boxed with blanks": r"\boxed{{ {} }}",
    "dollars": "${}$",
    "double dollars": "$${}$$",
    "parentheses": r"\({}\)",
    "brackets": r"\[ {} \]",
    "sentence": "The answer is ${}$.",
    "bold": "**{}**",
    "bold label": "**Answer:** {}",
    "label": "Final answer: {}",
}
"""How an answer is stated; the empty braces are the answer's place."""


@dataclass(frozen=True, slots=True)
class Rewriting:
    """One rewriting of a gold answer."""

    gold: str
    answer: str
    same: bool
    """Whether it is the same answer."""
    rule: str
    frame: str


def rewritings(gold: str) -> list[Rewriting]:
    """All rewritings of a gold answer: of each rule, each in one frame; and itself, in every frame."""
    plain = [Rewriting(gold, frame.format(gold), True, "itself", name) for name, frame in FRAMES.items()]
    whole = [
        Rewriting(gold, answer, same, rule, "its own")
        for same, rules in ((True, latex.WHOLE | written.WHOLE), (False, other.WHOLE | written.WHOLE_OTHER))
        for rule, answer in _made(rules, gold)
    ]
    framed = [
        _framed(gold, answer, same, rule)
        for same, rules in ((True, numbers.RULES | latex.RULES | written.RULES), (False, other.RULES | written.OTHER))
        for rule, answer in _made(rules, gold)
    ]
    return [*plain, *whole, *framed]


def _made(rules: Mapping[str, Rule], gold: str) -> Iterator[tuple[str, str]]:
    """The different answers that rules make, each with the first rule that made it."""
    seen = {gold}
    for name, rule in rules.items():
        for answer in rule(gold):
            if answer not in seen:
                seen.add(answer)
                yield name, answer


def _framed(gold: str, answer: str, same: bool, rule: str) -> Rewriting:
    names = [name for name, frame in FRAMES.items() if "**" not in frame or "**" not in answer]
    name = names[zlib.crc32(f"{gold}\n{answer}".encode()) % len(names)]
    return Rewriting(gold, FRAMES[name].format(answer), same, rule, name)


def kind_of(gold: str) -> str:
    """The kind of a gold answer, by which figures are told apart."""
    if WORDS.fullmatch(gold):
        return "words"
    if NUMERAL.fullmatch(gold):
        return "numeral"
    if INTEGER.fullmatch(gold):
        return "integer"
    if value_of(gold) is not None:
        return "number"
    if "=" in gold:
        return "equation"
    if entries(gold) or any(mark in gold for mark in (",", r"\cup", "pmatrix")):
        return "list"
    return "expression"
