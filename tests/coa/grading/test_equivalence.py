"""Maths answers: what is the same however it is written, and what is not, also by rule on the golds of benchmarks."""

import os
import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path

import pyarrow.parquet
import pytest

from benchmarks import maths
from benchmarks.rewriting.answers import Rewriting, rewritings
from coa.grading.equivalence import Comparer

BENCHMARKS = Path(os.environ.get("COA_BENCHMARKS", "../shared/benchmarks"))
FILES = ("math500", "aime24", "aime25")
needs_benchmarks = pytest.mark.skipif(
    not (BENCHMARKS / "math500.parquet").exists(), reason=f"no benchmark files in {BENCHMARKS} (set COA_BENCHMARKS)"
)


@pytest.fixture(scope="module")
def comparer() -> Iterator[Comparer]:
    comparer = Comparer()
    yield comparer
    comparer.process.close()


SAME = [
    ("0.5", r"\frac{1}{2}"),
    ("1/2", "0.5"),
    ("$x^2 + 2x + 1$", "(x+1)^2"),
    (r"\boxed{7}", "7"),
    (r"$2\sqrt{2}$", r"\sqrt{8}"),
    ("0.666667", r"\frac{2}{3}"),
    # The part of an answer that states the result.
    (r"First \boxed{6}, no: $\boxed{\frac{1}{2}}$.", r"\frac12"),
    (r"\fbox{\text{(A)}}", r"\text{(A)}"),
    ("The answer is 7.", "7"),
    ("The roots are $x=5$ or $x=7$", "5,7"),
    (r"\(\frac34\)", "3/4"),
    ("7", r"$\boxed{7}$"),
    ("12 square units", "12"),
    # Symbols and names that are no LaTeX.
    ("90°", r"90^\circ"),
    ("2π", r"2\pi"),
    ("2*pi", r"2\pi"),
    ("3√13", r"3\sqrt{13}"),
    ("3*sqrt(13)", r"3\sqrt{13}"),
    ("\u22125", "-5"),
    ("x**2", "x^2"),
    ("(2,oo)", r"(2,\infty)"),
    ("sin(x)", r"\sin x"),
    # Units, currencies, percents, thousands.
    ("12 cm", r"12\text{ cm}^2"),
    (r"\$1{,}500", "1500"),
    (r"1\,500", "1500"),
    ("1 500.5", "1500.5"),
    ("200, 100", "100, 200"),
    (r"50\%", "50"),
    # Sets, intervals, tuples.
    ("-2, 1", "1,-2"),
    (r"\{1, -2\}", "1,-2"),
    ("1, -2", "(1,-2)"),
    ("-2, 1", "(-2,1)"),
    (r"-2 \le x \le 7", r"x \in [-2,7]"),
    (r"[-2,7]", r"x \in [-2,7]"),
    ("5", "x=5"),
    # Words.
    ("Even.", r"\text{even}"),
    ("an ellipse", r"\text{ellipse}"),
    ("No.", r"\text{no}"),
    ("(c)", r"\textbf{(C)}"),
    # Bases.
    ("40_{9}", "40_9"),
    ("40", "40_9"),
    (r"52_{\text{8}}", "52_8"),
    ("(52)_8", "52_8"),
    ("52 in base 8", "52_8"),
    # Several boxes, bold type, hedges, labels, introductions.
    (r"\boxed{1}, \boxed{-2}", "1,-2"),
    (r"$x_1 = \boxed{1}$ and $x_2 = \boxed{-2}$", "1,-2"),
    (r"\boxed{5}, that is \boxed{5}", "5"),
    ("**31**", "31"),
    ("**Answer:** 31", "31"),
    ("**Final answer**\n\n31", "31"),
    ("42 is the answer", "42"),
    (r"\boxed{=27}", "27"),
    (r"\boxed{\approx 27}", "27"),
    ("about 27", "27"),
    (r"\sqrt{2} \approx 1.414", r"\sqrt{2}"),
    # Powers, brackets, products.
    ("51^{0.5}", r"\sqrt{51}"),
    ("3 sqrt(2)", r"3\sqrt{2}"),
    ("2(5)", "10"),
    (r"\bigl(3,4\bigr]", "(3,4]"),
    ("3e8", r"3 \times 10^8"),
    ("3 1/2", "3.5"),
    ("5!", "120"),
    ("2ab", "2ba"),
    # Thousands.
    ("x = 10,080", r"10,\!080"),
    ("10,080 dollars", r"10,\!080"),
    ("2,500, 7,500", "7500, 2500"),
    # Units.
    (r"90\degree", r"90^\circ"),
    ("62.5", "62.5%"),
    (r"0.625", r"62.5\%"),
    ("27 mi", "27"),
    ("15 cm^2", r"15\mbox{ cm}^2"),
    ("15 cm^2", "15"),
    ("3600 cents", r"\$36"),
    ("12 different ways", "12"),
    # Equations.
    ("n^2-n-1", r"m_{\max}=n^2-n-1"),
    (r"m_{\text{max}} = n(n-1) - 1", r"m_{\max}=n^2-n-1"),
    ("m = n^2 - n - 1", r"m_{\max}=n^2-n-1"),
    ("y - 3 = 2x", "y = 2x + 3"),
    ("2x = 10", "x=5"),
    ("n", "N=n"),
    ("y=4, x=3", "x=3, y=4"),
    # Lists count what is in them.
    ("16,1,3,1", "16,3,1,1"),
    (r"x = \pm 5", "5, -5"),
]
DIFFERENT = [
    ("0.3", r"\frac{1}{3}"),
    ("41", "42"),
    ("", "42"),
    (" ", "42"),
    (r"\boxed{}", "42"),
    ("-7", "7"),
    ("7 or 8", "7"),
    (r"\boxed{7} \boxed{8}", "7"),
    ("no number", "4"),
    ("2\\sqrt{5} square units", "2"),
    ("288\\pi", "288"),
    ("The answer is 3*sqrt(13)", "3"),
    ("0.0000673", ".0000672"),
    ("0.0000001", "0"),
    ("58 500", "558"),
    ("100, 200", "100200"),
    ("40_8", "40_9"),
    ("40_8", "40"),
    ("41", "40_9"),
    ("-2, 1", "(1,-2)"),
    ("1, -2", "(-2,1)"),
    ("(3,4)", "(3,4]"),
    ("p q", "p - q"),
    ("seat", r"\text{east}"),
    ("nat", r"\text{ant}"),
    ("odd", r"\text{even}"),
    ("y=5", "x=5"),
    ("0=0", "N=n"),
    ("N", "N=n"),
    ("x=x", "x=5"),
    ("x=2", "x^2=4"),
    ("x=4, y=3", "x=3, y=4"),
    ("16,3,1", "16,3,1,1"),
    ("1, 2, 2", "1, 2"),
    (r"\{15,-29\}", "(15,-29)"),
    ("[15,-29]", "(15,-29)"),
    ("36 cents", r"\$36"),
    ("27 km", "27 miles"),
    (r"90\text{ radians}", r"90^\circ"),
    (r"\boxed{3}, \boxed{4}", "3"),
    (r"First \boxed{4}, but it is \boxed{5}", "4"),
    ("3 million", "3"),
    ("3 dozen", "3"),
    ("27 or more", "27"),
    ("at least 27", "27"),
    ("not 27", "27"),
    ("negative 27", "27"),
    ("the answer is not 27", "28"),
    ("1 in 27", "27"),
    ("5!", "5"),
    ("2", "2ab"),
    ("3(4)", "7"),
    ("1 2", "12"),
    ("2:3", "3:2"),
    ("3.14", r"\pi"),
    ("0.035156257", r"\frac{9}{256}"),
    (r"-(\frac{1}{2})", r"\frac{1}{2}"),
    ("C", "D"),
    ("(A) or (B)", "A"),
    ("anything", ""),
    ("", ""),
]


@pytest.mark.parametrize(("answer", "gold"), SAME)
def test_equal_expressions_are_the_same_answer(comparer: Comparer, answer: str, gold: str) -> None:
    assert comparer.equal(answer, ("nothing", gold))


@pytest.mark.parametrize(("answer", "gold"), DIFFERENT)
def test_unequal_expressions_are_not(comparer: Comparer, answer: str, gold: str) -> None:
    assert not comparer.equal(answer, (gold,))


# The benchmarks.


def golds(name: str) -> list[str]:
    table = pyarrow.parquet.read_table(BENCHMARKS / f"{name}.parquet", columns=["reward_model"])
    return [str(row["reward_model"]["ground_truth"]) for row in table.to_pylist()]


@needs_benchmarks
def test_every_gold_equals_itself_however_it_is_framed(comparer: Comparer) -> None:
    every = [gold for name in FILES for gold in golds(name)]
    assert len(every) == 560
    framed = ("{}", r"\boxed{{{}}}", "${}$", r"It follows that $x$ is \boxed{{{}}}.")
    assert [
        (gold, frame) for gold in every for frame in framed if not comparer.equal(frame.format(gold), (gold,))
    ] == []


def next_number(gold: str) -> str:
    """The last number in it, but for a unit's exponent, grown by one; where there is none, another sum or word."""
    if found := re.fullmatch(r"(.*?)(\d+)(\D*|\s?\\mbox\{.*)", gold, re.DOTALL):
        return f"{found[1]}{int(found[2]) + 1}{found[3]}"
    return re.sub(r"[A-Za-z](?=\)?\}?$)", "z", gold)


@needs_benchmarks
def test_no_gold_equals_one_with_another_number(comparer: Comparer) -> None:
    every = [(gold, next_number(gold)) for name in FILES for gold in golds(name)]
    assert [pair for pair in every if pair[0] == pair[1]] == []
    assert [pair for pair in every if comparer.equal(pair[1], (pair[0],))] == []


@pytest.fixture(scope="module")
def rewritten() -> list[Rewriting]:
    return maths.sample(maths.golds(BENCHMARKS))


def errors(comparer: Comparer, every: list[Rewriting]) -> list[Rewriting]:
    return maths.wrong(lambda answer, gold: comparer.equal(answer, (gold,)), every)


@needs_benchmarks
def test_rewritings_by_rule_are_graded_as_they_should_be(comparer: Comparer, rewritten: list[Rewriting]) -> None:
    some = rewritten[::97]
    assert len(some) > 100
    assert errors(comparer, some) == []


@pytest.mark.slow
@needs_benchmarks
def test_of_all_rewritings_few_are_rejected_and_no_wrong_one_is_accepted(
    comparer: Comparer, rewritten: list[Rewriting]
) -> None:
    assert len(rewritten) > 8000
    found = maths.rates("ours", errors(comparer, rewritten), rewritten)
    assert found["ours_rejected"] <= maths.TARGET
    assert found["ours_accepted"] == 0


@pytest.mark.parametrize(
    "gold", ["7", "-12", "0", r"\frac{3}{4}", "(2,-5)", "3, 5, 5", "x^2+1", r"\$36", "x=5", "41_7"]
)
def test_rules_make_each_answer_once_and_none_is_both_right_and_wrong(gold: str) -> None:
    every = [one for one in rewritings(gold) if one.rule != "itself"]
    assert len({one.answer for one in every}) == len(every) > 10
    assert {one.same for one in every} == {True, False}


@pytest.mark.parametrize(
    ("answer", "gold", "published", "ours"),
    [("36 cents", r"\$36", True, False), ("**31**", "31", True, True), (r"3\sqrt{13}", r"3\sqrt{13}", False, True)],
)
def test_the_published_verdict_is_plain_math_verifys(
    comparer: Comparer, answer: str, gold: str, published: bool, ours: bool
) -> None:
    assert comparer.equal(answer, (gold,), as_published=True) is published
    assert comparer.equal(answer, (gold,)) is ours


# Rows of math500 by the kind of their gold; then for each kind, how else it can be written, and how not.

Rewrite = Callable[[str], str]


def numbers(gold: str) -> list[int]:
    return [int(number) for number in re.findall(r"-?\d+", gold)]


def fraction_of(gold: str) -> Fraction:
    sign = -1 if gold.startswith("-") else 1
    over, under = numbers(gold.removeprefix("-"))
    return sign * Fraction(over, under)


def decimal_of(gold: str) -> str:
    """Of a fraction that ends: 0.375; of another the fraction times three over three."""
    value = fraction_of(gold)
    power = next((n for n in range(1, 12) if (value * 10**n).denominator == 1), None)
    return f"{3 * value.numerator}/{3 * value.denominator}" if power is None else f"{float(value):.{power}f}"


def spread(gold: str) -> str:
    return re.sub(r"([-+,()=]|\\cup|\\begin\{pmatrix\})", r" \1 ", gold)


def turned(gold: str) -> str:
    """A sum with its terms in reverse: 2k+2 is +2+2k."""
    terms = re.findall(r"[-+]?[^-+]+", gold.replace(" ", ""))
    return "".join(term if term[0] in "+-" else f"+{term}" for term in reversed(terms))


def entries(gold: str) -> list[str]:
    return gold.strip("()").split(",")


def replaced(old: str, new: str) -> Rewrite:
    return lambda gold: gold.replace(old, new)


KINDS: dict[str, tuple[list[int], list[Rewrite], list[Rewrite]]] = {
    "integer": (
        [3, 5, 9, 10, 12, 16, 21, 27],
        [
            "{}.0".format,
            "x = {}".format,
            lambda gold: rf"\frac{{{2 * int(gold)}}}{{2}}",
            lambda gold: f"{int(gold) - 5} + 5",
            lambda gold: f"{int(gold):,}",
            r"{} \text{{ apples}}".format,
        ],
        [lambda gold: f"{int(gold) + 1}", lambda gold: f"{-int(gold)}", "{}0".format, "{}.01".format],
    ),
    "fraction": (
        [2, 11, 33, 48, 64, 75, 92, 124, 153, 162],
        [
            replaced("\\frac", "\\dfrac"),
            lambda gold: str(fraction_of(gold)),
            lambda gold: rf"\frac{{{5 * fraction_of(gold).numerator}}}{{{5 * fraction_of(gold).denominator}}}",
            decimal_of,
            r"\left( {} \right)".format,
        ],
        [
            lambda gold: str(fraction_of(gold) + 1),
            lambda gold: str(-fraction_of(gold)),
            lambda gold: str(1 / fraction_of(gold)),
            lambda gold: f"{float(fraction_of(gold)):.1f}1",
        ],
    ),
    "coordinates": (
        [60, 78, 144, 218, 314, 364, 376],
        [
            lambda gold: rf"\left({', '.join(entries(gold))}\right)",
            spread,
            lambda gold: f"({', '.join(f'{float(entry)}' for entry in entries(gold))})",
            lambda gold: f"({', '.join(f'{int(entry) + 2} - 2' for entry in entries(gold))})",
        ],
        [
            lambda gold: f"({','.join(reversed(entries(gold)))})",
            lambda gold: f"({','.join(entries(gold)[:-1])})",
            lambda gold: f"({','.join(entries(gold))},0)",
            lambda gold: f"({','.join(str(-int(entry)) for entry in entries(gold))})",
        ],
    ),
    "degrees": (
        [7, 100, 109, 156, 260, 281],
        [
            replaced(r"^\circ", "°"),
            replaced(r"^\circ", r"^{\circ}"),
            replaced(r"^\circ", r"\text{ degrees}"),
            replaced(r"^\circ", ""),
            replaced(r"^\circ", r" ^ \circ"),
        ],
        [lambda gold: f"{numbers(gold)[0] + 1}°", lambda gold: f"{numbers(gold)[0]} + 1"],
    ),
    "root": (
        [8, 14, 43, 143, 164, 361, 392, 418],
        [
            lambda gold: re.sub(r"\\sqrt\{(\d+)\}", r"\1^{1/2}", re.sub(r"(?<=\d)\s*(?=\\sqrt)", r" \\cdot ", gold)),
            lambda gold: re.sub(r"(?<=\d)\s*(?=\\sqrt)", "*", gold).replace("\\sqrt{", "sqrt(").replace("}", ")"),
            lambda gold: re.sub(r"\\sqrt\{(\d+)\}", r"√\1", gold),
            lambda gold: re.sub(r"\\sqrt\{(\d+)\}", lambda root: rf"\frac{{\sqrt{{{4 * int(root[1])}}}}}{{2}}", gold),
        ],
        [
            lambda gold: re.sub(r"\\sqrt\{(\d+)\}", r"\1", gold),
            lambda gold: re.sub(r"(?<=\{)\d+", lambda number: str(int(number[0]) + 1), gold),
            "-({})".format,
            "1 + {}".format,
        ],
    ),
    "pi": (
        [228, 279, 313, 466],
        [
            replaced("\\pi", "π"),
            replaced("\\pi", "*pi"),
            lambda gold: rf"\pi \cdot {numbers(gold)[0]}",
            lambda gold: rf"\frac{{{numbers(gold)[0] * 2}\pi}}{{2}}",
        ],
        [replaced("\\pi", ""), replaced("\\pi", "\\pi^2"), lambda gold: f"{numbers(gold)[0] * 3}.14"],
    ),
    "words": (
        [4, 97, 120, 227, 255, 358, 398],
        [
            replaced("\\text", "\\mathrm"),
            replaced("\\text", "\\textbf"),
            lambda gold: gold.removeprefix("\\text{").removesuffix("}"),
            lambda gold: gold.removeprefix("\\text{").removesuffix("}").upper(),
            "{}.".format,
        ],
        [
            lambda gold: re.sub(r"(?<=\{)(\(?)[A-Za-z]", r"\1z", gold),
            lambda gold: gold.replace("}", " x}"),
            lambda gold: "\\text{other}",
        ],
    ),
    "column": (
        [99, 205, 298, 408, 419, 420],
        [
            replaced("pmatrix", "bmatrix"),
            lambda gold: re.sub(r"(-?\d+)/(\d+)", r"\\frac{\1}{\2}", gold).replace("pmatrix", "bmatrix"),
            lambda gold: gold.replace(" ", "").replace("\\\\", " \\\\ "),
            lambda gold: re.sub(r"-?\d+(/\d+)?", r"\g<0> + 1 - 1", gold),
        ],
        [
            lambda gold: re.sub(r"(?<=\} )(.*?) \\\\ (.*?)(?= \\)", r"\2 \\\\ \1", gold, count=1),
            lambda gold: re.sub(r"\d+", lambda number: str(int(number[0]) + 1), gold, count=1),
            lambda gold: gold.replace("\\end", "\\\\ 0 \\end"),
        ],
    ),
    "sum": (
        [1, 15, 28, 51, 66, 98, 245, 384, 481],
        [turned, spread, lambda gold: gold.replace(" ", ""), r"\left({}\right)".format, "({} + 3) - 3".format],
        [
            lambda gold: re.sub(r"(.*)([-+])", lambda sum: sum[1] + "-+"[sum[2] == "-"], gold),
            "{} + 1".format,
            "-({})".format,
            "2({})".format,
        ],
    ),
    "interval": (
        [184, 307, 312, 380, 435, 495],
        [
            spread,
            lambda gold: re.sub(r"([(\[])([^,]*),([^\])]*)([\])])", r"\\left\1\2, \3\\right\4", gold),
            lambda gold: r" \cup ".join(reversed(gold.split("\\cup"))).replace("\\infty", "∞"),
        ],
        [
            lambda gold: gold[::-1].translate(str.maketrans("()[]", ")(][")) if "infty" not in gold else "(0,1)",
            lambda gold: re.sub(r"\d+", lambda number: str(int(number[0]) + 1), gold, count=1),
            lambda gold: gold.replace("(", "[").replace("[-", "(-") if "(-" not in gold else gold.replace("-", ""),
        ],
    ),
    "list": (
        [25, 36, 456],
        [
            lambda gold: ", ".join(reversed(gold.split(","))),
            r"\{{{}\}}".format,
            replaced(",", r" \text{ and }"),
            lambda gold: ", ".join(f"x = {entry}" for entry in gold.split(",")),
        ],
        [lambda gold: gold.split(",")[0], "{}, 99".format, lambda gold: gold.replace("1", "2").replace("3", "2")],
    ),
    "thousands": (
        [198, 217, 343],
        [
            lambda gold: re.sub(r"\D", "", gold),
            lambda gold: f"{int(re.sub(r'[^0-9]', '', gold)):,}",
            lambda gold: f"{int(re.sub(r'[^0-9]', '', gold)):,}".replace(",", "{,}"),
            lambda gold: f"{int(re.sub(r'[^0-9]', '', gold)):,}".replace(",", r"\,"),
        ],
        [lambda gold: gold.split(",")[0], "1{}".format, lambda gold: re.sub(r"\D", "", gold) + "0"],
    ),
}


@needs_benchmarks
@pytest.mark.parametrize("kind", KINDS)
def test_golds_equal_what_means_the_same(comparer: Comparer, kind: str) -> None:
    rows, same, _ = KINDS[kind]
    every = golds("math500")
    rewritten = {every[row]: {rewrite(every[row]) for rewrite in same} - {every[row]} for row in rows}
    assert [gold for gold, found in rewritten.items() if len(found) < 3] == []
    assert [
        (gold, answer)
        for gold, answers in rewritten.items()
        for answer in sorted(answers)
        if not comparer.equal(rf"\boxed{{{answer}}}", (gold,))
    ] == []


@needs_benchmarks
@pytest.mark.parametrize("kind", KINDS)
def test_golds_do_not_equal_what_means_something_else(comparer: Comparer, kind: str) -> None:
    rows, _, other = KINDS[kind]
    every = golds("math500")
    assert [
        (every[row], answer)
        for row in rows
        for answer in sorted({corrupt(every[row]) for corrupt in other})
        if comparer.equal(rf"\boxed{{{answer}}}", (every[row],))
    ] == []


def test_the_kinds_hold_enough_golds() -> None:
    assert sum(len(rows) for rows, _, _ in KINDS.values()) >= 70
