"""Tests that are a script: Python text with loops, tolerances and sets, which calls functions of the program.

    script ── sandbox ──> calls whose results it lacks ──> sandbox, program ──> their results ──┐
       ^                                                                                        |
       +------ run again, until it lacks none: it ended without an error, or with one ----------+

The script and the program never run in one process, so that a program can't find what is expected of it, or change what
compares it. Only plain values pass from one to the other, never objects.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from coa.grading.cases import Script, any_digits

ROUNDS = 20
"""Maximum number of runs of a script: one for all calls whose arguments don't depend on results, and so on."""
MARK = "\x1e"
"""Marks what a harness says. A program that prints the mark itself gains nothing, since only the right value counts."""

_VALUES = '''
def _encoded(value):
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if isinstance(value, (bool, int, float, str)):
        return _encoded(next(base for base in (int, float, str) if isinstance(value, base))(value))
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, (bytes, bytearray)):
        return {"bytes": value.decode("latin-1")}
    if isinstance(value, dict):
        return {"dict": [[_encoded(key), _encoded(one)] for key, one in value.items()]}
    if isinstance(value, (set, frozenset)):
        return {"set": sorted(map(_encoded, value), key=repr)}
    for name, base in (("list", list), ("tuple", tuple)):
        if isinstance(value, base):
            return {name: [_encoded(one) for one in value]}
    if hasattr(value, "__next__"):
        return {"iterator": [_encoded(one) for one in value]}
    return {"other": bool(value)}

class _Other:
    """A value of another type: it is true or not, and equals nothing."""

    def __init__(self, true):
        self._true = true

    def __bool__(self):
        return self._true

_MADE = {
    "complex": lambda parts: complex(*parts),
    "bytes": lambda text: text.encode("latin-1"),
    "dict": lambda pairs: {_decoded(key): _decoded(one) for key, one in pairs},
    "set": lambda ones: set(map(_decoded, ones)),
    "list": lambda ones: [_decoded(one) for one in ones],
    "tuple": lambda ones: tuple(map(_decoded, ones)),
    "iterator": lambda ones: iter([_decoded(one) for one in ones]),
    "other": _Other,
}

def _decoded(value):
    if not isinstance(value, dict):
        return value
    [(name, content)] = value.items()
    return _MADE[name](content)
'''
_SCRIPT_HARNESS = '''
def _harness():
    import ast
    import builtins
    import importlib
    import json
    import random
    import sys

    class Unknown(BaseException):
        pass

    class Skipping(ast.NodeTransformer):
        """What lacks a result is skipped, an assertion or the rest of a loop's round, so that a run finds the calls of
        all."""

        def visit_Assert(self, node):
            return self.skipped([node])

        def visit_For(self, node):
            self.generic_visit(node)
            node.body = [self.skipped(node.body)]
            return node

        def skipped(self, body):
            return ast.Try(body, [ast.ExceptHandler(ast.Name("_Unknown", ast.Load()), None, [ast.Pass()])], [], [])

    answer, sys.stdout = sys.stdout, sys.stderr
    asked = json.load(sys.stdin)
    known, lacking = asked["known"], dict()

    def function(name):
        def call(*arguments, **keywords):
            key = json.dumps([name, _encoded(arguments), _encoded(keywords)])
            if key not in known:
                lacking[key] = None
                raise Unknown
            outcome = known[key]
            if "error" in outcome:
                kind = getattr(builtins, outcome["error"], None)
                known_error = isinstance(kind, type) and issubclass(kind, Exception)
                raise (kind if known_error else RuntimeError)(outcome["text"])
            return _decoded(outcome["value"])
        return call

    script = ast.fix_missing_locations(Skipping().visit(ast.parse(asked["text"])))
    space = {"__name__": "script"}
    names = {node.id for node in ast.walk(script) if isinstance(node, ast.Name)}
    space.update((name, importlib.import_module(name)) for name in names & sys.stdlib_module_names)
    exec(compile(asked["setup"], "setup.py", "exec"), space)
    space.update(((name, function(name)) for name in asked["functions"]), _Unknown=Unknown)
    random.seed(0)
    try:
        exec(compile(script, "script.py", "exec"), space)
    except Unknown:
        pass
    print({mark!r} + json.dumps(list(lacking)), file=answer, flush=True)
_harness()
'''
_PROGRAM_HARNESS = """
def _harness():
    import builtins
    import json
    import sys
    answer, sys.stdout = sys.stdout, sys.stderr
    calls = json.load(sys.stdin)
    module = sys.modules["program"] = type(sys)("program")
    space = vars(module)
    space.update((name, value) for name, value in globals().items() if not name.startswith("_"))
    exec(compile({setup}, "setup.py", "exec"), space)
    exec(compile({program}, "program.py", "exec"), space)
    solution, outcomes = space.get("Solution"), []
    for name, arguments, keywords in map(json.loads, calls):
        function = getattr(solution(), name) if hasattr(solution, name) else space.get(name) or getattr(builtins, name)
        try:
            value = _encoded(function(*_decoded(arguments), **_decoded(keywords)))
        except Exception as error:
            outcomes.append({{"error": type(error).__name__, "text": str(error)}})
        else:
            outcomes.append({{"value": value}})
    print({mark!r} + json.dumps(outcomes), file=answer, flush=True)
_harness()
"""


class Untestable(ValueError):
    """A script fails without any program."""


class ScriptRounds:
    """A script and the results that it has so far."""

    def __init__(self, script: Script, setup: str) -> None:
        self._script, self._setup = script, setup
        self._known: dict[str, Any] = {}
        self._lacking: Sequence[str] = ()

    def fail(self, why: str) -> None:
        """The script ended with an error; raises Untestable if nothing of a program can be its cause."""
        if not self._known:
            raise Untestable(f"its tests fail by themselves ({why}); packages are given by tools.sandbox.packages")

    def script(self) -> tuple[str, str]:
        """The next run of the script: its source, and its standard input."""
        asked = {
            "text": self._script.text,
            "setup": self._setup,
            "functions": self._script.functions,
            "known": self._known,
        }
        return _VALUES + _SCRIPT_HARNESS.replace("{mark!r}", repr(MARK)), _json(asked)

    def program(self, program: str) -> tuple[str, str]:
        """A run of the program for the calls that are lacking."""
        harness = _PROGRAM_HARNESS.format(program=ascii(program), setup=ascii(self._setup), mark=MARK)
        return _VALUES + harness, _json(self._lacking)

    def ended(self, printed: str) -> bool:
        """Takes what a run of the script printed; whether it has ended and lacks no result. Raises ValueError."""
        self._lacking = _said(printed)
        return not self._lacking

    def results(self, printed: str) -> None:
        """Takes what a run of the program printed. Raises ValueError if these are not the results of its calls."""
        self._known |= dict(zip(self._lacking, map(_outcome, _said(printed)), strict=True))


def _said(printed: str) -> list[Any]:
    _, mark, said = printed.rpartition(MARK)
    with any_digits():
        found = json.loads(said) if mark else None
    if not isinstance(found, list):
        raise ValueError("it ended before its results were printed")
    return found


def _outcome(outcome: object) -> Mapping[str, object]:
    """An outcome that the program's run printed; raises ValueError for anything else."""
    match outcome:
        case {"value": value}:
            return {"value": value}
        case {"error": str(error), "text": str(text)}:
            return {"error": error, "text": text}
    raise ValueError("its results are not those of the calls")


def _json(value: object) -> str:
    with any_digits():
        return json.dumps(value)
