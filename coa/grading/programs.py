"""The grader of programs: runs them against tests, each in a sandbox run of its own.

    answer ── program ──┐   stops at the first test that fails
    task ──── tests ────┴── run_test [test 0] ── run_test [test 1] ── ...
                               sandbox: program, input  ->  its output or return value
                               outside: comparison with the expected result

The expected results are never in one sandbox with the program. So a program passes only with the right result in its
output, whatever else it does (prints a fake verdict, exits early, inspects the harness, redefines comparison). Tests
that are a script run in a sandbox of their own, in turns with the program (`coa.grading.scripts`).
"""

import json
import math
import re
import signal
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from enum import StrEnum

from coa.errors import ToolDown, UserError
from coa.grading import harnesses
from coa.grading.cases import Call, Feed, Script, Tests, any_digits, read_case, read_json, read_tests, write_case
from coa.grading.scripts import ROUNDS, ScriptRounds, Untestable
from coa.json_object import Json
from coa.tools.base import ToolCall, UseTool, ask_hidden
from coa.tools.fences import program_of
from coa.tools.sandbox.cgroup import MIB
from coa.tools.sandbox.run import FLOOD_BYTES, Ended, RunLimits
from coa.tools.sandbox.sandbox import Sandbox
from coa.types import Task

TESTS = "tests"
"""Name of the grader; a task's one answer is the JSON text of its tests (`coa.grading.cases`)."""
RUN_TEST = "run_test"
"""Name of the grader's tool; no profile has it, so no policy can call it."""

TOLERANCE = 1e-6
"""Tolerance of numbers with a fraction, as in programming contests: absolute below 1, relative above."""

_NUMBER = re.compile(r"[+-]?(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?")


@dataclass(frozen=True)
class ProgramsConfig:
    """Limits of programs that answer programming tasks."""

    longest_s: float = 10.0
    """Maximum CPU seconds of one test, even if the test allows more. The wall-clock limit is twice a test's time plus
    one second. A program that waited for a CPU core gets twice this setting plus three seconds more, however short its
    test, so that a verdict does not depend on the load; `executor.call_s_of.run_test` has to leave room for it. A
    program that still got no core is run again; a program that slept is wrong."""
    memory_mib: int = 1024
    """Maximum memory of a program in a test, in MiB."""

    def limits(self, limit_s: float, output_bytes: int) -> RunLimits:
        """The limits of one test, whose program may take `limit_s` seconds of CPU time."""
        wall_s = 2 * limit_s + 1
        return RunLimits(
            cpu_s=math.ceil(limit_s),
            wall_s=wall_s,
            busy_s=2 * self.longest_s + 3,
            memory_mib=self.memory_mib,
            output_bytes=output_bytes,
        )


class Why(StrEnum):
    """Why a program did not pass a test."""

    WRONG = "wrong"
    ERROR = "error"
    TIME = "time"
    MEMORY = "memory"
    KILLED = "killed"
    """Killed by the kernel, either for its time (after it ignored the limit's signal) or because the machine ran out of
    memory; which of the two is not known."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of all tests: with `Verdict(2, Why.WRONG, "wanted '5', got '6'")` the third test failed first."""

    test: int | None = None
    """Index of the test that failed; None if all passed."""
    why: Why | None = None
    detail: str = ""

    @property
    def passed(self) -> bool:
        return self.why is None


async def grade_programs(answer: str, task: Task, use_tool: UseTool) -> float:
    """1 if the program in the answer passes all tests of the task, else 0; raises UserError if the task has no valid
    tests."""
    program = program_of(answer)
    try:
        tests = read_tests(task.answers[0])
    except ValueError as error:
        raise UserError(f"task {task.id}: {error}") from error
    try:
        return float(bool(program.strip()) and (await try_out(program, tests, use_tool)).passed)
    except Untestable as error:
        raise UserError(f"task {task.id}: {error}") from error


async def try_out(program: str, tests: Tests, use_tool: UseTool) -> Verdict:
    """Runs the tests one after the other, up to the first that fails. Raises Untestable."""
    for index, case in enumerate(tests.cases):
        if isinstance(case, Script):
            why, detail = await _play(program, ScriptRounds(case, tests.setup), tests.time_limit_s, use_tool)
        else:
            question = {
                "program": program,
                "case": write_case(case),
                "setup": tests.setup,
                "time_limit_s": tests.time_limit_s,
                "exact": tests.exact,
            }
            result = await ask_hidden(use_tool, RUN_TEST, question)
            why, detail = result["why"], result["detail"]
        if why is not None:
            return Verdict(index, Why(why), detail)
    return Verdict()


async def _play(program: str, rounds: ScriptRounds, limit_s: float, use_tool: UseTool) -> tuple[Why | None, str]:
    """Runs a script and the program in turns; why the program does not pass, and one line of detail."""

    async def run(source: str, stdin: str) -> Json:
        return await ask_hidden(use_tool, RUN_TEST, {"source": source, "stdin": stdin, "time_limit_s": limit_s})

    for _ in range(ROUNDS):
        script = await run(*rounds.script())
        if script["why"] == Why.ERROR:
            rounds.fail(script["detail"])
            return Why.WRONG, script["detail"]
        if script["why"] is not None:
            return Why(script["why"]), script["detail"]
        try:
            if rounds.add_calls(script["printed"]):
                return None, ""
            results = await run(*rounds.program(program))
            if results["why"] is not None:
                return Why(results["why"]), results["detail"]
            rounds.add_results(results["printed"])
        except (ValueError, RecursionError) as error:
            return Why.ERROR, _short(str(error))
    return Why.WRONG, f"the tests still lack results after {ROUNDS} runs"


class RunTest:
    """The tool: {"program": .., "case": text of a test, "setup": .., "time_limit_s": .., "exact": ..} gives {"why": ..,
    "detail": ..}; {"source": .., "stdin": .., "time_limit_s": ..} gives what was printed, too, as "printed"."""

    def __init__(self, sandbox: Sandbox, config: ProgramsConfig) -> None:
        self._sandbox, self._config = sandbox, config

    def key(self, call: ToolCall) -> None:
        """None: results are not cached, since whether a program is in time may differ from run to run."""

    async def __call__(self, call: ToolCall) -> str:
        asked = json.loads(call.argument)
        limit_s = min(asked["time_limit_s"], self._config.longest_s)
        if "source" in asked:
            ended = await self._run(asked["source"], asked["stdin"], limit_s)
            why, detail = fault_of(ended)
            return json.dumps({"why": why, "detail": detail, "printed": ended.stdout})
        case = read_case(asked["case"])
        assert not isinstance(case, Script), "its runs have a source"
        program = asked["program"]
        source = harnesses.feed(program) if isinstance(case, Feed) else harnesses.call(program, asked["setup"])
        ended = await self._run(source, stdin_of(case), limit_s, len(asked["case"]))
        why, detail = judge_run(ended, case, exact=asked["exact"])
        return json.dumps({"why": why, "detail": detail})

    async def _run(self, source: str, stdin: str, limit_s: float, expected: int = 0) -> Ended:
        """expected: characters that a right program may print, beyond those of any."""
        limits = self._config.limits(limit_s, MIB + 4 * max(expected, len(stdin)))
        ended = await self._sandbox.execute(source, stdin, limits)
        longest_s = limits.wall_s + limits.busy_s
        if ended.status is None and not ended.flooded and ended.waited_s > (longest_s - limit_s) / 2:
            raise ToolDown(f"a program waited {ended.waited_s:.1f} s of {longest_s:g} s for a core")
        return ended


_OUT_OF_TIME = (None, 128 + signal.SIGXCPU)
_KILLED = 128 + signal.SIGKILL


def stdin_of(case: Feed | Call) -> str:
    """The standard input of a test."""
    if isinstance(case, Feed):
        return case.input
    with any_digits():
        return json.dumps({"function": case.function, "arguments": case.arguments, "keywords": case.keywords})


def check_programs(config: ProgramsConfig, call_s: float) -> None:
    """Raises UserError if `call_s`, the executor's time limit of a call, would stop a slow program before its limit."""
    limits = config.limits(config.longest_s, MIB)
    wall_s = limits.wall_s + limits.busy_s
    if wall_s >= call_s:
        raise UserError(
            f"a test may take {wall_s:g} s by tools.programs.longest_s, but the executor stops it after {call_s:g} s: "
            f"set executor.call_s_of.{RUN_TEST}"
        )


def fault_of(ended: Ended) -> tuple[Why | None, str]:
    """Why a run did not end as it should, and one line of detail; (None, "") if it did."""
    last = (ended.stderr.strip().splitlines() or [""])[-1].strip()
    if ended.flooded:
        return Why.WRONG, f"printed more than {FLOOD_BYTES // MIB} MiB"
    if ended.status in _OUT_OF_TIME:
        return Why.TIME, "over the time limit"
    if ended.status == _KILLED:
        return Why.KILLED, "killed (time or memory)"
    if ended.status != 0:
        why = Why.MEMORY if last.startswith("MemoryError") else Why.ERROR
        return why, _short(last or f"exit status {ended.status}")
    return None, ""


def judge_run(ended: Ended, case: Feed | Call, *, exact: bool = False) -> tuple[Why | None, str]:
    """The reason why a run does not pass, and one line of detail; (None, "") if it passes."""
    fault = fault_of(ended)
    if fault[0] is not None:
        return fault
    if isinstance(case, Feed):
        right = same_output(ended.stdout, case.output, exact=exact)
        return (None, "") if right else (Why.WRONG, f"wanted {_short(case.output)!r}, got {_short(ended.stdout)!r}")
    _, mark, value = ended.stdout.rpartition(harnesses.MARK)
    if not mark:
        return Why.ERROR, f"ended before {case.function} returned"
    try:
        right = any(same_value(read_json(value), accepted, exact=exact) for accepted in case.accepted)
    except (ValueError, RecursionError):  # printed by the program itself, cut, or too deep
        right = False
    return (None, "") if right else (Why.WRONG, f"wanted {_short(case.accepted[0])}, got {_short(value.strip())}")


def _short(value: object, limit: int = 200) -> str:
    with any_digits():
        text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= limit else f"{text[:limit]}..."


def same_output(output: str, wanted: str, *, exact: bool = False) -> bool:
    """Whether two outputs are the same line by line and word by word; numbers are compared as numbers.

    exact: as in LiveCodeBench: lines are the same text, or the same numbers, without a tolerance.
    """
    texts = [text.strip().split("\n") if exact else text.strip().splitlines() for text in (output, wanted)]
    same = _same_numbers if exact else _same_words
    return len(texts[0]) == len(texts[1]) and all(
        ours.strip() == theirs.strip() or same(ours.split(), theirs.split())
        for ours, theirs in zip(*texts, strict=True)
    )


def _same_numbers(output: list[str], wanted: list[str]) -> bool:
    numbers = [list(map(_printed_number, words)) for words in (output, wanted)]
    return None not in numbers[0] and numbers[0] == numbers[1]


def _same_words(output: list[str], wanted: list[str]) -> bool:
    return len(output) == len(wanted) and all(map(_same_word, output, wanted))


def _same_word(output: str, wanted: str) -> bool:
    ours, theirs = _printed_number(output), _printed_number(wanted)
    if output == wanted or ours is None or theirs is None:
        return output == wanted
    # A whole number is exact, however it is written.
    return ours == theirs or (re.search("[.eE]", wanted) is not None and _close(ours, theirs))


def _printed_number(word: str) -> Decimal | None:
    """The number that a word is, as programs print numbers. What Python alone reads as one is none: `1_0`, digits of
    other scripts, `nan`."""
    try:
        return Decimal(word) if _NUMBER.fullmatch(word) else None
    except InvalidOperation:  # an exponent of many digits
        return None


def same_value(output: object, wanted: object, *, exact: bool = False) -> bool:
    """Whether two JSON values are the same, numbers with a fraction within the tolerance; exact: without one."""
    if exact:
        return output == wanted
    match output, wanted:
        case [list(), list()]:
            return len(output) == len(wanted) and all(map(same_value, output, wanted))
        case [dict(), dict()]:
            return output.keys() == wanted.keys() and all(same_value(output[key], wanted[key]) for key in wanted)
        case [int() | float() | Decimal(), float()]:  # a whole number is exact
            if math.isnan(wanted):
                return isinstance(output, float) and math.isnan(output)
            return output == wanted or (not isinstance(output, bool) and _close(output, wanted))
    return output == wanted


def _close(output: float | Decimal, wanted: float | Decimal) -> bool:
    """Whether two numbers that differ are within the tolerance; never if one is beyond what a float holds."""
    try:
        ours, theirs = float(output), float(wanted)
    except OverflowError:
        return False
    return math.isfinite(ours) and math.isclose(ours, theirs, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
