"""Finds every regular expression of the product, makes strings that are hard for it, and measures it on them.

A pattern that takes more than linear time takes it on a string such as `PREFIX + PUMP * n + SUFFIX`: a prefix leads
into the pattern, the pump runs through one of its repeats (or begins a match again and again), and the suffix fails.
All three are made of the pattern's own parts.
"""

import ast
import importlib
import re
import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from re import _constants as sre  # pyright: ignore[reportAttributeAccessIssue]
from re import _parser  # pyright: ignore[reportAttributeAccessIssue]
from typing import Any

ROOT = Path(__file__).parents[2]
COMPILING = ("compile", "search", "match", "fullmatch", "finditer", "findall", "sub", "subn", "split")
CHARACTERS, PUMPS = 1000, 200
"""A string has so many characters, and so many pumps at least."""
SLOW_S = 0.0001
"""Seconds of CPU for such a string, from which on a pattern is looked at again."""
GROWTH, MOST_GROWTH = 4, 9
"""How much longer the second string is, and from which factor of time on it is no linear time: a quadratic pattern
takes 16 times as long."""
LONGEST_S = 0.1
ROUNDS = 9
"""How often both strings are measured in turns before a pattern is called slow."""
FILLERS = " \t\na0Z_-.,:<>()[]{}\\\"'`*|/\u00e9\u65e5\u00a0"


@dataclass(frozen=True)
class Found:
    """A pattern, where it stands, and by which methods it is used there."""

    where: str
    """`coa/grading/latex.py: _LEAD`, or the text of a pattern without a name."""
    pattern: re.Pattern[Any]
    methods: frozenset[str]


@dataclass(frozen=True)
class Slow:
    where: str
    method: str
    attack: str

    def __str__(self) -> str:
        return f"{self.where}: .{self.method} on {self.attack}"


# Finding.


def patterns_of(packages: tuple[str, ...], examples: Mapping[str, Mapping[str, object]]) -> list[Found]:
    """Every pattern in the sources of the packages. examples: for each file (`coa/a.py`), values of local names that
    its patterns are made of."""
    found = []
    for path in (path for package in packages for path in sorted((ROOT / package).rglob("*.py"))):
        source = path.read_text()
        if not re.search(r"\bre\.[a-z]+\(", source):
            continue
        tree, file = ast.parse(source), str(path.relative_to(ROOT))
        names, uses = {id(value): name for name, value in _named(tree)}, list(_uses(tree))
        for call, function in _compiling(tree):
            pattern = _evaluated(call, function, file, examples.get(file, {}))
            name, methods = "", {function}
            if function == "compile":
                name = names.get(id(call), "")
                methods = {method for used, method in uses if used == name} or {"fullmatch", "sub"}
            found.append(Found(f"{file}: {name or pattern.pattern}", pattern, frozenset(methods)))
    return found


def _compiling(tree: ast.AST) -> Iterator[tuple[ast.Call, str]]:
    """The calls `re.NAME(...)`, with their names."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="re"), attr=name)) if name in COMPILING:
                yield node, name


def _named(tree: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """What is assigned to a name, or given as an argument with one."""
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) | ast.keyword(arg=str(name), value=value):
                yield name, value


def _uses(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """(`_WORD`, `search`) for `_WORD.search(...)`, `words._WORD.search(...)`, and for the method without a call."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=name) | ast.Attribute(attr=name), attr=method) if method in COMPILING:
                yield name, method


def _evaluated(call: ast.Call, function: str, file: str, local: Mapping[str, object]) -> re.Pattern[Any]:
    at = {"compile": 1, "sub": 4, "subn": 4, "split": 3}.get(function, 2)
    flags = [*call.args[at : at + 1], *(keyword.value for keyword in call.keywords if keyword.arg == "flags")]
    arguments = ast.Tuple([call.args[0], *flags[:1]], ast.Load())
    code = compile(ast.fix_missing_locations(ast.Expression(arguments)), file, "eval")
    try:
        return re.compile(*eval(code, {"re": re, **local}))
    except NameError:
        module = importlib.import_module(file.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
        return re.compile(*eval(code, {**vars(module), **local}))


# Attacking.


def attacks(pattern: re.Pattern[Any]) -> Iterator[tuple[str, str, str]]:
    """(prefix, pump, suffix), without repetitions."""
    tree = _parser.parse(pattern.pattern, pattern.flags)
    # Of characters that the same parts of the pattern match, the first.
    atoms = list(_atoms(tree))
    kinds = {
        (*(_fits(*atom, one) for atom in atoms), one.isalnum()): one for one in (*FILLERS[::-1], *_literals(atoms))
    }
    pool = dict.fromkeys(kinds.values())
    prefixes, bodies = dict.fromkeys([""]), dict.fromkeys(())
    for turn in (0, 1):
        example = ""
        for node in tree:
            body = _example([node], pool, turn)
            example += body
            prefixes[example] = None
        bodies |= dict.fromkeys(_bodies(tree, pool, turn))
    pumps = dict.fromkeys([*pool, *bodies, *filter(None, prefixes)])
    for suffix in dict.fromkeys(["\x00", "", *_forbidden(tree, pool)]):
        for prefix in prefixes:
            for pump in pumps:
                yield prefix, pump, suffix


def _parts(argument: Any) -> Iterator[Any]:
    """The patterns within the argument of a node."""
    if isinstance(argument, _parser.SubPattern):
        yield argument
    elif isinstance(argument, tuple | list):
        for part in argument:
            yield from _parts(part)


def _atoms(tree: Any) -> Iterator[tuple[Any, Any]]:
    """What matches one character each."""
    for kind, argument in tree:
        if kind in (sre.LITERAL, sre.NOT_LITERAL, sre.ANY, sre.IN):
            yield kind, argument
        for part in _parts(argument):
            yield from _atoms(part)


def _literals(atoms: Iterable[tuple[Any, Any]]) -> Iterator[str]:
    for kind, argument in atoms:
        for inner, value in argument if kind is sre.IN else [(kind, argument)]:
            if inner in (sre.LITERAL, sre.NOT_LITERAL):
                yield chr(value)
            elif inner is sre.RANGE:
                yield from map(chr, value)


def _forbidden(tree: Any, pool: Mapping[str, None]) -> Iterator[str]:
    """An example of each text that may not follow, or come before."""
    for kind, argument in tree:
        if kind is sre.ASSERT_NOT:
            yield _example(argument[1], pool, 0)
        for part in _parts(argument):
            yield from _forbidden(part, pool)


def _bodies(tree: Any, pool: Mapping[str, None], turn: int) -> Iterator[str]:
    """An example of the body of each repeat."""
    for kind, argument in tree:
        if kind in (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT):
            yield _example(argument[2], pool, turn)
        for part in _parts(argument):
            yield from _bodies(part, pool, turn)


def _example(tree: Any, pool: Mapping[str, None], turn: int) -> str:
    """A text that the tree matches, as far as that is known without looking around. turn: which one of several."""
    text = ""
    for kind, argument in tree:
        match kind:
            case sre.LITERAL:
                text += chr(argument)
            case sre.NOT_LITERAL | sre.ANY | sre.IN:
                fitting = [one for one in pool if _fits(kind, argument, one)]
                text += fitting[-turn % len(fitting)] if fitting else ""
            case sre.MAX_REPEAT | sre.MIN_REPEAT | sre.POSSESSIVE_REPEAT:
                text += _example(argument[2], pool, turn) * max(argument[0], 1)
            case sre.BRANCH:
                text += _example(argument[1][-turn % len(argument[1])], pool, turn)
            case sre.SUBPATTERN | sre.ATOMIC_GROUP:
                text += "".join(_example(part, pool, turn) for part in _parts(argument))
    return text


def _fits(kind: Any, argument: Any, one: str) -> bool:
    if kind is sre.IN:
        return any(_within(inner, value, one) for inner, value in argument) != (argument[0][0] is sre.NEGATE)
    return _within(kind, argument, one) if kind is sre.LITERAL else one != (chr(argument or ord("\n")))


def _within(kind: Any, value: Any, one: str) -> bool:
    match kind:
        case sre.LITERAL:
            return one == chr(value)
        case sre.RANGE:
            return value[0] <= ord(one) <= value[1]
        case sre.CATEGORY:
            letter = str(value).rpartition("_")[2][0].lower()  # CATEGORY_NOT_SPACE: \S
            return re.match(rf"\{letter.upper() if 'NOT' in str(value) else letter}", one) is not None
    return False


# Measuring.


class _TooLong(Exception): ...


def _stop(*_: object) -> None:
    raise _TooLong


def seconds(pattern: re.Pattern[Any], method: str, text: str, longest_s: float = LONGEST_S) -> float:
    """Seconds of CPU that a method takes on a text; `longest_s` where it is ended before."""
    subject: Any = text.encode("latin-1", "replace") if isinstance(pattern.pattern, bytes) else text
    before = signal.signal(signal.SIGVTALRM, _stop)
    start = time.thread_time()
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, longest_s)
        if method in ("search", "match", "fullmatch"):
            getattr(pattern, method)(subject)
        else:
            for _ in pattern.finditer(subject):
                pass
        return time.thread_time() - start
    except _TooLong:
        return longest_s
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def slow(found: Found) -> Iterator[Slow]:
    """The attacks on which a pattern takes more than linear time."""
    methods = {method if method in ("search", "match", "fullmatch") else "finditer" for method in found.methods}
    for method in sorted(methods):
        for prefix, pump, suffix in attacks(found.pattern):
            n = max(CHARACTERS // len(pump), PUMPS)
            short, long = (f"{prefix}{pump * times}{suffix}" for times in (n, n * GROWTH))
            if is_slow(found.pattern, method, short, long):
                yield Slow(found.where, method, f"{prefix!r} + {pump!r} * n + {suffix!r}")


def is_slow(pattern: re.Pattern[Any], method: str, short: str, long: str) -> bool:
    """Whether a method takes more than linear time; `long` is GROWTH times as long as `short`."""
    first_s = seconds(pattern, method, short)
    if not SLOW_S <= first_s < LONGEST_S:
        return first_s >= LONGEST_S and seconds(pattern, method, short) >= LONGEST_S
    quick_s = min(seconds(pattern, method, short) for _ in range(3))
    if quick_s < SLOW_S:  # the first one was disturbed
        return False
    if not _too_long(quick_s, seconds(pattern, method, long)):
        return False
    # Other processes slow this one down by a factor or two, CPU time or not, but the short string as much as the long
    # one while both are measured in turns.
    rounds = [_too_long(*(seconds(pattern, method, text) for text in (short, long))) for _ in range(ROUNDS)]
    return sum(rounds) > ROUNDS // 2


def _too_long(short_s: float, long_s: float) -> bool:
    return long_s > min(MOST_GROWTH * short_s, 0.9 * LONGEST_S)


def first_slow(found: Found) -> Slow | None:
    return next(slow(found), None)
