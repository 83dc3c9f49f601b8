"""Reads programs of agents that act by code: one that calls tools, statement by statement, becomes these calls.

r = web_search("Vexon Labs")                web_search "Vexon Labs", with what was printed of it as its result
print("found:", r)
final_answer("Berg")                        the answer
print(sum(range(10)))                       a program of its own

A program is followed without running it: a result has its number in the text that is printed, between null characters,
until it is found in what the agent saw. Loops over a list that stands in the program are followed, conditions and
computations are not.
"""

import ast
import builtins
import json
import re
import symtable
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from coa.agent.grammar import ANSWER
from coa.distill.sources.foreign import Answer, Call, Computed, Piece, Reason, Refused
from coa.distill.sources.frames import HEADING, LAST, LOGS, Seen
from coa.distill.sources.messages import ToolUse
from coa.distill.sources.tools import ToolTable

INTERPRETER = "python_interpreter"
"""Smolagents' name of the tool that runs programs."""
MOST = 100_000
"""Most characters that variables put into texts, and statements of loops, since a program is a model's text."""
MARK = "\0"
"""Character before and after a result's number."""


def pieces_of_program(program: str, seen: Seen | None, table: ToolTable) -> Iterator[Piece]:
    """The calls and the answer of a program. seen: what the agent saw of the result; None if that is unknown.

    Raises Refused for a program that cannot be run by itself, or if the results of its tools cannot be separated.
    """
    answering, free = answering_tools(table), free_names(program)
    # A function that the program defines itself is no tool, whatever its name.
    tools = table.keys() & free
    path = _followed(program, tools - answering, tools & answering)
    if not path.calls and path.answer is None:
        yield from _own_program(program, seen, tools - answering, free, answering)
        return
    if path.calls and path.answer is not None and seen is None:
        raise Refused(Reason.NO_RESULT, ", ".join(used.name for used in path.calls))
    for used, result in zip(path.calls, _results(path, seen), strict=True):
        yield Call(used.name, used.arguments, result)
    if path.answer is not None:
        yield Answer("" if MARK in path.answer else path.answer)


def _own_program(
    program: str, seen: Seen | None, tools: Collection[str], free: frozenset[str], answering: frozenset[str]
) -> Iterator[Piece]:
    called = (node.func for node in ast.walk(_parsed(program)) if isinstance(node, ast.Call))
    if names := {one.id for one in called if isinstance(one, ast.Name) and one.id in tools}:
        raise Refused(Reason.TOOLS_IN_PROGRAM, ", ".join(sorted(names)))
    if not (seen and seen.error) and (unknown := free - answering):
        raise Refused(Reason.NOT_WHOLE, ", ".join(sorted(unknown)))
    if seen is None and free & answering:
        yield Computed(program, free & answering)
    else:
        yield Call(INTERPRETER, {"code": as_prints(program, answering & free)}, None if seen is None else seen.result)


@dataclass(slots=True)
class _Path:
    """The calls and texts of a program, up to its answer."""

    tools: Collection[str]
    answering: Collection[str]
    calls: list[ToolUse] = field(default_factory=list)
    """Arguments without a name are called `input`, `input 2`, ..."""
    printed: str = ""
    last: str = "None"
    """The value of the last statement, which smolagents' interpreter shows."""
    answer: str | None = None
    _names: dict[str, Any] = field(default_factory=dict)
    _spent: int = 0

    def follow(self, statement: ast.stmt) -> Any:
        """Takes a statement in, and returns its value; raises ValueError or TypeError for one that is not followed."""
        value = None
        match statement:
            case ast.For(
                target=ast.Name(id=name), iter=ast.List(elts=nodes) | ast.Tuple(elts=nodes), body=body, orelse=[]
            ):
                for element in [self._value(one) for one in nodes]:
                    self._names[name] = element
                    for one in body:
                        self._spend(1)
                        shown = None if self.answer is not None else self.follow(one)
                        value = value if shown is None else shown
            case ast.Expr(value=ast.Call(func=ast.Name(id="print"), args=nodes, keywords=words)):
                self.printed += " ".join(str(self._value(one)) for one in nodes) + "\n"
                for word in words:  # smolagents' print ignores `sep` and `end`
                    self._value(word.value)
            case ast.Expr(
                value=ast.Call(func=ast.Name(id=name), args=[node], keywords=[])
                | ast.Call(func=ast.Name(id=name), args=[], keywords=[ast.keyword(arg=str(), value=node)])
            ) if name in self.answering:
                self.answer = value = str(self._value(node))
            case ast.Assign(targets=[ast.Name(id=name)], value=node):
                value = self._names[name] = self._value(node)
            case ast.Expr(value=node):
                value = self._value(node)
            case _:
                raise ValueError
        self.last = str(value)
        return value

    def _spend(self, count: int) -> None:
        self._spent += count
        if self._spent > MOST:
            raise ValueError

    def _value(self, node: ast.expr) -> Any:
        match node:
            case ast.Name(id=name) if name in self._names:
                self._spend(len(str(self._names[name])))
                return self._names[name]
            case ast.JoinedStr(values=nodes):
                return "".join(str(self._value(one)) for one in nodes)
            case ast.FormattedValue(value=value, conversion=-1, format_spec=None):
                return self._value(value)
            case ast.Call(func=ast.Name(id=name), args=nodes, keywords=words) if name in self.tools:
                named = [("input" + (f" {n}" if n > 1 else ""), one) for n, one in enumerate(nodes, start=1)]
                named += [(word.arg or "", word.value) for word in words]
                arguments = {key: self._value(one) for key, one in named}
                unknown = any(MARK in str(one) for one in arguments.values())
                if unknown or "" in arguments or len(arguments) < len(named):
                    raise ValueError
                self.calls.append(ToolUse(name, arguments))
                return f"{MARK}{len(self.calls) - 1}{MARK}"
        value = ast.literal_eval(node)
        json.dumps(value)  # raises TypeError for a set, whose text may differ from process to process
        if MARK in str(value):
            raise ValueError
        return value


def _followed(program: str, tools: Collection[str], answering: Collection[str]) -> _Path:
    """Follows a program, given the names of tools and of those that give the answer; empty if it does more than
    call tools with known arguments and show their results, statement by statement."""
    path = _Path(tools, answering)
    try:
        for statement in _parsed(program).body:
            if path.answer is None:
                path.follow(statement)
    except (ValueError, TypeError, RecursionError):
        return _Path(tools, answering)
    return path


def _results(path: _Path, seen: Seen | None) -> list[str | None]:
    """The result of each call. Raises Refused if the results cannot be separated."""
    if seen is None or not path.calls:
        return [None] * len(path.calls)
    shown = f"{LOGS}\n{path.printed}{LAST}\n{path.last}" if seen.text.startswith(LOGS) else path.printed
    parts = [int(part) if n % 2 else part for n, part in enumerate(re.split(f"{MARK}(\\d+){MARK}", shown))]
    found = None if seen.error else fill(parts, seen.text)
    if found is None and len(path.calls) > 1:
        raise Refused(Reason.RESULTS_IN_ONE, ", ".join(used.name for used in path.calls))
    return [seen.result] if found is None else [found.get(n) for n in range(len(path.calls))]


def fill(parts: Sequence[str | int], text: str) -> dict[int, str] | None:
    """The stripped text of each number among the parts; None if the text does not fit the parts, or fits in several
    ways. White space at the text's ends is ignored. Time is linear in the text for each part.

    fill(["Vexon Labs: ", 0, "\\n", 1], "Vexon Labs: owned\\nborn in Berg") == {0: "owned", 1: "born in Berg"}
    """
    numbers = [part for part in parts if isinstance(part, int)]
    # The search tools of smolagents begin each result with this heading.
    for heading in ("", HEADING) if HEADING in text else ("",):
        frame = [""]
        for part in parts:
            frame[-1] += heading if isinstance(part, int) else part
            frame += [""] if isinstance(part, int) else []
        if (between := _between(frame, text)) is not None:
            texts = [f"{heading}{one}".strip() for one in between]
            found = dict(zip(numbers, texts, strict=True))
            if [found[n] for n in numbers] == texts:
                return found
    return None


def _between(frame: Sequence[str], text: str) -> list[str] | None:
    """The texts between those of a frame; None if the text does not fit the frame, or fits in several ways."""
    if len(frame) == 1:
        return [] if text.strip() == frame[0].strip() else None
    first, *marks, last = frame
    # The agent's loop may have stripped the text.
    for begin, end, whole in ((first, last, text), (first.lstrip(), last.rstrip(), text.strip())):
        early = late = whole.removeprefix(begin).removesuffix(end)
        if len(begin) + len(early) + len(end) == len(whole):
            break
    else:
        return None
    forward, backward = [], []
    for mark in marks:
        if not mark or mark not in early:
            return None
        one, _, early = early.partition(mark)
        forward.append(one)
    for mark in reversed(marks):
        late, _, one = late.rpartition(mark)
        backward.append(one)
    texts = [*forward, early]
    return texts if texts == [late, *reversed(backward)] else None


def gives_answer(program: str, table: ToolTable) -> bool:
    """Whether a program uses a tool that gives the answer; a function of that name that it defines does not count."""
    return bool(free_names(program) & answering_tools(table))


def answering_tools(table: ToolTable) -> frozenset[str]:
    """The names of the tools by which an agent gives its answer."""
    return frozenset(name for name, slot in table.items() if slot.tags == (ANSWER,))


def as_prints(program: str, answering: Collection[str]) -> str:
    """The program with `print(x)` for `final_answer(x)`, so that the answer is its output."""
    names = "|".join(map(re.escape, answering))
    return re.sub(rf"(?<![\w.])(?:{names})\s*\(\s*(?:answer\s*=\s*)?", "print(", program) if names else program


def free_names(program: str) -> frozenset[str]:
    """The names that a program uses and does not define: tools, or names of earlier programs.

    free_names("print(total + 1)") == {"total"}
    """
    try:
        top = symtable.symtable(program, "program", "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return frozenset()
    used: set[str] = set()
    made: set[str] = set(dir(builtins)) | {"__name__", "__file__", "__doc__"}
    tables = [top]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        for symbol in table.get_symbols():
            at_top = table is top or symbol.is_declared_global()
            if at_top and (symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()):
                made.add(symbol.get_name())
            elif symbol.is_referenced() and (table is top or symbol.is_global()):
                used.add(symbol.get_name())
    return frozenset(used - made)


def _parsed(program: str) -> ast.Module:
    """The program's statements; none of a program with a syntax error, which the agent saw."""
    try:
        return ast.parse(program)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])
