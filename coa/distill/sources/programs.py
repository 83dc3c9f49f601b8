"""Reads programs of agents that act by code: a program that only calls a tool is that tool's call.

print(web_search("Vexon Labs"))             Used("web_search", {"query": ...})
page = visit_webpage(url="https://a.b")     Used("visit_webpage", {"url": ...})
print(page)
final_answer("Berg")                        Used("final_answer", {...})
print(sum(range(10)))                       None: a program
"""

import ast
import builtins
import re
import symtable
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from coa.agent.grammar import ANSWER
from coa.distill.sources.foreign import Answer, Call, Piece, Reason, Refused
from coa.distill.sources.tools import ToolTable

INTERPRETER = "python_interpreter"
"""The tool that runs programs, as smolagents calls it."""
_LOGS = re.compile(r"Execution logs:\n?(?P<logs>.*?)(?:Last output from code snippet:\n?(?P<last>.*))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Used:
    """A tool call in a program."""

    name: str
    arguments: dict[str, Any]
    """An argument without a name is called `input`."""


def pieces_of_program(program: str, result: str | None, table: ToolTable, *, failed: bool = False) -> Iterator[Piece]:
    """What an agent did by a program, with its result. failed: whether the program is known to have raised.

    Raises Refused for a program that cannot be run by itself.
    """
    answering, free = answering_tools(table), free_names(program)
    # What the program defines itself is no tool, whatever its name.
    used = used_by(program, table.keys() & free, answering)
    if used is None:
        if not failed and (unknown := free - answering):
            raise Refused(Reason.NOT_WHOLE, ", ".join(sorted(unknown)))
        yield Call(INTERPRETER, {"code": as_prints(program, answering & free)}, result)
    elif used.name not in answering:
        yield Call(used.name, used.arguments, result)
    else:
        yield Answer(str(next(iter(used.arguments.values()), "")))


def gives_answer(program: str, table: ToolTable) -> bool:
    """Whether a program calls a tool that gives the answer, and not a function of its own of that name."""
    return bool(free_names(program) & answering_tools(table))


def answering_tools(table: ToolTable) -> frozenset[str]:
    """The names of the tools by which an agent gives its answer."""
    return frozenset(name for name, slot in table.items() if slot.tags == (ANSWER,))


def shown_by(text: str) -> str:
    """What a program printed, without the headings of smolagents' interpreter."""
    if logs := _LOGS.fullmatch(text.strip()):
        last = (logs["last"] or "").strip()
        return "\n".join(part for part in (logs["logs"].strip(), "" if last == "None" else last) if part)
    return text.strip()


def used_by(program: str, tools: Collection[str], answering: Collection[str]) -> Used | None:
    """The tool call of a program that makes one call with literals and nothing else; None for a program without tools.

    answering: those of the tools that give the final answer, which a program may call at its end.
    Raises Refused for a program that does more with other tools: there are none in the sandbox of a model of ours.
    """
    try:
        tree = ast.parse(program)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None  # its error is what the agent saw next
    calls = [node for node in ast.walk(tree) if _name(node) in tools]
    if not calls:
        return None
    if len(calls) == 1 and (used := _alone(tree.body, calls[0])) is not None:
        return used
    if all(_name(node) in answering for node in calls):
        return None
    raise Refused(Reason.TOOLS_IN_PROGRAM, ", ".join(sorted({_name(node) for node in calls})))


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


def _name(node: ast.AST) -> str:
    return node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""


def _alone(body: Sequence[ast.stmt], call: ast.AST) -> Used | None:
    """The call, where the rest of the program only prints its result; else None."""
    assert isinstance(call, ast.Call)
    results: set[str] = set()
    for statement in body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if value is call:
                results.add(name)
            case ast.Expr(value=value) if value is call or _shows(value, call, results):
                pass
            case ast.Expr(value=ast.Name(id=name)) if name in results:
                pass
            case _:
                return None
    try:
        unnamed = [ast.literal_eval(argument) for argument in call.args]
        named = {word.arg: ast.literal_eval(word.value) for word in call.keywords if word.arg is not None}
    except ValueError:
        return None
    if len(unnamed) > 1 or len(named) < len(call.keywords) or (unnamed and "input" in named):
        return None
    return Used(_name(call), {**({"input": unnamed[0]} if unnamed else {}), **named})


def _shows(value: ast.expr, call: ast.Call, results: set[str]) -> bool:
    """Whether an expression is print() of the result, with plain texts beside it."""
    if _name(value) != "print":
        return False
    assert isinstance(value, ast.Call)
    return not value.keywords and all(
        shown is call or isinstance(shown, ast.Constant) or (isinstance(shown, ast.Name) and shown.id in results)
        for shown in value.args
    )
