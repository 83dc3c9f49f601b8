"""Tests that are scripts: what passes, how the others fail, and that a program can't find what is expected of it."""

import asyncio
import json

import pytest

from coa.errors import UserError
from coa.grading.cases import Call, Script, read_case, read_tests, write_case
from coa.grading.programs import Why, grade_programs
from coa.types import Task
from tests.coa.grading.test_programs import SEARCH, read, sandboxed, try_all

ROOT = "def root(x): return x ** 0.5"
SCRIPTS = {
    "a tolerance": ("assert abs(root(2) - 1.414) < 0.001", ROOT, "def root(x): return x / 2"),
    "a loop, by a helper of the setup": (
        "def check(candidate):\n    for i in range(50):\n        assert math.isclose(square(candidate(i)), i)",
        ROOT,
        "def root(x): return x ** 0.5 if x < 49 else 0",
    ),
    "a loop that keeps results": (
        "for i in range(50):\n    found = root(i)\n    assert abs(found * found - i) < 1e-9",
        ROOT,
        "def root(x): return x ** 0.5 if x < 49 else 0",
    ),
    "a table of inputs, as in EvalPlus": (
        "def assertion(out, exp, atol):\n    assert out == exp or math.isclose(out, exp, abs_tol=atol)\n\n"
        "def check(candidate):\n    for given, wanted in zip([[1.0], [4.0]], [1.0, 2.0000001]):\n"
        "        assertion(candidate(*given), wanted, 1e-6)",
        ROOT,
        "def root(x): return 1.0",
    ),
    "drawn arguments": (
        "import random\nfor _ in range(20):\n    n = random.randint(1, 1000)\n    assert abs(root(n * n) - n) < 1e-9",
        ROOT,
        "import random\ndef root(x): return random.random()",
    ),
    "a result that is another call's argument": (
        "middle = root(16.0)\nassert root(middle) == 2.0 and root(81.0) == 9.0",
        ROOT,
        "def root(x): return 4.0",
    ),
    "sets": ("assert set(root([3, 1, 2])) == {1, 2, 3}", "def root(x): return tuple(x)", "def root(x): return x[1:]"),
    "keys that are tuples": (
        "assert root([(1, 2)]) == {(1, 2): 1}",
        "from collections import Counter\ndef root(x): return Counter(x)",
        "def root(x): return {'[1, 2]': 1}",
    ),
    "a tuple is no list": ("assert root(1) == (1, 2)", "def root(x): return (x, 2)", "def root(x): return [x, 2]"),
    "no tolerance": ("assert root(1) == 0.3", "def root(x): return 0.3", "def root(x): return 0.1 + 0.2"),
    "numbers of many digits": ("assert root(5000) == 10**5000", "def root(x): return 10**x", "def root(x): return 0"),
    "an iterator": ("assert list(root(3)) == [0, 1, 2]", "def root(x): yield from range(x)", "def root(x): yield x"),
    "what is true": ("assert root('ab')", "import re\ndef root(x): return re.match('a', x)", "def root(x): return ''"),
    "bytes and complex numbers": (
        "assert (root(b'a'), root(1j)) == (b'a', 1j)",
        "def root(x): return x",
        "def root(x): return str(x)",
    ),
    "an error that is expected": (
        "try:\n    root(-1)\nexcept ValueError as error:\n    assert 'negative' in str(error)\nelse:\n    assert False",
        "def root(x): raise ValueError('negative')",
        "def root(x): raise KeyError('negative')",
    ),
    "a function with the name of a built-in one": (
        "assert sum(10, 15) == 6",
        "def sum(a, b): return 6",
        "def sum(a, b): return a + b",
    ),
    "a method": (
        "assert abs(root(4) - 2) < 1",
        "class Solution:\n    def root(self, x): return 2",
        "class Solution:\n    def root(self, x): return 4",
    ),
    "a module that nothing imports": ("assert root(3) == statistics.mean([2, 4])", "def root(x): return x", ROOT),
}
SETUP = "import math\n\ndef square(x):\n    return x * x\n\ndef root(x):\n    '''A stub, as in HumanEval.'''"


def script(text: str) -> dict[str, str]:
    return {"script": text, "setup": SETUP, "entry_point": "root"}


def test_right_programs_pass_and_others_do_not() -> None:
    pairs = [(read(**script(text)), programs) for text, *programs in SCRIPTS.values()]
    verdicts = try_all((program, tests) for tests, programs in pairs for program in programs)
    passed = dict(zip(SCRIPTS, zip(verdicts[::2], verdicts[1::2], strict=True), strict=True))
    assert [name for name, (right, _) in passed.items() if not right.passed] == []
    assert [name for name, (_, wrong) in passed.items() if wrong.why is not Why.WRONG] == []


FAULTY = {
    "ends before the call": ("raise SystemExit(0)", Why.ERROR),
    "fills nothing in": ("def other(x): return x", Why.WRONG),
    "is no Python": ("def root(x) return x", Why.ERROR),
    "never ends": ("def root(x):\n    while True: pass", Why.TIME),
    "takes too much memory": ("def root(x): return len(bytearray(1 << 40))", Why.MEMORY),
    "returns what equals everything": (
        "class Same:\n    __eq__ = lambda *_: True\ndef root(x): return Same()",
        Why.WRONG,
    ),
    "returns a number that equals everything": (
        "class Same(float):\n    __eq__ = lambda *_: True\ndef root(x): return Same(3)",
        Why.WRONG,
    ),
    "redefines what compares": (
        "import math\nmath.isclose = lambda *_, **__: True\ndef square(x): return 2.0\ndef root(x): return 7",
        Why.WRONG,
    ),
    "prints results in the harness's stead": ("import os\nos.write(1, b'\\x1e[]')\nos._exit(0)", Why.ERROR),
    "prints what is no result": ('import os\nos.write(1, b\'\\x1e[{"value": {"set": 1}}]\')\nos._exit(0)', Why.WRONG),
    "prints a name for what is no type": (
        "class print(Exception): pass\ndef root(x): raise print('passed')",
        Why.WRONG,
    ),
}


def test_other_programs_fail_with_a_reason() -> None:
    tests = read(**script("assert math.isclose(square(root(2)), 2.0)"), time_limit_s=1)
    verdicts = try_all((program, tests) for program, _ in FAULTY.values())
    found = {name: verdict.why for name, verdict in zip(FAULTY, verdicts, strict=True)}
    assert found == {name: why for name, (_, why) in FAULTY.items()}


def test_a_script_whose_calls_never_end_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coa.grading.programs.ROUNDS", 4)
    tests = read(**script("x = 0\nwhile True:\n    x = root(x)\nassert x"))
    [verdict] = try_all([("def root(x): return x + 1", tests)])
    assert (verdict.why, verdict.detail) == (Why.WRONG, "the tests still lack results after 4 runs")


def test_what_a_script_expects_is_nowhere_beside_the_program() -> None:
    kept, given = (read(script=f"assert 'wanted-c14b' in {{ask({shown})}}") for shown in ("1", "'wanted-c14b'"))
    assert [verdict.why for verdict in try_all([(SEARCH, kept), (SEARCH, given)])] == [Why.WRONG, None]


def test_a_script_that_fails_without_a_program_is_a_users_mistake() -> None:
    tests = json.dumps(script("import nowhere\nassert root(1)"))
    task = Task(id="t", family="f", question="?", answers=(tests,), profile="code", grader="tests")

    async def grade() -> float:
        async with sandboxed() as use_tool:
            return await grade_programs("def root(x): raise ModuleNotFoundError", task, use_tool)

    why = r"^task t: its tests fail by themselves \(ModuleNotFoundError: .*\); packages are given by tools.sandbox"
    with pytest.raises(UserError, match=why):
        asyncio.run(grade())
    [verdict] = try_all([("def root(x): raise ModuleNotFoundError", read(**script("assert root(1)")))])
    assert verdict.why is Why.WRONG


def test_assertions_are_calls_where_they_can_be() -> None:
    assert read(assertions="assert root(4) == 2").cases == (Call("root", (4,), {}, (2,)),)
    loop = "for n in (1, 4): assert root(n)"
    assert read(assertions=["import math", loop]).cases == (Script(f"import math\n{loop}", ("root",)),)
    check = "def check(candidate):\n    assert candidate(4) == 2 or helper()"
    [case] = read(**script(check)).cases
    assert case == Script(f"{check}\ncheck(root)\n", ("helper", "root"))
    assert read_case(write_case(case)) == case


@pytest.mark.parametrize(
    ("tests", "why"),
    [
        ({"script": "assert f(x) == 1"}, "nothing defines 'x'"),
        ({"script": "assert numpy.f(1) == 1"}, "nothing defines 'numpy'"),
        ({"script": "assert 1"}, "they call no function"),
        ({"script": "assert f(1) =="}, "the assertions are not Python"),
        ({"script": "assert f(1)", "setup": "def"}, "the assertions are not Python"),
        ({"script": "def check(candidate):\n    assert candidate(1)"}, "fn_name is None"),
        ({"script": 7}, "not of a known form"),
    ],
)
def test_a_script_that_can_not_run_is_named_in_one_line(tests: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read_tests(json.dumps(tests))


def test_helpers_of_the_setup_are_there_for_calls_too() -> None:
    tests = read(assertions="assert root(3) == 9", setup=SETUP)
    assert [verdict.passed for verdict in try_all([("def root(x): return square(x)", tests)])] == [True]


def test_a_built_in_function_that_a_script_calls_need_not_be_defined() -> None:
    tests = read(script="assert sorted(sum([3, 1], [2])) == [1, 2, 3]")
    assert tests.cases[0] == Script("assert sorted(sum([3, 1], [2])) == [1, 2, 3]", ("sorted", "sum"))
    programs = ("def sum(a, b): return a + b", "def sum(a, b): return a")
    assert [verdict.passed for verdict in try_all((program, tests) for program in programs)] == [True, False]
