"""Programs against tests: what passes, how the others fail, and that nothing but the right result passes."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

import pyarrow.parquet
import pytest

from coa.errors import ToolDown, UserError
from coa.grading import cases
from coa.grading.programs import (
    ProgramsConfig,
    RunTest,
    Verdict,
    Why,
    grade_programs,
    program_of,
    same_output,
    same_value,
    try_out,
)
from coa.tools.base import ToolCall, UseTool
from coa.tools.sandbox.run import Ended, RunLimits
from coa.tools.sandbox.sandbox import Sandbox, SandboxConfig
from coa.types import Task
from tests.support.lcb_programs import FUNCTIONAL, STDIN
from tests.support.patience import PATIENCE_S

BENCHMARKS = Path(os.environ.get("COA_BENCHMARKS", "../shared/benchmarks"))
LCB = BENCHMARKS / "livecodebench_v5.parquet"
needs_benchmarks = pytest.mark.skipif(not LCB.exists(), reason=f"no {LCB} (set COA_BENCHMARKS)")


def read(**tests: object) -> cases.Tests:
    return cases.read_tests(json.dumps(tests))


@asynccontextmanager
async def sandboxed() -> AsyncIterator[UseTool]:
    sandbox = Sandbox(SandboxConfig())
    try:
        run_test = RunTest(sandbox, ProgramsConfig())

        async def again(call: ToolCall) -> str:
            """As callers do: a machine without a free core has no verdict."""
            for _ in range(4):
                with suppress(ToolDown):
                    return await run_test(call)
            return await run_test(call)

        yield again
    finally:
        await sandbox.close()


def try_all(pairs: Iterable[tuple[str, cases.Tests]]) -> list[Verdict]:
    async def go() -> list[Verdict]:
        async with sandboxed() as use_tool:
            return [await try_out(program, tests, use_tool) for program, tests in pairs]

    return asyncio.run(go())


# Comparison.


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("5", "5\n"),
        ("  5  \n\n", "5"),
        ("1  2\t3\r\n4", "1 2 3\n4\n"),
        ("6.064495102245979", "6.06449510224597979401\n"),
        ("1e3", "1000"),
        ("2.0", "2"),
        ("0.5", "0.50"),
        ("0.0000005", "0.0"),
        ("x 0.333333", "x 0.3333333"),
        ("nan", "nan"),
        ("", "\n"),
    ],
)
def test_output_is_compared_by_words_and_numbers_as_numbers(given: str, wanted: str) -> None:
    assert same_output(given, wanted)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("1_0", "10"),
        ("\u0665", "5"),
        ("\uff15", "5"),
        ("1e400", "1e500.0"),
        ("1e400", "2e400"),
        ("nan", "NaN"),
        ("5 6", "5\n6"),
        ("5", "5 5"),
        ("yes", "Yes"),
        ("1.00001", "1.0"),
        ("1000001.5", "1000000.4"),
        ("10000000000000001", "10000000000000000"),
        ("3.0000001", "3"),
        ("nan", "1.0"),
        ("inf", "1e999999999"),
        ("1e999999999", "1.5"),
        ("", "5"),
        ("5\n", ""),
    ],
)
def test_other_output_is_wrong(given: str, wanted: str) -> None:
    assert not same_output(given, wanted)


@pytest.mark.parametrize(
    ("given", "wanted", "same"),
    [
        ([1, [2]], [1, [2]], True),
        (0.1 + 0.2, 0.3, True),
        ([1.0], [1], True),
        (True, 1, True),
        (10**400, 1.5, False),
        (3, 4, False),
        ([1, 2], [1], False),
        ("1", 1, False),
        ({"a": 1}, {"a": 1.0000000001}, True),
        ({"a": 1}, {"b": 1}, False),
        (None, None, True),
        (None, 0, False),
        (True, "True", False),
        (1000000000.5, 1000000007, False),
        (1000000007.0, 1000000007, True),
        (3, 3.0000001, True),
        (0.9999999, True, False),
        (1, True, True),
    ],
)
def test_values_are_compared_in_depth(given: object, wanted: object, same: bool) -> None:
    assert same_value(given, wanted) is same


@pytest.mark.parametrize(
    ("given", "wanted", "same"),
    [
        ("1.5\n", "1.50", True),
        ("  x y \nz", "x y\nz\n", True),
        ("0.3333333", "0.33333333", False),
        ("x  y", "x y", False),
        ("1  2", "1 2", True),
        ("1\n\n2", "1\n2", False),
    ],
)
def test_live_code_bench_compares_without_a_tolerance(given: str, wanted: str, same: bool) -> None:
    assert same_output(given, wanted, exact=True) is same
    assert not same_value(0.1 + 0.2, 0.3, exact=True)
    assert read(stdin=[{"input": "", "output": ""}], compare="exact").exact


# Reading tests.

FEED = cases.Feed("1 2\n", "3\n")


def call(*arguments: object, accepted: object, **keywords: object) -> cases.Call:
    return cases.Call("add", arguments, keywords, (accepted,))


@pytest.mark.parametrize(
    ("tests_json", "read"),
    [
        ({"stdin": [{"input": "1 2\n", "output": "3\n"}]}, FEED),
        ({"stdin": ["1 2\n"], "expected_output": ["3\n"], "question_id": "x"}, FEED),
        ({"inputs": ["1 2\n"], "outputs": ["3\n"]}, FEED),
        ({"inputs": [["1 2", ""]], "outputs": [["3", ""]]}, FEED),
        ({"functional": [{"input": '[1, 2]\n"x"', "output": "3"}], "fn_name": "add"}, call([1, 2], "x", accepted=3)),
        ({"inputs": ["[1]\n2"], "outputs": [3], "fn_name": "add"}, call([1], 2, accepted=3)),
        (
            {"functional": "\nresult = Solution().add(1, -2)\nassert result == -1, f'{result}'"},
            call(1, -2, accepted=-1),
        ),
        ({"assertions": "s = Solution()\nassert s.add((1, 2), None) is None"}, call([1, 2], None, accepted=None)),
        ({"assertions": "assert add([1.5]) == (1, 'a')"}, call([1.5], accepted=[1, "a"])),
        ({"assertions": "assert not add(1)"}, call(1, accepted=False)),
        ({"assertions": "x = [3]\nassert add(x)"}, call([3], accepted=True)),
        (
            {"test_code": "def check(candidate):\n    assert candidate(nums = [1]) == 2\n", "entry_point": "add"},
            call(nums=[1], accepted=2),
        ),
    ],
)
def test_tests_come_in_several_forms(tests_json: dict[str, object], read: object) -> None:
    assert cases.read_tests(json.dumps(tests_json)).cases == (read,)


def test_a_value_in_a_list_of_one_is_accepted_with_and_without_it() -> None:
    [only] = read(inputs=[[1, 2]], outputs=[[3]], fn_name="add").cases
    assert only == cases.Call("add", (1, 2), {}, ([3], 3))


def test_tests_of_all_kinds_come_together_with_their_time_limit() -> None:
    tests = read(
        stdin=[{"input": "1 2\n", "output": "3\n"}],
        functional=[{"input": "1\n2", "output": "3"}],
        fn_name="add",
        assertions="assert add(1, 2) == 3",
        time_limit_s=2,
    )
    assert tests == cases.Tests((FEED, call(1, 2, accepted=3), call(1, 2, accepted=3)), 2.0)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "the tests are not JSON"),
        ("[" * 100_000, "the tests are not JSON"),
        ("7", "not a JSON object"),
        ("{}", "no tests"),
        ('{"stdin": [{"input": "1"}]}', "not of a known form: KeyError: 'output'"),
        ('{"stdin": [{"input": 1, "output": "1"}]}', "not of a known form: TypeError"),
        ('{"stdin": ["1"], "expected_output": []}', "1 inputs and 0 outputs"),
        ('{"functional": [{"input": "1", "output": "1"}]}', "fn_name is None"),
        ('{"functional": [{"input": "1", "output": "1"}], "fn_name": "os.system"}', "names no function"),
        ('{"functional": [{"input": "x", "output": "1"}], "fn_name": "f"}', "'x' in the tests is not JSON"),
        ('{"stdin": [{"input": "", "output": ""}], "time_limit_s": 0}', "time_limit_s is 0"),
        ('{"stdin": [{"input": "", "output": ""}], "time_limit_s": "6"}', "time_limit_s is '6'"),
        ('{"assertions": "assert f(1) =="}', "the assertions are not Python"),
        ('{"assertions": "assert f(x) == 1"}', "nothing defines 'x'"),
        ('{"assertions": "for i in f(1): print(i)"}', "is not a call with literals"),
        ('{"assertions": "assert os.f(1) == 2"}', "they call no function"),
        ('{"assertions": "def check(candidate):\\n assert candidate(1) == 2"}', "fn_name is None"),
    ],
)
def test_malformed_tests_are_named_in_one_line(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why) as caught:
        cases.read_tests(text)
    assert "\n" not in str(caught.value)


def test_a_task_without_proper_tests_is_a_users_mistake() -> None:
    async def no_tool(call: ToolCall) -> str:
        raise AssertionError

    task = Task(id="p-1", question="?", answers=("{}",), profile="code", family="f", grader="tests")
    with pytest.raises(UserError, match="task p-1: no tests"):
        asyncio.run(grade_programs("print(1)", task, no_tool))


# The program of an answer.


@pytest.mark.parametrize(
    ("answer", "program"),
    [
        ("print(1)", "print(1)"),
        ("```py\nprint(1)\n```", "print(1)\n"),
        ("First\n```python\nprint(1)\n```\nthen\n```py\nprint(2)\n```\nDone.", "print(2)\n"),
        ("```\nprint(1)```", "print(1)"),
        ("```py\nprint(1)", "print(1)"),
        ("```python\nprint(1)\n```\nIt prints\n```\n1\n```", "print(1)\n"),
        ("```\nx = 1\nprint(x)\n```\nIt prints\n```\n1\n```", "x = 1\nprint(x)\n"),
        ("```Python3 \r\nprint(1)\n```\n```text\n1\n```", "print(1)\n"),
        ("1. First:\n   ```py\n   if 1:\n       print(1)\n   ```\n", "if 1:\n    print(1)\n"),
        ('```py\nx = """\n```\n"""\nprint(x)\n```\nDone.', 'x = """\n```\n"""\nprint(x)\n'),
        ("```py\nprint('```')  # ```\nprint(2)\n```", "print('```')  # ```\nprint(2)\n"),
        ("First:\n~~~python\nprint(1)\n~~~\nIt prints\n~~~\n1\n~~~", "print(1)\n"),
        ("````{.python .numberLines}\nprint('```')\n```\n````\nDone.", "print('```')\n```\n"),
        ("```python title=a.py\nprint(1)\n`````", "print(1)\n"),
        ("```py\nprint(1)\n~~~\n```", "print(1)\n~~~\n"),
        ('```py\nx = """\n```\nNo end.', 'x = """\n'),
    ],
)
def test_the_program_is_the_last_that_is_fenced_or_all_there_is(answer: str, program: str) -> None:
    assert program_of(answer) == program


# Running.

SUM = read(stdin=[{"input": "1 2\n", "output": "3\n"}, {"input": "5 6", "output": "11"}], time_limit_s=1)
SHIFT = read(functional=[{"input": "[1, 2]\n3", "output": "[4, 5]"}], fn_name="shift", time_limit_s=1)
LONG = "1" + "0" * 5000
PRINTED = read(stdin=[{"input": "5000\n", "output": f"{LONG}\n"}], time_limit_s=1)
RETURNED = read(functional=[{"input": LONG, "output": LONG}], fn_name="same", time_limit_s=1)
RIGHT_SUM = "a, b = map(int, input().split())\nprint(a + b)"
RIGHT_SHIFT = (
    "class Solution:\n    def shift(self, xs: List[int], by: int) -> List[int]:\n        return [x + by for x in xs]"
)


@pytest.mark.parametrize(
    ("program", "tests"),
    [
        (RIGHT_SUM, SUM),
        (f"{RIGHT_SUM}\nexit()", SUM),
        (f"if __name__ == '__main__':\n    {RIGHT_SUM.replace(chr(10), '; ')}", SUM),
        (f"from __future__ import annotations\n{RIGHT_SUM}", SUM),
        ("print(sum(map(int, sys.stdin.read().split())))", SUM),
        ("def f(n): return n and 1 + f(n - 1)\na, b = map(int, input().split())\nprint(a + b + 9999 - f(9999))", SUM),
        (RIGHT_SHIFT, SHIFT),
        ("def shift(xs, by):\n    print('on the way')\n    return tuple(x + by for x in xs)", SHIFT),
        (f"{RIGHT_SHIFT}\nif __name__ == '__main__':\n    print(Solution().shift(eval(input()), 3))", SHIFT),
        ("import atexit\natexit.register(print, 'bye')\ndef shift(xs, by): return [x + by for x in xs]", SHIFT),
        ("json, sys = 1, 2\nshift = lambda xs, by: (deque([x + by for x in xs]))", SHIFT),
        (
            "@functools.cache\ndef plus(x, by): return x + by\ndef shift(xs, by): return [plus(x, by) for x in xs]",
            SHIFT,
        ),
        ("print(10 ** int(input()))", PRINTED),
        ("same = lambda x: 10 ** 5000 + (x != 10 ** 5000)", RETURNED),
    ],
)
def test_right_programs_pass(program: str, tests: cases.Tests) -> None:
    assert try_all([(program, tests)]) == [Verdict()]


@pytest.mark.parametrize(
    ("program", "tests", "verdict"),
    [
        ("print(3)", SUM, Verdict(1, Why.WRONG, "wanted '11', got '3\\n'")),
        ("1 / 0", SUM, Verdict(0, Why.ERROR, "ZeroDivisionError: division by zero")),
        (f"{RIGHT_SUM}\nsys.exit(1)", SUM, Verdict(0, Why.ERROR, "exit status 1")),
        ("while True: pass", SUM, Verdict(0, Why.TIME, "over the time limit")),
        ("import os; os.kill(os.getpid(), 9)", SUM, Verdict(0, Why.KILLED, "killed (time or memory)")),
        ("bytearray(1 << 40)", SUM, Verdict(0, Why.MEMORY, "MemoryError")),
        ("def", SUM, Verdict(0, Why.ERROR, "SyntaxError: invalid syntax")),
        ("shift = lambda xs, by: xs", SHIFT, Verdict(0, Why.WRONG, "wanted [4, 5], got [1, 2]")),
        ("print([4, 5])", SHIFT, Verdict(0, Why.ERROR, "KeyError: 'shift'")),
        ("shift = lambda *_: 1 / 0", SHIFT, Verdict(0, Why.ERROR, "ZeroDivisionError: division by zero")),
        ("shift = lambda xs, by: {4, 5}", SHIFT, Verdict(0, Why.ERROR, "TypeError: a set is no list")),
        ("shift = lambda *_: sys", SHIFT, Verdict(0, Why.ERROR, "TypeError: 'module' object is not iterable")),
        ("\ud800", SHIFT, None),
        ("\x00", SHIFT, None),
    ],
)
def test_other_programs_fail_with_the_test_and_the_reason(
    program: str, tests: cases.Tests, verdict: Verdict | None
) -> None:
    [found] = try_all([(program, tests)])
    assert found == verdict if verdict else (found.test, found.why) == (0, Why.ERROR)


CHEATS = {
    "a verdict on standard output": "print('{\"why\": null}')",
    "leaving before the call": "import os; os._exit(0)",
    "leaving quietly": "raise SystemExit(0)",
    "a value that equals everything": (
        "class Any(list):\n    def __eq__(self, other): return True\ndef shift(xs, by): return Any()"
    ),
    "comparison redefined": (
        "import builtins\nbuiltins.all = builtins.any = lambda _: True\ndef shift(xs, by): return []"
    ),
    "a value printed in the harness's stead": "import os\nos.write(1, b'\\x1e[]')\nos._exit(0)",
    "a harness redefined": "import json\njson.dumps = lambda *_, **__: 'true'\ndef shift(xs, by): return []",
}


@pytest.mark.parametrize("cheat", CHEATS)
def test_nothing_passes_but_the_right_result(cheat: str) -> None:
    assert not try_all([(CHEATS[cheat], SHIFT)])[0].passed


WANTED = '"wanted-c14b"'
SEARCH = """
import gc, glob, os

def everything():
    frame = sys._getframe()
    while frame:
        yield frame.f_locals, frame.f_globals, frame.f_code.co_consts
        frame = frame.f_back
    yield from gc.get_objects()
    for path in glob.glob("/tmp/**", recursive=True):
        if os.path.isfile(path):
            yield open(path, "rb").read()
    for descriptor in range(64):
        try:
            yield os.read(descriptor, 1 << 20)
        except OSError:
            pass

def ask(given):
    found = any("b41c-detnaw" in repr(thing)[::-1] for thing in everything())
    return "b41c-detnaw"[::-1] if found else "nowhere"
"""


def test_what_is_wanted_is_nowhere_in_the_sandbox() -> None:
    kept, printed = (read(functional=[{"input": given, "output": WANTED}], fn_name="ask") for given in ("1", WANTED))
    assert [verdict.why for verdict in try_all([(SEARCH, kept), (SEARCH, printed)])] == [Why.WRONG, None]


def test_a_long_output_is_compared_whole() -> None:
    tests = read(stdin=[{"input": "200000", "output": "\n".join(map(str, range(200_000)))}])
    verdicts = try_all([(f"for i in range(int(input())): print(i{fault})", tests) for fault in ("", " + (i == 99999)")])
    assert [verdict.passed for verdict in verdicts] == [True, False]


def test_an_output_without_end_costs_no_memory() -> None:
    tests = read(stdin=[{"input": "", "output": "x"}], time_limit_s=1)
    assert [verdict.passed for verdict in try_all([("while True: print('x' * 9999)", tests)])] == [False]


def test_the_longest_time_limit_holds_for_all() -> None:
    tests = read(stdin=[{"input": "", "output": ""}], time_limit_s=3600)

    class Patient(Sandbox):
        async def execute(self, program: str, stdin: str = "", limits: RunLimits | None = None) -> Ended:
            assert limits is not None
            assert limits.cpu_s == 1
            return await super().execute(program, stdin, replace(limits, wall_s=PATIENCE_S))

    async def go() -> Verdict:
        sandbox = Patient(SandboxConfig())
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await try_out("while True: pass", tests, RunTest(sandbox, ProgramsConfig(longest_s=1.0)))
        finally:
            await sandbox.close()

    assert asyncio.run(go()).why is Why.TIME


class Slow(Sandbox):
    """A sandbox whose wall clock ends every run."""

    def __init__(self, waited_s: float) -> None:
        super().__init__(SandboxConfig())
        self._waited_s = waited_s

    async def execute(self, program: str, stdin: str = "", limits: RunLimits | None = None) -> Ended:
        return Ended(None, "", "", self._waited_s)


def test_a_program_without_a_core_has_no_verdict_and_one_that_sleeps_is_wrong() -> None:
    # Of the 26 s on the clock for a limit of 1 s, 25 s are more than its own.
    assert asyncio.run(try_out("", SUM, RunTest(Slow(12.4), ProgramsConfig()))).why is Why.TIME
    with pytest.raises(ToolDown, match=r"waited 12\.6 s of 26 s for a core"):
        asyncio.run(try_out("", SUM, RunTest(Slow(12.6), ProgramsConfig())))


@pytest.mark.slow
@pytest.mark.parametrize("warm", [True, False])
def test_a_program_that_sleeps_waits_for_no_core_and_one_on_a_shared_core_does(warm: bool) -> None:
    limits = RunLimits(cpu_s=20, wall_s=3, busy_s=1)
    count = 4 * len(os.sched_getaffinity(0))

    async def go() -> tuple[Ended, list[Ended]]:
        sandbox = Sandbox(SandboxConfig(warm=warm))
        try:
            asleep = await sandbox.execute("import time\ntime.sleep(9)", limits=limits)
            return asleep, await asyncio.gather(
                *(sandbox.execute("while True: pass", limits=limits) for _ in range(count))
            )
        finally:
            await sandbox.close()

    asleep, busy = asyncio.run(go())
    assert asleep.status is None
    # One that sleeps waits only while it starts.
    assert asleep.waited_s < max(ended.waited_s for ended in busy) / 2


class Flooding(Slow):
    async def execute(self, program: str, stdin: str = "", limits: RunLimits | None = None) -> Ended:
        return Ended(None, "6\n", "", self._waited_s, flooded=True)


def test_a_flood_is_wrong_however_long_it_took() -> None:
    verdict = asyncio.run(try_out("", SUM, RunTest(Flooding(25.0), ProgramsConfig())))
    assert verdict == Verdict(0, Why.WRONG, "printed more than 32 MiB")


def test_a_sandbox_that_is_down_gives_no_verdict() -> None:
    async def down(call: ToolCall) -> str:
        raise ToolDown("no sandbox")

    with pytest.raises(ToolDown, match="no sandbox"):
        asyncio.run(try_out(RIGHT_SUM, SUM, down))


# LiveCodeBench.


@cache
def live_code_bench() -> dict[str, str]:
    rows = pyarrow.parquet.read_table(LCB, columns=["reward_model", "extra_info"]).to_pylist()
    return {row["extra_info"]["index"]: row["reward_model"]["ground_truth"] for row in rows}


@needs_benchmarks
def test_the_tests_of_every_row_can_be_read() -> None:
    tests = [cases.read_tests(text) for text in live_code_bench().values()]
    kinds = [{type(case) for case in its.cases} for its in tests]
    assert (kinds.count({cases.Feed}), kinds.count({cases.Call})) == (105, 62)


@needs_benchmarks
@pytest.mark.parametrize("index", [*STDIN, *FUNCTIONAL])
def test_problems_of_live_code_bench_are_graded(index: str) -> None:
    pair = {**STDIN, **FUNCTIONAL}[index]
    task = Task(
        id=index, question="?", answers=(live_code_bench()[index],), profile="code", family="lcb", grader="tests"
    )

    async def grade() -> tuple[float, Why | None]:
        async with sandboxed() as use_tool:
            grade = await grade_programs(f"```py\n{pair.right}\n```", task, use_tool)
            tests = replace(cases.read_tests(task.answers[0]), time_limit_s=1.0)
            return grade, (await try_out(pair.wrong, tests, use_tool)).why

    assert asyncio.run(grade()) == (1.0, pair.why)


def test_enough_problems_are_solved_both_ways() -> None:
    assert len(STDIN) >= 20
    assert len(FUNCTIONAL) >= 8
