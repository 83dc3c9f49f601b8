"""Evaluates a program that only calls tools and shows their results, without running it.

for q in ("Vexon Labs", "Nora Lind"):          calls    web_search "Vexon Labs", web_search "Nora Lind"
    print(f"{q}:", web_search(q))        ->    printed  "Vexon Labs: " RESULT 0 "\\n" "Nora Lind: " RESULT 1 "\\n"

Results are holes in the printed text; `coa.distill.sources.programs.holes` finds them in what the agent saw. A program
that does more with a result than show it, or that computes, raises `NotFollowed`.
"""

import ast
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from coa.distill.sources.messages import ToolUse
from coa.distill.sources.programs.values import (
    FUNCTIONS,
    MOST_STEPS,
    NotFollowed,
    Text,
    add,
    as_shown,
    as_text,
    call_method,
    elements,
    give_up,
    item_of,
    join_texts,
    literal,
    repeat,
)


@dataclass(slots=True)
class Trace:
    calls: list[ToolUse] = field(default_factory=list)
    """Arguments without a name are called `input`, `input 2`, ..."""
    printed: list[tuple[int, Text]] = field(default_factory=list)
    """Each printed line with its line end, preceded by the number of calls made before it."""
    last: Text = field(default=as_text(None))
    """The value of the last statement, which smolagents' interpreter shows."""
    answer: Text | None = None
    """The program's final answer; statements after it are not run."""


class _Answered(Exception): ...


def traced(program: str, tools: Collection[str], answering: Collection[str]) -> Trace:
    """The trace of a program, given the names of tools, of which `answering` give the final answer. Raises
    NotFollowed."""
    follower = _Follower(tools, answering)
    try:
        with suppress(_Answered):
            follower.run(ast.parse(program).body)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise NotFollowed from error
    return follower.trace


class _Follower:
    def __init__(self, tools: Collection[str], answering: Collection[str]) -> None:
        self.trace = Trace()
        self._tools, self._answering = tools, answering
        self._names: dict[str, object] = {}
        self._steps = 0

    def run(self, body: Sequence[ast.stmt]) -> None:
        for statement in body:
            self.trace.last = as_shown(self._statement(statement))

    def _statement(self, statement: ast.stmt) -> object:
        """The value that smolagents' interpreter shows for a statement."""
        self._count()
        match statement:
            case ast.Expr(value=node):
                return self._value(node)
            case ast.Assign(targets=targets, value=node):
                value = self._value(node)
                for target in targets:
                    self._assign(target, value)
                return value
            case ast.AugAssign(target=ast.Name(id=name), op=ast.Add(), value=node):
                self._names[name] = add(self._value_of_name(name), self._value(node))
                return self._names[name]
            case ast.For(target=target, iter=node, body=body, orelse=[]):
                shown = None
                for _ in self._each(target, node):
                    for inner in body:
                        one = self._statement(inner)
                        shown = shown if one is None else one
                return shown
            case ast.Pass() | ast.Import() | ast.ImportFrom():
                return None  # a use of the imported name raises NotFollowed later
        give_up()

    def _each(self, target: ast.expr, several: ast.expr) -> Iterator[None]:
        for value in elements(self._value(several)):
            self._assign(target, value)
            yield

    def _assign(self, target: ast.expr, value: object) -> None:
        match target:
            case ast.Name(id=name) if name not in self._tools:
                self._names[name] = value
            case ast.Tuple(elts=targets) | ast.List(elts=targets) if len(targets) == len(parts := elements(value)):
                for one, part in zip(targets, parts, strict=True):
                    self._assign(one, part)
            case ast.Subscript(value=node, slice=key) if isinstance(held := self._value(node), dict):
                held[self._key(key)] = value
            case _:
                give_up()

    def _value(self, node: ast.expr) -> object:
        self._count()
        match node:
            case ast.Constant(value=str() | int() | float() | None):
                return node.value
            case ast.Name(id=name):
                return self._value_of_name(name)
            case ast.Tuple(elts=nodes) | ast.List(elts=nodes):
                return [self._value(one) for one in nodes]
            case ast.Dict(keys=keys, values=nodes):
                pairs = [(self._key(key) if key else give_up(), one) for key, one in zip(keys, nodes, strict=True)]
                return {key: self._value(one) for key, one in pairs}
            case ast.JoinedStr(values=nodes):
                return join_texts([self._part(one) for one in nodes])
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return add(self._value(left), self._value(right))
            case ast.BinOp(left=left, op=ast.Mult(), right=right):
                return repeat(self._value(left), self._value(right))
            case ast.Subscript(value=held, slice=key):
                return item_of(self._value(held), self._value(key))
            case ast.ListComp(elt=element, generators=[ast.comprehension(target=target, iter=several, ifs=[])]):
                return [self._value(element) for _ in self._each(target, several)]
            case ast.DictComp(key=key, value=one, generators=[ast.comprehension(target=target, iter=several, ifs=[])]):
                return {self._key(key): self._value(one) for _ in self._each(target, several)}
            case ast.Call(func=ast.Name(id=name)):
                return self._call(name, node)
            case ast.Call(func=ast.Attribute(value=of, attr=method), keywords=[]):
                return call_method(self._value(of), method, [self._value(one) for one in node.args])
        give_up()

    def _key(self, node: ast.expr) -> str | int:
        key = literal(self._value(node))
        return key if isinstance(key, str | int) else give_up()

    def _part(self, node: ast.expr) -> Text:
        match node:
            case ast.FormattedValue(value=value, conversion=-1, format_spec=None):
                return as_text(self._value(value))
            case ast.Constant(value=str() as text):
                return as_text(text)
        give_up()

    def _call(self, name: str, node: ast.Call) -> object:
        values = [self._value(one) for one in node.args]
        named = {word.arg or give_up(): self._value(word.value) for word in node.keywords}
        if name in self._answering:
            given = [*values, *named.values()]
            self.trace.answer = self.trace.last = as_text(given[0]) if len(given) == 1 else give_up()
            raise _Answered
        if name in self._tools:
            arguments = {f"input {n}" if n > 1 else "input": value for n, value in enumerate(values, start=1)}
            if "input" in named and values:
                give_up()
            self.trace.calls.append(ToolUse(name, {key: literal(one) for key, one in {**arguments, **named}.items()}))
            return Text((len(self.trace.calls) - 1,))
        if name == "print":  # smolagents' print ignores `sep` and `end`
            words = [part for value in values for part in (Text((" ",)), as_text(value))][1:]
            self.trace.printed.append((len(self.trace.calls), join_texts([*words, Text(("\n",))])))
            return None
        return FUNCTIONS[name](*values) if name in FUNCTIONS and not named else give_up()

    def _value_of_name(self, name: str) -> object:
        return self._names[name] if name in self._names else give_up()

    def _count(self) -> None:
        self._steps += 1
        if self._steps > MOST_STEPS:
            give_up()
