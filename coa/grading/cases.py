"""The tests of a programming task: reads the JSON text that is the task's one answer.

    {"stdin": [{"input": "2 3\\n", "output": "5\\n"}],                   a whole program: what it reads and prints
     "functional": [{"input": "[1, 2]\\n3", "output": "[4, 5]"}],       a function: a JSON value per argument and line,
     "fn_name": "shift",                                               and the JSON value that it returns
     "assertions": "assert Solution().shift([1, 2], 3) == [4, 5]",     the same as Python
     "script": "assert abs(root(2) - 1.414) < 0.001",                  Python text that ends without an error
     "setup": "import math",                                           Python before the program and the script
     "time_limit_s": 6.0,                                              seconds of CPU time for each test
     "compare": "exact"}                                               no tolerance, as LiveCodeBench compares

All keys are optional, as long as there is a test. Also read are {"stdin": [texts], "expected_output": [texts]},
{"functional": assertions} (published LiveCodeBench files), {"inputs": .., "outputs": .., "fn_name": ..} (APPS) and
{"test_code": assertions, "entry_point": function}. Texts may also be lists of texts. Assertions that are more than
calls with literals that equal a literal (loops, tolerances, sets) are read as a script.

Whole numbers may have any length. Python neither reads nor writes one of more than 4,300 digits, since the time grows
with their square.
"""

import ast
import builtins
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from decimal import Decimal
from functools import lru_cache
from threading import RLock
from typing import TypeVar

from coa.json_object import Json, JsonView

T = TypeVar("T")

TIME_LIMIT_S = 6.0
"""Seconds of CPU time for a test if the tests set no limit, as in LiveCodeBench."""

CLOSE, EXACT = "close", "exact"
"""How results are compared: numbers with a fraction within a tolerance, or everything exactly."""

CHECK = "check"
"""Name of the function of HumanEval's tests that calls the tested function."""

MOST_DIGITS = 4300
_LOCK = RLock()


@dataclass(frozen=True, slots=True)
class Feed:
    """A program that reads `input` has to print `output`."""

    input: str
    output: str


@dataclass(frozen=True, slots=True)
class Call:
    """A function, or a method of `class Solution`, that has to return one of the accepted values (JSON)."""

    function: str
    arguments: tuple[object, ...]
    keywords: JsonView
    accepted: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Script:
    """Python text that has to end without an error; it calls functions of the program (`coa.grading.scripts`)."""

    text: str
    functions: tuple[str, ...]


Case = Feed | Call | Script


@dataclass(frozen=True, slots=True)
class Tests:
    """The tests that a program has to pass."""

    cases: tuple[Case, ...]
    time_limit_s: float = TIME_LIMIT_S
    exact: bool = False
    """Whether results are compared without a tolerance."""
    setup: str = ""
    """Python text that defines what the program and a script may use."""


@lru_cache(maxsize=32)
def read_tests(text: str) -> Tests:
    """Reads tests from JSON text; raises ValueError, in one line, for a text without tests."""
    with any_digits():
        return _tests(text)


def write_case(case: Case) -> str:
    """The JSON text of a test, for `read_case`."""
    with any_digits():
        return json.dumps({type(case).__name__: asdict(case)})


def read_case(text: str) -> Case:
    with any_digits():
        match json.loads(text):
            case {"Feed": fields}:
                return Feed(**fields)
            case {"Call": fields}:
                accepted = tuple(fields["accepted"])
                return Call(fields["function"], tuple(fields["arguments"]), fields["keywords"], accepted)
            case {"Script": fields}:
                return Script(fields["text"], tuple(fields["functions"]))
            case other:
                raise ValueError(f"{other!r} is no test")


def _tests(text: str) -> Tests:
    try:
        tests = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the tests are not JSON: {error}") from error
    if not isinstance(tests, dict):
        raise ValueError(f"the tests are not a JSON object, but {text[:80]!r}")
    limit = tests.get("time_limit_s", TIME_LIMIT_S)
    if type(limit) not in (int, float) or not limit > 0:
        raise ValueError(f"time_limit_s is {limit!r}, not a number of seconds")
    compare = tests.get("compare", CLOSE)
    if compare not in (CLOSE, EXACT):
        raise ValueError(f"compare is {compare!r}, expected {EXACT!r} or {CLOSE!r}")
    try:
        cases = tuple(_cases(tests))
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"the tests are not of a known form: {type(error).__name__}: {error}") from error
    if not cases:
        raise ValueError(f"no tests, but {', '.join(map(repr, tests)) or 'an object without keys'}")
    return Tests(cases, float(limit), compare == EXACT, tests.get("setup") or "")


def _cases(tests: Json) -> Iterator[Case]:
    function = tests.get("fn_name") or tests.get("entry_point")
    stdin, functional = tests.get("stdin") or [], tests.get("functional") or []
    if "expected_output" in tests:
        stdin = [{"input": fed, "output": wanted} for fed, wanted in _pairs(stdin, tests["expected_output"])]
    for case in stdin:
        yield Feed(_text(case["input"]), _text(case["output"]))
    for case in [] if isinstance(functional, str) else functional:
        yield Call(_function_name(function), _json_lines(case["input"]), {}, (_json_value(case["output"]),))
    for fed, wanted in _pairs(tests.get("inputs") or [], tests.get("outputs") or []):
        yield _apps(function, fed, wanted) if function else Feed(_text(fed), _text(wanted))
    assertions = functional if isinstance(functional, str) else tests.get("assertions") or tests.get("test_code")
    if assertions:
        yield from _asserted(_text(assertions), function, tests.get("setup") or "")
    if tests.get("script"):
        yield _script(_text(tests["script"]), function, tests.get("setup") or "")


def _asserted(text: str, function: str | None, setup: str) -> Sequence[Call | Script]:
    """Calls if all of the assertions are calls with literals that equal a literal, otherwise one script."""
    try:
        return list(_Assertions(function).read(_parse(text).body))
    except _Unreadable:
        if not any(isinstance(node, ast.Assert) for node in ast.walk(_parse(text))):
            raise
        return [_script(text, function, setup)]


def _script(text: str, function: str | None, setup: str) -> Script:
    body = _parse(text).body
    if any(isinstance(part, ast.FunctionDef) and part.name == CHECK for part in body):
        text = f"{text}\n{CHECK}({_function_name(function)})\n"
    return Script(text, _functions(_parse(text), _parse(setup), function))


def _parse(text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"the assertions are not Python: {error}") from error


def _functions(script: ast.Module, setup: ast.Module, function: str | None) -> tuple[str, ...]:
    """The functions that a script calls and nothing defines, and the tested one, whose stub may be in the setup."""
    nodes = list(ast.walk(script))
    known = {name for node in (*nodes, *ast.walk(setup)) for name in _definitions(node)} | set(dir(builtins))
    called = {node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    used = {node.id for node in nodes if isinstance(node, ast.Name)}
    # A tested function may be called like a built-in one.
    functions = called - known | ({function} if function in used else set()) or called
    if lacking := sorted(used - known - functions - sys.stdlib_module_names):
        raise ValueError(f"assertions: nothing defines {lacking[0]!r}")
    if not functions:
        raise ValueError("assertions: they call no function")
    return tuple(sorted(functions))


def _definitions(node: ast.AST) -> Iterable[str]:
    match node:
        case ast.Name(name, ast.Store()) | ast.arg(arg=name) | ast.ExceptHandler(name=str(name)):
            return (name,)
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return (name,)
        case ast.Import(names) | ast.ImportFrom(names=names):
            return [alias.asname or alias.name.partition(".")[0] for alias in names]
    return ()


def _pairs(inputs: Sequence[T], outputs: Sequence[T]) -> Iterator[tuple[T, T]]:
    if len(inputs) != len(outputs):
        raise ValueError(f"the tests have {len(inputs)} inputs and {len(outputs)} outputs")
    return zip(inputs, outputs, strict=True)


def _text(lines: str | Sequence[str]) -> str:
    return lines if isinstance(lines, str) else "\n".join(lines)


def _function_name(function: object) -> str:
    if not isinstance(function, str) or not function.isidentifier():
        raise ValueError(f"fn_name is {function!r}, which names no function")
    return function


def _json_lines(text: str) -> tuple[object, ...]:
    return tuple(_json_value(line) for line in text.splitlines() if line.strip())


def _json_value(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"{text[:80]!r} in the tests is not JSON: {error}") from error


def _apps(function: str, fed: str | Iterable[object], wanted: object) -> Call:
    """A test of APPS, which packs some values into a list of one: both forms are accepted."""
    arguments = _json_lines(fed) if isinstance(fed, str) else tuple(fed)
    accepted = (wanted, wanted[0]) if isinstance(wanted, list) and wanted else (wanted,)
    return Call(_function_name(function), arguments, {}, accepted)


class _Assertions:
    """Reads calls with literal arguments, and the literals that they have to equal, from Python text.

    The text is never run, since a program that runs beside it could find the expected values.
    """

    def __init__(self, function: str | None) -> None:
        self._function = function
        self._values: dict[str, ast.expr] = {}
        """Values that the text assigned to names."""
        self._aliases: set[str] = set()
        """Parameters of functions such as `def check(candidate)`, which stand for the function that is tested."""

    def read(self, body: Sequence[ast.stmt]) -> Iterator[Call]:
        for statement in body:
            match statement:
                case ast.Assign([ast.Name(name)], value):
                    self._values[name] = value
                case ast.Assert(test):
                    yield self._call(test)
                case ast.FunctionDef(args=ast.arguments(args=[parameter])):
                    self._aliases.add(parameter.arg)
                    yield from self.read(statement.body)
                case ast.Import() | ast.ImportFrom() | ast.Pass() | ast.Expr():
                    pass
                case _:
                    raise _unreadable(statement)

    def _call(self, test: ast.expr) -> Call:
        match test:
            case ast.Compare(subject, [ast.Eq() | ast.Is()], [expected]):
                accepted = self._literal(expected)
            case ast.UnaryOp(ast.Not(), subject):
                accepted = False
            case subject:
                accepted = True
        match self._resolve(subject):
            case ast.Call(func, arguments, keywords):
                named = {str(keyword.arg): self._literal(keyword.value) for keyword in keywords}
                return Call(self._callee(func), tuple(map(self._literal, arguments)), named, (accepted,))
        raise _unreadable(test)

    def _callee(self, func: ast.expr) -> str:
        """The name of `f`, `candidate`, `Solution().f` or `solution.f`."""
        match func:
            case ast.Name(name):
                return _function_name(self._function) if name in self._aliases else name
            case ast.Attribute(owner, name):
                match self._resolve(owner):
                    case ast.Call(ast.Name("Solution")):
                        return name
        raise _unreadable(func)

    def _resolve(self, expression: ast.expr) -> ast.expr:
        if isinstance(expression, ast.Name):
            return self._values.get(expression.id, expression)
        return expression

    def _literal(self, expression: ast.expr) -> object:
        try:
            return plain(ast.literal_eval(self._resolve(expression)))
        except (ValueError, TypeError) as error:
            raise _unreadable(expression) from error


class _Unreadable(ValueError):
    """An assertion is more than a call with literals that equals a literal."""


def _unreadable(node: ast.AST) -> _Unreadable:
    return _Unreadable(f"assertions: {ast.unparse(node)[:80]!r} is not a call with literals that equals a literal")


def plain(value: object) -> object:
    """The value as JSON would return it: tuples become lists, keys become strings."""
    return json.loads(json.dumps(value))


@contextmanager
def any_digits() -> Iterator[None]:
    """Lifts the limit, for texts of a user. Within it, no other task can run: it must not await."""
    with _LOCK:
        before = sys.get_int_max_str_digits()
        sys.set_int_max_str_digits(0)
        try:
            yield
        finally:
            sys.set_int_max_str_digits(before)


def read_json(text: str) -> object:
    """The JSON value in a text that a program wrote. A whole number beyond the limit is a `Decimal`, which is read in
    linear time; other numbers are as usual."""
    return json.loads(text, parse_int=lambda digits: (int if len(digits) <= MOST_DIGITS else Decimal)(digits))
