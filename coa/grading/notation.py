r"""Spells formulas in one way, LaTeX or plain: spelt("3√2 ± π") == r"3\sqrt{2} \pm \pi".

Only notation is decided here; `coa.grading.mathematics` decides whether two expressions are equal.
"""

import re
import unicodedata
from collections.abc import Callable
from fractions import Fraction

STYLED = "text(?:bf|it|rm)?|mbox|math(?:rm|bf)|boldsymbol|bm|operatorname"
"""Commands of fonts, as a pattern."""
# Full-width signs, and mathematical letters and digits in bold, italic and other styles.
_PLAIN = str.maketrans(
    {chr(code): chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5E)}
    | {chr(code): unicodedata.normalize("NFKC", chr(code)) for code in range(0x1D400, 0x1D800)}
    | dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff\u200e\u200f")
    | dict.fromkeys("\u00a0\u202f\u2009\u2007\u2002\u2003\u3000", " ")
    | dict(zip("\u2223\u2212\u2013\ufe63。\u2044\u2236\u2217", "|---./:*", strict=True))
)
_SYMBOLS = {
    "°": r"^\circ ", "º": r"^\circ ", "˚": r"^\circ ", "π": r"\pi ", "∞": r"\infty ", "\u00d7": r"\times ",
    "·": r"\cdot ", "\u22c5": r"\cdot ", "÷": r"\div ", "±": r"\pm ", "+/-": r"\pm ", "≤": r"\le ", "≥": r"\ge ",
    "≦": r"\le ", "≧": r"\ge ", "⩽": r"\le ", "⩾": r"\ge ", "≠": r"\ne ", "\u222a": r"\cup ", "∩": r"\cap ",
    "∈": r"\in ", "**": "^", "≈": r"\approx ", "∅": r"\emptyset ", "Ø": r"\emptyset ", "\u211d": r"\mathbb{R}",
    "\u2124": r"\mathbb{Z}", "\u211a": r"\mathbb{Q}", "\u2115": r"\mathbb{N}", "\u2102": r"\mathbb{C}",
    "\u2014": "-", "…": r"\ldots ",
    r"\langle": "(", r"\rangle": ")", r"\lbrack": "[", r"\rbrack": "]", r"\varnothing": r"\emptyset",
    r"\bigcup": r"\cup", r"\backslash": r"\setminus", r"\colon": ":", "℃": r"^\circ C", "℉": r"^\circ F",
    "㎝": " cm", "㎜": " mm", "㎞": " km", "㎏": " kg", "㎡": " m^2", ":=": "=",
    "√": r"\sqrt", "∛": r"\sqrt[3]", r"\log_e": r"\ln ", r"\log_{e}": r"\ln ",
    r"\dbinom": r"\binom", r"\tbinom": r"\binom",
}  # fmt: skip
_LEVELS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ₀₁₂₃₄₅₆₇₈₉₊₋ₙ", "0123456789+-n" * 2)

_FENCE = re.compile(r"```(?:[A-Za-z]+\n)?")
_AROUND = re.compile(
    r"\A(?:(?P<mark>[*_]{1,3}|[\"'])(?=\S)(?P<marked>(?:(?!(?P=mark)).)+)(?<=\S)(?P=mark)|[\u201c「『\u2018](?P<quoted>.+)[\u201d」』\u2019])\Z",
    re.S,
)
_ELEMENT = re.compile(r"\A<(?P<tag>[a-z]{1,9})>(?P<inner>.*)</(?P=tag)>\Z", re.S)
_INSIDE = ("marked", "quoted", "inner")
"""Groups with what stands within; an element may be empty."""


def _leveled(run: re.Match[str]) -> str:
    level = run[0].translate(_LEVELS)
    return f"{'_' if run[0][0] in '₀₁₂₃₄₅₆₇₈₉₊₋ₙ' else '^'}{level if len(level) == 1 else f'{{{level}}}'}"


def _fraction(sign: re.Match[str]) -> str:
    over, _, under = unicodedata.normalize("NFKC", sign[0]).partition("\u2044")
    return rf"\frac{{{over}}}{{{under}}}"


def _power(decimal: re.Match[str]) -> str:
    return f"^{{{Fraction(decimal[1] or decimal[2] or decimal[3])}}}"


_Step = tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]
_STEPS: tuple[_Step, ...] = (
    # Digits that are grouped by points: 1.234,56.
    (
        re.compile(r"(?<![\d.,(\[{])[1-9]\d{0,2}(?:(?:\.\d{3})++,\d{1,2}|(?:\.\d{3}){2,}+)(?![\d.)\]}]|,\d)"),
        lambda number: number[0].replace(".", "").replace(",", "."),
    ),
    (re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ]+|[₀₁₂₃₄₅₆₇₈₉₊₋ₙ]+"), _leveled),
    (re.compile("[½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞]"), _fraction),
    (re.compile(r"√\s*(\d+|[A-Za-z])"), r"\\sqrt{\1}"),
    (re.compile("|".join(map(re.escape, _SYMBOLS))), lambda symbol: _SYMBOLS[symbol[0]]),
    (re.compile(r"\\sqrt ?(\[[^\[\]]*\]) ?(\d|[A-Za-z])"), r"\\sqrt\1{\2}"),
    # Colours, blanks of a width, fonts and sizes.
    (
        re.compile(
            r"\\(?:(?:textcolor|color|colorbox|fcolorbox ?\{[^{}]*\}|[hv]?phantom|[hv]space\*?)(?![A-Za-z]) ?"
            r"(?:\[[^\[\]]*\] ?)?\{[^{}]*\}|left ?\.|right ?\.|(?:left|right|middle|[bB]igg?[lrm]?|limits"
            r"|(?:display|text|script)style|underline|uline|emph|text(?:tt|sf|sc|sl|up|md|normal)|ensuremath|framebox"
            r"|math(?:sf|tt|it|normal|cal)|hbox|tiny|scriptsize|footnotesize|small|normalsize|[lL]arge|LARGE|[hH]uge"
            r"|bf|rm|it|sf|tt|bfseries|itshape)(?![A-Za-z]) ?)"
        ),
        "",
    ),
    (re.compile(r"\\(?:[dtc]frac|nicefrac|sfrac|flatfrac)(?![A-Za-z])"), r"\\frac"),
    (re.compile(r"\{([^{}]*)\\over(?![A-Za-z])([^{}]*)\}"), r"\\frac{\1}{\2}"),
    (re.compile(r"\{([^{}]*)\\choose(?![A-Za-z])([^{}]*)\}"), r"\\binom{\1}{\2}"),
    (re.compile(r"\\(?:mathrm|operatorname|text) ?\{ ?([eij]) ?\}"), r"\1"),
    (re.compile(r"\\(?:mathrm|operatorname|text) ?\{ ?(exp|ln|log|sin|cos|tan) ?\}"), r"\\\1 "),
    # Functions and constants without a backslash.
    (re.compile(r"\b(?:math|cmath|np|numpy|sympy)\.(?=[a-z])"), ""),
    (re.compile(r"\\?(?<![A-Za-z])sqrt\s*\(([^()]*)\)"), r"\\sqrt{\1}"),
    (re.compile(r"(?:(?<![A-Za-z\\])sqrt\s*|\\sqrt\s++)(\d+)"), r"\\sqrt{\1}"),
    (re.compile(r"(?<![A-Za-z\\])sqrt\s*(?=[\[{])"), r"\\sqrt"),
    (re.compile(r"(?<![\\A-Za-z])(?:oo|inf(?:inity)?)(?![A-Za-z])"), r"\\infty "),
    (re.compile(r"(?<![\\A-Za-z])(pi|sin|cos|tan|cot|csc|log|ln|exp|(?<!/)sec(?= ?[\\({\w^]))(?![A-Za-z])"), r"\\\1 "),
    # Numbers, and blanks within and around them.
    (re.compile(rf"\\(?:{STYLED})\s*\{{((?=[^{{}}]*\d)[^{{}}]*)\}}"), r"\1"),
    (re.compile(r"(?<=\d)(?:\{,\}|\\text ?\{,\}|,?\\! ?|(?<!\\)\\[,;: ]|~|')(?=\d{3}(?!\d))"), ""),
    (re.compile(r"(?<!\\)(?:\\[,;:! ]|~|\\q?quad(?![A-Za-z]))"), " "),
    (re.compile(r"\^ ?-(\d+)"), r"^{-\1}"),
    (re.compile(r"(?<![A-Za-z\d._])(\d+(?:\.\d*)?)[eE]([+-]?\d{1,4})(?![\w.(])"), r"\1\\cdot10^{\2}"),
    (re.compile(r"\\text ?\{ ?([,;]) ?\}"), r"\1 "),
    (re.compile(r"(?<=\d) ?(?:\\text ?\{ ?to ?\}|(?<= )to(?= )) ?(?=\d)"), ":"),
    (re.compile(r"\\leq(?:slant|q)?(?![A-Za-z])"), r"\\le"),
    (re.compile(r"\\geq(?:slant|q)?(?![A-Za-z])"), r"\\ge"),
    (re.compile(r"\\neq(?![A-Za-z])|\\not ?="), r"\\ne"),
    (re.compile(r"\\lt(?![A-Za-z])"), "<"),
    (re.compile(r"\\gt(?![A-Za-z])"), ">"),
    (re.compile(r"\\(?:Bbb|mathbb) ?\{? ?([RZQNC])(?![A-Za-z]) ?\}?|\\(R)(?![A-Za-z])"), r"\\mathbb{\1\2}"),
    (re.compile(r"\s+"), " "),
    (re.compile(r" ?\^ ?"), "^"),
    # Powers are exact: `^{0.5}` becomes `^{1/2}`.
    (re.compile(r"\^(?:\{ ?(-?\d*\.\d{1,9}) ?\}|\((-?\d*\.\d{1,9})\)|(-?\d*\.\d{1,9}))"), _power),
    (re.compile(r"(?<![\w}) ])( ?)\+ ?(?=\\infty)"), r"\1"),
    (
        re.compile(r"\A[(\[] ?\\begin ?\{array\} ?\{[^{}]*\}(.*)\\end ?\{array\} ?[)\]]\Z", re.S),
        r"\\begin{pmatrix}\1\\end{pmatrix}",
    ),
    # What stands before and after a result.
    (re.compile(r"\A ?[A-Za-z] ?\\in(?![A-Za-z])"), ""),
    (
        re.compile(
            r"\A\s*+(?:(?:(?:about|approximately|approx|roughly|around|nearly|exactly|only)\b\.?"
            r"|\\(?:approx|sim|therefore|implies|Rightarrow|Longrightarrow)(?![A-Za-z])|~|≈|=|:)\s*+)*+",
            re.IGNORECASE,
        ),
        "",
    ),
    (re.compile(r"(?<![ .;,\\])[ .;,\\]*\Z"), lambda end: "..." if ".." in end[0] else ""),
    (re.compile(r"\A(?:minus|negative) +(?=[\d\\])", re.IGNORECASE), "-"),
    (re.compile(r" ?\( ?(?:\\approx|approx\.?|exact(?:ly)?|approximately)(?![A-Za-z])[^()]*\)\Z"), ""),
)


def plain(text: str) -> str:
    """The text with plain signs instead of full-width ones, typographic blanks and styled letters."""
    return text.translate(_PLAIN)


def bare(text: str) -> str:
    """The text without Markdown, quotation marks or an HTML element around it."""
    text = _FENCE.sub("", text).replace("`", "").strip()
    while found := _AROUND.match(text) or _ELEMENT.match(text):
        parts = found.groupdict()
        text = next(parts[name] for name in _INSIDE if parts.get(name) is not None).strip()
    return text


def spelt(text: str) -> str:
    """The expression, whose plain signs are `plain`, in one spelling."""
    for pattern, new in _STEPS:
        text = pattern.sub(new, text)
    return text
