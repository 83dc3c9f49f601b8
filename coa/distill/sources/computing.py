"""Recomputes the output of an agent's last program, if a recording ends with this program.

A recorder sees what a model says, but not the output of its last program. If that program gave the answer, it is run in
the same sandbox as programs of the student; twice, so that a random output is not taken for the answer.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from coa.distill.sources.foreign import Answer, Call, Computed, ForeignRun, Piece, Reason, Refused
from coa.distill.sources.programs import INTERPRETER, as_prints
from coa.errors import ToolDown
from coa.tools.sandbox.run import Ended
from coa.tools.sandbox.sandbox import Sandbox, SandboxConfig

Execute = Callable[[str], Ended]
_MARK = "\x1fthe answer\x1f\n"
_GIVES = """\
def {name}(*given, **named):
    print({mark!r}, *given, *named.values(), sep="")
    raise SystemExit


"""


def execute_cold(program: str) -> Ended:
    """Runs a program in a sandbox of its own; raises ToolDown if there is no sandbox."""
    return asyncio.run(Sandbox(SandboxConfig(warm=False)).execute(program))


def with_computed(run: ForeignRun, execute: Execute = execute_cold) -> ForeignRun:
    """The run with a call and an answer in the place of each program whose output was not recorded. Raises Refused."""
    if not any(isinstance(piece, Computed) for one in run.activations for piece in one.pieces):
        return run
    activations = tuple(
        replace(one, pieces=tuple(piece for held in one.pieces for piece in _computed(held, execute)))
        for one in run.activations
    )
    return replace(run, activations=activations)


def _computed(piece: Piece, execute: Execute) -> list[Piece]:
    if not isinstance(piece, Computed):
        return [piece]
    gives = "".join(_GIVES.format(name=name, mark=_MARK) for name in sorted(piece.answering))
    try:
        first, second = (execute(gives + piece.program) for _ in range(2))
    except ToolDown as down:
        raise Refused(Reason.NOT_COMPUTED, str(down)) from down
    shown, marked, answer = first.stdout.partition(_MARK)
    if first.status != 0 or not marked or not answer.strip():
        raise Refused(Reason.NOT_COMPUTED, first.stderr.strip().rpartition("\n")[2][:200])
    if first.stdout != second.stdout:
        raise Refused(Reason.NOT_COMPUTED, "another time it gave another")
    result = "\n".join(part.strip() for part in (shown, answer) if part.strip())
    return [Call(INTERPRETER, {"code": as_prints(piece.program, piece.answering)}, result), Answer(answer.strip())]
