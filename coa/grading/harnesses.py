"""What the sandbox runs: a program, calls of its functions, or a script of tests.

Names that a harness defines begin with an underscore, and a program is given none of them. It can reach them all the
same and print what they print: it gains nothing, since no expected result is beside it.
"""

import re
from collections.abc import Mapping
from functools import cache
from importlib import import_module

MARK = "\x1e"
"""Marks what a harness prints."""


def feed(program: str) -> str:
    """The program alone; it reads the standard input."""
    return _begin(program) + f'exec(compile({program!a}, "program.py", "exec"))\n'


def call(program: str, setup: str) -> str:
    """One call with plain arguments, {"function": .., "arguments": .., "keywords": ..} in the standard input; it prints
    what the function returned."""
    return _begin(program) + _load(program, setup) + _CALL


def calls(program: str, setup: str) -> str:
    """The calls that a script lacks, a list of them in the standard input; it prints their outcomes."""
    return _begin(program) + _VALUES + _load(program, setup) + _CALLS


def script() -> str:
    """A script of tests, {"text": .., "setup": .., "functions": .., "known": ..} in the standard input; it prints the
    calls whose outcomes it lacks."""
    return _SETTINGS + _VALUES + _SAY + _SCRIPT


def _begin(program: str) -> str:
    return _SETTINGS + _taken_for_granted(program)


def _load(program: str, setup: str) -> str:
    return _SAY + _LOAD.format(program=ascii(program), setup=ascii(setup))


_SETTINGS = """\
import sys
sys.setrecursionlimit(50000)
sys.set_int_max_str_digits(0)
exit = quit = sys.exit
"""
_SAY = f"""
def _ask():
    import json
    import sys
    answer, sys.stdout = sys.stdout, sys.stderr

    def say(value, default=None):
        print({MARK!r} + json.dumps(value, default=default), file=answer, flush=True)

    return json.load(sys.stdin), say
"""
_LOAD = """
def _load():
    import builtins
    import sys
    # A module, not the main one: what stands under `if __name__ == "__main__"` is not asked for.
    module = sys.modules["program"] = type(sys)("program")
    space = vars(module)
    space.update((name, value) for name, value in globals().items() if not name.startswith("_"))
    exec(compile({setup}, "setup.py", "exec"), space)
    exec(compile({program}, "program.py", "exec"), space)
    solution = space.get("Solution")

    def function(name):
        return getattr(solution(), name) if hasattr(solution, name) else space.get(name) or vars(builtins)[name]

    return function
"""
_CALL = """
def _harness():
    asked, say = _ask()
    value = _load()(asked["function"])(*asked["arguments"], **asked["keywords"])
    def plain(value):
        if isinstance(value, (set, frozenset)):
            raise TypeError("a set is no list")
        return list(value)
    say(value, plain)
_harness()
"""
_CALLS = """
def _harness():
    import json
    asked, say = _ask()
    function, outcomes = _load(), []
    for name, arguments, keywords in map(json.loads, asked):
        called = function(name)
        try:
            value = _encode(called(*_decode(arguments), **_decode(keywords)))
        except Exception as error:
            outcomes.append({"error": type(error).__name__, "text": str(error)})
        else:
            outcomes.append({"value": value})
    say(outcomes)
_harness()
"""
_VALUES = '''
def _encode(value):
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if isinstance(value, (bool, int, float, str)):
        return _encode(next(base for base in (int, float, str) if isinstance(value, base))(value))
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, (bytes, bytearray)):
        return {"bytes": value.decode("latin-1")}
    if isinstance(value, dict):
        return {"dict": [[_encode(key), _encode(one)] for key, one in value.items()]}
    if isinstance(value, (set, frozenset)):
        return {"set": sorted(map(_encode, value), key=repr)}
    for name, base in (("list", list), ("tuple", tuple)):
        if isinstance(value, base):
            return {name: [_encode(one) for one in value]}
    if hasattr(value, "__next__"):
        return {"iterator": [_encode(one) for one in value]}
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
    "dict": lambda pairs: {_decode(key): _decode(one) for key, one in pairs},
    "set": lambda ones: set(map(_decode, ones)),
    "list": lambda ones: [_decode(one) for one in ones],
    "tuple": lambda ones: tuple(map(_decode, ones)),
    "iterator": lambda ones: iter([_decode(one) for one in ones]),
    "other": _Other,
}

def _decode(value):
    if not isinstance(value, dict):
        return value
    [(name, content)] = value.items()
    return _MADE[name](content)
'''
_SCRIPT = '''
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

    asked, say = _ask()
    known, lacking = asked["known"], dict()

    def function(name):
        def call(*arguments, **keywords):
            key = json.dumps([name, _encode(arguments), _encode(keywords)])
            if key not in known:
                lacking[key] = None
                raise Unknown
            outcome = known[key]
            if "error" in outcome:
                kind = getattr(builtins, outcome["error"], None)
                known_error = isinstance(kind, type) and issubclass(kind, Exception)
                raise (kind if known_error else RuntimeError)(outcome["text"])
            return _decode(outcome["value"])
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
    say(list(lacking))
_harness()
'''

_STARRED = ("collections", "typing", "functools", "itertools", "heapq", "bisect", "math", "string", "random")
_MODULES = (*_STARRED, "copy", "datetime", "decimal", "fractions", "json", "operator", "os", "re", "statistics", "time")
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")


@cache
def _offered() -> Mapping[str, str]:
    """Imports of standard library names that starter code and solutions use without importing them, by name."""
    import builtins

    imports = {module: f"import {module}" for module in _MODULES}
    for module in _STARRED:
        for name in import_module(module).__dict__:
            if not name.startswith("_") and not hasattr(builtins, name):
                imports.setdefault(name, f"from {module} import {name}")
    return imports


def _taken_for_granted(program: str) -> str:
    """Imports of the names that occur in the program; importing all of them would take longer than most tests."""
    names = sorted(set(_IDENTIFIER.findall(program)) & _offered().keys())
    return "".join(f"{_offered()[name]}\n" for name in names)
