"""Reads programs of agents that act by code: a program that only calls tools becomes these calls, in order.

print(web_search("Vexon Labs"))             web_search "Vexon Labs", with what was printed as its result
for q in ("Vexon Labs", "Nora Lind"):       two calls, each with its own result
    print(q, web_search(q))
final_answer("Berg")                        the answer
print(sum(range(10)))                       a program of its own
"""

import ast
import builtins
import re
import symtable
from collections.abc import Collection, Iterator
from itertools import pairwise

from coa.agent.grammar import ANSWER
from coa.distill.sources.foreign import Answer, Call, Computed, Piece, Reason, Refused
from coa.distill.sources.frames import LAST, LOGS, Seen
from coa.distill.sources.programs.holes import fill
from coa.distill.sources.programs.trace import Trace, traced
from coa.distill.sources.programs.values import NotFollowed
from coa.distill.sources.tools import ToolTable

INTERPRETER = "python_interpreter"
"""Smolagents' name of the tool that runs programs."""


def pieces_of_program(program: str, seen: Seen | None, table: ToolTable) -> Iterator[Piece]:
    """The calls and the answer of a program. seen: what the agent saw of the result; None if that is unknown.

    Raises Refused for a program that cannot be run by itself, or if the results of its tools cannot be separated.
    """
    answering, free = answering_tools(table), free_names(program)
    # A function that the program defines itself is no tool, whatever its name.
    tools = table.keys() & free
    try:
        trace = traced(program, tools, tools & answering)
    except NotFollowed:
        trace = Trace()
    if not trace.calls and trace.answer is None:
        yield from _own_program(program, seen, tools, free, answering)
        return
    if trace.calls and trace.answer is not None and seen is None:
        raise Refused(Reason.NO_RESULT, ", ".join(used.name for used in trace.calls))
    for used, result in zip(trace.calls, _results(trace, seen), strict=False):
        yield Call(used.name, used.arguments, result)
    if trace.answer is not None:
        yield Answer(trace.answer.known or "")


def _own_program(
    program: str, seen: Seen | None, tools: Collection[str], free: frozenset[str], answering: frozenset[str]
) -> Iterator[Piece]:
    if called := _called(program, tools) - answering:
        raise Refused(Reason.TOOLS_IN_PROGRAM, ", ".join(sorted(called)))
    if not (seen and seen.error) and (unknown := free - answering):
        raise Refused(Reason.NOT_WHOLE, ", ".join(sorted(unknown)))
    if seen is None and free & answering:
        yield Computed(program, free & answering)
    else:
        yield Call(INTERPRETER, {"code": as_prints(program, answering & free)}, None if seen is None else seen.result)


def _results(trace: Trace, seen: Seen | None) -> list[str | None]:
    """The result of each call. Raises Refused if the results cannot be separated."""
    if seen is None or not trace.calls:
        return [None] * len(trace.calls)
    if seen.error:
        return [*_before_error(trace, seen), seen.result if len(trace.calls) == 1 else f"Error: {seen.error}"]
    lines = [part for _, line in trace.printed for part in line.parts]
    headed = seen.text.startswith(LOGS)
    found = fill([f"{LOGS}\n", *lines, f"{LAST}\n", *trace.last.parts] if headed else lines, seen.text)
    if found is None and len(trace.calls) == 1:
        return [seen.result]
    if found is None:
        raise Refused(Reason.RESULTS_IN_ONE, ", ".join(used.name for used in trace.calls))
    return [found.get(n) for n in range(len(trace.calls))]


def _before_error(trace: Trace, seen: Seen) -> list[str | None]:
    """The results of the calls before the one that raised, which is the first call after the last printed line."""
    if len(trace.calls) == 1:
        return []
    made = [calls for calls, _ in trace.printed] + [len(trace.calls)]
    ways: list[list[str | None]] = []
    for lines, (before, after) in enumerate(pairwise([0, *made])):
        parts = [part for _, line in trace.printed[:lines] for part in line.parts]
        found = fill([f"{LOGS}\n" if seen.text else "", *parts], seen.text)
        if found is not None and after == before + 1:
            ways.append([found.get(n) for n in range(before)])
    if len(ways) != 1:
        raise Refused(Reason.RESULTS_IN_ONE, ", ".join(used.name for used in trace.calls))
    return ways[0]


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


def _called(program: str, tools: Collection[str]) -> set[str]:
    """The tools among `tools` that a program calls; empty for a program with a syntax error, which the agent saw."""
    try:
        nodes = list(ast.walk(ast.parse(program)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()
    called = {node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    return called & set(tools)
