"""Finds in the sources of tests what makes a quick test's verdict depend on how busy the machine is: clocks that are
compared with a bound, pauses, and short deadlines of what normally ends at once."""

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

CLOCKS = {"monotonic", "perf_counter", "process_time", "thread_time", "time"}
CLOCKS |= {f"{name}_ns" for name in CLOCKS}
LOOPS = {"loop", "asyncio.get_running_loop()"}
"""Their clock is a count in virtual time."""
PAUSE_S = 0.2
FOREVER_S = 3600
"""A pause of so long is not waited for: somebody is ended in it."""
DEADLINE_S = 60
WAITS = {"timeout": 0, "wait_for": 1, "wait": 0, "join": 0, "result": 0}
"""Functions that wait, and which of their arguments is the deadline."""
MARKS = ("mark.slow", "mark.gpu")


def found_in(path: Path) -> Iterator[str]:
    """What there is in the quick tests of a file and in its helpers, as `line 7: time.sleep(1)`."""
    source = path.read_text()
    tree, owners = ast.parse(source), {"time"} if "virtual_time" in source else {"time"} | LOOPS
    if any(isinstance(node, ast.Assign) and _names_mark(node, "pytestmark") for node in tree.body):
        return
    tops = [node for node in tree.body if not _is_marked(node)]
    if path.name.startswith("test_") and not any(_is_test(node) for node in tops):
        return  # helpers of slow tests alone
    for top in tops:
        read = _readings(top, owners)
        for node in ast.walk(top):
            if _is_verdict(node, read, owners):
                yield f"line {getattr(node, 'lineno', 0)}: {ast.unparse(node)}"


def _names_mark(node: ast.Assign, name: str) -> bool:
    return ast.unparse(node.targets[0]) == name and any(mark in ast.unparse(node.value) for mark in MARKS)


def _is_marked(node: ast.stmt) -> bool:
    decorators: Sequence[ast.expr] = getattr(node, "decorator_list", ())
    return any(ast.unparse(one).removeprefix("pytest.").startswith(MARKS) for one in decorators)


def _is_test(node: ast.stmt) -> bool:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return name.startswith("test_")
        case ast.ClassDef(name=name):
            return name.startswith("Test")
        case ast.Assign(targets=[target]):
            return ast.unparse(target).startswith("Test")
        case _:
            return False


def _is_reading(node: ast.AST, owners: set[str]) -> bool:
    """Whether it looks at a clock."""
    match node:
        case ast.Call(func=ast.Attribute(value=owner, attr=name)):
            return name in CLOCKS and ast.unparse(owner) in owners
        case _:
            return False


def _readings(top: ast.AST, owners: set[str]) -> set[str]:
    """The names of what was read from a clock, and of what was computed from that alone."""
    names: set[str] = set()
    for _ in range(2):
        for node in ast.walk(top):
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=value) if _is_seconds(value, names, owners):
                    names.add(name)
                case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                    pairs = zip(targets, values, strict=True)
                    names |= {ast.unparse(target) for target, value in pairs if _is_seconds(value, names, owners)}
                case _:
                    pass
    return names


def _is_seconds(node: ast.AST, names: set[str], owners: set[str]) -> bool:
    match node:
        case ast.Name(id=name):
            return name in names
        case ast.BinOp(left=left, right=right):
            return _is_seconds(left, names, owners) or _is_seconds(right, names, owners)
        case _:
            return _is_reading(node, owners)


def _is_verdict(node: ast.AST, names: set[str], owners: set[str]) -> bool:
    match node:
        case ast.Compare(left=left, comparators=others):
            return any(_is_seconds(one, names, owners) for one in (left, *others))
        case ast.Call(func=ast.Attribute(value=ast.Name(id="time"), attr="sleep"), args=[ast.Constant(value=seconds)]):
            return isinstance(seconds, float | int) and PAUSE_S < seconds < FOREVER_S
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name), args=arguments, keywords=keywords):
            deadlines = [one.value for one in keywords if one.arg == "timeout"]
            if name in WAITS:
                deadlines += arguments[WAITS[name] : WAITS[name] + 1]
            return any(_is_short(one) for one in deadlines)
        case _:
            return False


def _is_short(node: ast.expr) -> bool:
    match node:
        case ast.Constant(value=int() | float() as seconds):
            return seconds < DEADLINE_S
        case _:
            return False
