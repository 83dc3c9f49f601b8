"""Rows of every benchmark's layout, made up, and what comes of them."""

import base64
import hashlib
import json
import os
import pickle
import zlib
from itertools import cycle
from typing import Any

import pytest

from coa.agent.profiles import PROFILES
from coa.errors import UserError
from coa.grading.cases import Call, Feed, Script, read_tests
from coa.grading.graders import GRADERS
from coa.registry import Registry
from coa.tasks.published.benchmark import Benchmark, Decoding, Hub
from coa.tasks.published.item import BadRow, Item, plain
from coa.tasks.published.programs import FILL_IN, PASSES, READ_STDIN, unpickle_text, unseal
from coa.tasks.published.table import BENCHMARKS, find, find_benchmark, of_family, register


def read(name: str, /, **row: Any) -> Item | None:
    return BENCHMARKS[name].read(row)


def item(name: str, /, **row: Any) -> Item:
    found = read(name, **row)
    assert found is not None
    return found


# --- the table --------------------------------------------------------------------------------------------------------


def test_the_table_has_the_papers_benchmarks_with_its_protocols() -> None:
    protocols = {
        name: (one.rows[0], one.profile, one.grader, one.metric_at(one.decoding.samples), one.decoding)
        for name, one in BENCHMARKS.items()
    }
    sixteen, one = Decoding(16, 0.6, max_turns=13), Decoding(1, 0.6, max_turns=13)
    maths, programs, opened = (
        ("math", "math"),
        ("code", "tests", "pass@1", one),
        ("mhqa", "exact_first", "exact match", Decoding(1, 0.0, max_turns=8)),
    )
    plain_programs = ("code", "tests", "pass@1", Decoding(1, 0.0))
    web = ("web", "judge", "judged pass@1", Decoding(3, 1.0, 0.9, 20, 36))
    assert protocols == {
        "aime24": (30, *maths, "avg@16", sixteen),
        "aime25": (30, *maths, "avg@16", sixteen),
        "amc23": (40, *maths, "avg@16", sixteen),
        "math500": (500, *maths, "pass@1", one),
        "olympiadbench": (674, *maths, "pass@1", one),
        "livecodebench_v4": (101, *programs),
        "livecodebench_v5": (167, *programs),
        "codecontests": (165, *programs),
        "humaneval": (164, *plain_programs),
        "humaneval_plus": (164, *plain_programs),
        "mbpp": (500, *plain_programs),
        "mbpp_sanitized": (257, *plain_programs),
        "mbpp_plus": (378, *plain_programs),
        "nq": (3610, *opened),
        "triviaqa": (11313, *opened),
        "hotpotqa": (7405, *opened),
        "popqa": (14267, *opened),
        "2wikimultihopqa": (12576, *opened),
        "musique": (2417, *opened),
        "bamboogle": (125, *opened),
        "gaia": (103, *web),
        "webwalker": (680, *web),
        "browsecomp": (1266, *web),
        "hle": (500, *web),
    }
    assert all(one.profile in PROFILES and one.grader in GRADERS for one in BENCHMARKS.values())


def test_names_and_aliases_are_found_in_any_case_and_are_unique() -> None:
    assert find("MATH500") is find("math-500") is BENCHMARKS["math500"]
    assert find("skywork_livecodebench_v5").name == "livecodebench_v5"
    names = [name for one in BENCHMARKS.values() for name in (one.name, *one.aliases)]
    assert len(set(names)) == len(names)
    assert all(name == name.lower() for name in names)
    assert find_benchmark("calc") is None
    with pytest.raises(UserError, match=r"^no benchmark 'browscomp'; the nearest is browsecomp"):
        find("browscomp")


def test_a_family_leads_to_its_benchmark() -> None:
    assert of_family("gaia/level2") is BENCHMARKS["gaia"]
    assert of_family("nq") is BENCHMARKS["nq"]
    assert of_family("nq_full") is None


def test_a_benchmark_can_be_registered_under_new_names_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coa.tasks.published.table.BENCHMARKS", Registry("benchmark", BENCHMARKS))

    def mine(name: str, *aliases: str) -> Benchmark:
        return Benchmark(
            name=name,
            hub=Hub(id="me/mine", files=("*.jsonl",)),
            rows=(2,),
            profile="web",
            grader="exact_first",
            metric="pass@1",
            decoding=Decoding(1, 1.0),
            read=plain,
            aliases=aliases,
            terms="mine",
        )

    register(mine("trivia_night", "pub_quiz"))
    assert find("Pub_Quiz").name == "trivia_night"
    for again in (mine("pub_quiz"), mine("other", "aime24")):
        with pytest.raises(ValueError, match="there is a benchmark"):
            register(again)


@pytest.mark.parametrize("wrong", [(0, 1.0, 1.0), (1, -0.1, 1.0), (1, 1.0, 0.0), (1, 1.0, 1.1), (1, 1.0, 1.0, 0, 0)])
def test_decoding_that_cannot_be_is_refused(wrong: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Decoding(*wrong)


# --- mathematics ------------------------------------------------------------------------------------------------------


def test_mathematics() -> None:
    assert item("aime25", problem="1 + 1 ?", answer="2", id="7") == Item(question="1 + 1 ?", answers=("2",), id="7")
    assert item(
        "math500", problem="p", answer="\\frac{1}{2}", solution="..", subject="Algebra", unique_id="t/1.json"
    ) == (Item(question="p", answers=("\\frac{1}{2}",), id="t/1.json"))


def test_the_answer_that_only_a_solution_has_is_the_last_one_boxed() -> None:
    solution = "First \\boxed{1}. Then $x = \\boxed{\\frac{3}{\\sqrt{2}}}$."
    assert item("aime24", problem="p", solution=solution, id=3).answers == ("\\frac{3}{\\sqrt{2}}",)
    with pytest.raises(BadRow, match=r"no `answer`, and no \\boxed"):
        read("aime24", problem="p", solution="so it is 4")
    with pytest.raises(BadRow, match="no `answer`"):
        read("aime24", problem="p", solution="\\boxed{\\frac{1}{2}")


@pytest.mark.parametrize(("answer", "gold"), [(27.0, "27"), ("27.0", "27"), (-3.00, "-3"), ("2.50", "2.50"), (7, "7")])
def test_a_whole_number_with_decimals_is_an_integer(answer: Any, gold: str) -> None:
    assert item("amc23", question="q", answer=answer, id=0) == Item(question="q", answers=(gold,), id="0")


def test_olympiad_problems_keep_their_dollars_and_have_no_images() -> None:
    row = {
        "id": 1606,
        "question": "q",
        "final_answer": ["$\\frac{1}{2 n+2}$"],
        "image_1": None,
        "answer_type": "Expression",
    }
    assert read("olympiadbench", **row) == Item(question="q", answers=("$\\frac{1}{2 n+2}$",), id="1606")
    assert item("olympiadbench", question="q", final_answer=["1", "2"]).answers == ("1, 2",)
    assert read("olympiadbench", **row | {"image_2": {"bytes": b"x"}}) is None


# --- open questions and the web ---------------------------------------------------------------------------------------


def test_open_questions() -> None:
    row = {"id": "test_3", "question": " who ", "golden_answers": ["Nora", "N. Lind"], "metadata": {}}
    assert read("popqa", **row) == Item(question="who", answers=("Nora", "N. Lind"), id="test_3")
    assert item("nq", question="who", answer=["Nora"], data_source="nq").answers == ("Nora",)


def test_gaia_leaves_rows_with_a_file_out_and_tells_levels_apart() -> None:
    row = {
        "task_id": "ab-1",
        "Question": "q",
        "Level": "2",
        "Final answer": "12",
        "file_name": "",
        "Annotator Metadata": {},
    }
    assert read("gaia", **row) == Item(question="q", answers=("12",), id="ab-1", part="level2")
    assert read("gaia", **row | {"file_name": "ab-1.xlsx"}) is None
    published = {"id": 0, "task_id": "ab-1", "question": "q", "answer": "12", "Level": 1}
    assert item("gaia", **published).part == "level1"


def test_web_walker() -> None:
    row = {"question": "q", "answer": "a", "root_url": "http://x.example", "info": {"hop": "single"}}
    assert read("webwalker", **row) == Item(question="q", answers=("a",))


def seal(text: str, canary: str) -> str:
    pad = cycle(hashlib.sha256(canary.encode()).digest())
    return base64.b64encode(bytes(a ^ b for a, b in zip(text.encode(), pad, strict=False))).decode()


def test_browse_comp_is_decrypted_with_the_canary_of_its_row() -> None:
    question = "Which made-up town, longer than the thirty-two bytes of a key, is it?"
    row = {"problem": seal(question, "c1"), "answer": seal("Ardèn", "c1"), "canary": "c1", "problem_topic": "Art"}
    assert read("browsecomp", **row) == Item(question=question, answers=("Ardèn",))
    assert item("browsecomp", question="q", answer="a", topic="Art") == Item(question="q", answers=("a",))
    with pytest.raises(BadRow, match="`problem` can't be decrypted"):
        read("browsecomp", **row | {"canary": "c2"})
    with pytest.raises(BadRow, match="`answer` can't be decrypted"):
        read("browsecomp", **row | {"answer": "not base64"})


def test_a_text_sealed_by_the_published_scheme_is_read() -> None:
    secret = "ORj/Z9MzoXTRUnINOo/PiDugYIXQ4UHKXqy/PRazldkMQb9ywDmsY9gGYxts"
    found = item("browsecomp", problem=secret, answer=secret, canary="canary GUID 1")
    assert found.question == "A made-up text of more than thirty-two bytes."


def test_the_last_exam_leaves_rows_with_an_image_out() -> None:
    row = {"id": "x1", "question": "q", "image": "", "answer": "B", "answer_type": "multipleChoice", "category": "Math"}
    assert read("hle", **row) == Item(question="q", answers=("B",), id="x1")
    assert read("hle", **row | {"image": "data:image/png;base64,xxxx"}) is None


# --- programs ---------------------------------------------------------------------------------------------------------


def sealed(value: object, protocol: int = pickle.HIGHEST_PROTOCOL) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(value, protocol))).decode()


def case(given: str, wanted: str, kind: str = "stdin") -> dict[str, str]:
    return {"input": given, "output": wanted, "testtype": kind}


def lcb(**more: Any) -> dict[str, Any]:
    row = {
        "question_id": "abc_1",
        "question_content": "Add the numbers.",
        "contest_date": "2024-10-12T19:30:00",
        "starter_code": "",
        "public_test_cases": json.dumps([case("1 2\n", "3\n")]),
        "private_test_cases": json.dumps([case("5 6\n", "11\n")]),
        "metadata": "{}",
    }
    return row | more


@pytest.mark.parametrize("hidden", [json.dumps([case("5 6\n", "11\n")]), sealed(json.dumps([case("5 6\n", "11\n")]))])
def test_a_program_that_reads_stdin(hidden: str) -> None:
    found = item("livecodebench_v5", **lcb(private_test_cases=hidden))
    assert (found.id, found.part) == ("abc_1", "")
    assert found.question == f"Add the numbers.\n\n{READ_STDIN}"
    assert read_tests(found.answers[0]).cases == (Feed("1 2\n", "3\n"), Feed("5 6\n", "11\n"))
    assert read_tests(found.answers[0]).time_limit_s == 6


def test_a_program_that_fills_in_starter_code() -> None:
    starter = "class Solution:\n    def add(self, a: int, b: int) -> int:\n        "
    row = lcb(
        starter_code=starter,
        metadata='{"func_name": "add"}',
        public_test_cases=json.dumps([case("1\n2", "3", "functional")]),
        private_test_cases=sealed(json.dumps([case("[1]\n[2]", "[3]", "functional")]), protocol=2),
    )
    found = item("livecodebench_v5", **row)
    assert found.question == f"Add the numbers.\n\n{FILL_IN}\n```py\n{starter.rstrip()}\n```"
    assert read_tests(found.answers[0]).cases == (Call("add", (1, 2), {}, (3,)), Call("add", ([1], [2]), {}, ([3],)))
    with pytest.raises(BadRow, match="no `func_name`"):
        read("livecodebench_v5", **row | {"metadata": "{}"})


def test_published_programs_have_sample_tests_alone() -> None:
    truth = json.dumps({"stdin": ["1 2\n"], "expected_output": ["3\n"], "question_id": "abc_1"})
    found = item("livecodebench_v5", question="Add. Use stdin.", answer=truth, id="abc_1")
    exactly = json.dumps({"compare": "exact"} | json.loads(truth))
    assert found == Item(question="Add. Use stdin.", answers=(exactly,), id="abc_1", part="sample_tests")


ABSOLUTE = 'def absolute(x: float) -> float:\n    """The distance from 0."""'
CHECK = "def check(candidate):\n    for x in (-1.5, 2.5):\n        assert abs(candidate(x) - abs(x)) < 1e-6"


@pytest.mark.parametrize("name", ["humaneval", "humaneval_plus"])
def test_a_row_of_human_eval(name: str) -> None:
    row = {"task_id": "HumanEval/7", "prompt": f"\n\n{ABSOLUTE}\n", "test": CHECK, "entry_point": "absolute"}
    found = item(name, **row, canonical_solution="    return abs(x)\n")
    assert (found.id, found.question) == ("HumanEval/7", f"{FILL_IN}\n```py\n{ABSOLUTE}\n```")
    tests = read_tests(found.answers[0])
    assert tests.setup == ABSOLUTE
    assert tests.cases == (Script(f"{CHECK}\ncheck(absolute)\n", ("absolute",)),)
    with pytest.raises(BadRow, match="no `entry_point`"):
        read(name, **row | {"entry_point": ""})


def test_a_row_of_mbpp() -> None:
    shown = ["assert absolute(-2) == 2", "assert math.isclose(absolute(3), 3)"]
    row = {"task_id": 5, "code": "absolute = abs", "test_list": shown}
    found = item("mbpp", **row, text="Find it.", test_setup_code="", challenge_test_list=["assert absolute(0) == 0"])
    assert (found.id, found.question) == ("5", f"Find it.\n\n{PASSES}\n```py\n{chr(10).join(shown)}\n```")
    tests = read_tests(found.answers[0])
    [script] = tests.cases
    assert tests.time_limit_s == 10
    assert script == Script("\n".join([*shown, "assert absolute(0) == 0"]), ("absolute",))
    sanitized = item("mbpp_sanitized", **row, prompt="Find it.", test_imports=["import math"])
    assert read_tests(sanitized.answers[0]).setup == "import math"
    plus = item("mbpp_plus", **row, prompt="Find it.", test_imports=[], test="for x in (1, 2): assert absolute(x) == x")
    assert plus.question == found.question
    assert read_tests(plus.answers[0]).cases == (Script("for x in (1, 2): assert absolute(x) == x", ("absolute",)),)


def test_releases_are_told_apart_by_the_day_of_the_contest() -> None:
    days = ("2024-08-03", "2024-08-04", "2024-09-22", "2024-10-05", "2024-10-06", "2025-01-04", "2025-01-05")
    rows = [lcb(contest_date=f"{day}T18:30:00") for day in days]
    kept = {
        v: [day for day, row in zip(days, rows, strict=True) if read(f"livecodebench_{v}", **row)] for v in ("v4", "v5")
    }
    assert kept == {"v4": list(days[1:4]), "v5": list(days[2:6])}


def test_code_contests() -> None:
    row = {
        "name": "1_A. Sums",
        "description": "Add.",
        "public_tests": {"input": ["1 2\n"], "output": ["3\n"]},
        "private_tests": {"input": [], "output": []},
        "generated_tests": {"input": ["5 6\n", "7 8\n"], "output": ["11\n", "15\n"]},
        "time_limit": {"seconds": 8, "nanos": 500_000_000},
    }
    found = item("codecontests", **row)
    assert (found.id, found.question) == ("1_A. Sums", f"Add.\n\n{READ_STDIN}")
    tests = read_tests(found.answers[0])
    assert tests.cases == (Feed("1 2\n", "3\n"), Feed("5 6\n", "11\n"), Feed("7 8\n", "15\n"))
    assert tests.time_limit_s == 8.5
    assert (
        read_tests(item("codecontests", **row | {"time_limit": {"seconds": 2, "nanos": 0}}).answers[0]).time_limit_s
        == 6
    )
    with pytest.raises(BadRow, match="`public_tests` is not as many inputs as outputs"):
        read("codecontests", **row | {"public_tests": {"input": ["1"], "output": []}})


MISTAKES = {
    "no hidden tests": ({"private_test_cases": ""}, "no `private_test_cases`"),
    "not base64": ({"private_test_cases": "%%%"}, "is neither JSON nor base64 of compressed data"),
    "not compressed": ({"private_test_cases": base64.b64encode(b"text").decode()}, "is neither JSON nor base64"),
    "not JSON": ({"public_test_cases": "[{"}, "`public_test_cases` is not JSON: "),
    "nested": ({"public_test_cases": "[" * 5000}, "`public_test_cases` is not JSON: "),
    "not tests": ({"public_test_cases": '["x"]'}, "`public_test_cases` is not a list of tests"),
    "number": ({"public_test_cases": "7"}, "`public_test_cases` is not a list of tests"),
    "nothing": ({"public_test_cases": "[]", "private_test_cases": "[]"}, "no tests"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_malformed_program_row_says_what_is_wrong(name: str) -> None:
    changed, expected = MISTAKES[name]
    with pytest.raises(BadRow) as caught:
        read("livecodebench_v5", **lcb(**changed))
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


class Malicious:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("pwned",)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_of_more_than_a_text_is_refused_and_does_nothing(
    protocol: int, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for value in (Malicious(), ["a", "b"], 7, b"bytes", ("a",), {"a": "b"}):
        with pytest.raises(BadRow, match="`private_test_cases` "):
            unseal(sealed(value, protocol))
    assert list(tmp_path.iterdir()) == []
    assert unseal(sealed("[1, 'é', '\U0001f642']", protocol)) == "[1, 'é', '\U0001f642']"


@pytest.mark.parametrize(
    "pickled",
    [
        b"",
        b"\x80\x04",
        b"\x80\x04X\xff\xff\xff\x7fab.",
        b"\x80\x04\x8d" + b"\xff" * 8 + b".",
        b"nonsense",
        b"\x80\x04.",
    ],
)
def test_a_broken_pickle_is_refused(pickled: bytes) -> None:
    with pytest.raises(BadRow, match="`private_test_cases` "):
        unpickle_text(pickled)


def test_a_huge_memo_index_costs_nothing() -> None:
    """`pickle` itself would reserve memory for all memos up to it."""
    assert unpickle_text(b"\x80\x02X\x01\x00\x00\x00ar\xff\xff\xff\x7f.") == "a"


def test_tests_that_inflate_beyond_bounds_are_refused() -> None:
    bomb = sealed("[" + " " * 1_000_000 + "]")
    assert len(bomb) < 3000
    assert len(unseal(bomb)) == 1_000_002
    with pytest.raises(BadRow, match="holds more than 1000000 bytes"):
        unseal(bomb, limit=1_000_000)
