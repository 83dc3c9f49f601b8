"""Tasks from files: both layouts, and one clear line for every mistake."""

import gzip
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from coa.errors import UserError
from coa.grading.graders import GRADERS
from coa.tasks.loading import load, load_tasks, source, split
from coa.tasks.published.table import BENCHMARKS as BENCHMARKS_KNOWN
from coa.tasks.published.table import find
from coa.types import Task
from tests.support.registries import lend

BENCHMARKS = Path(os.environ.get("COA_BENCHMARKS", "../shared/benchmarks"))
needs_benchmarks = pytest.mark.skipif(
    not (BENCHMARKS / "nq.jsonl").exists(), reason=f"no benchmark files in {BENCHMARKS} (set COA_BENCHMARKS)"
)


def write_lines(path: Path, *rows: object) -> Path:
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return path


def write_parquet(path: Path, *rows: Mapping[str, object]) -> Path:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)
    return path


def published(
    question: str, truth: object, source: str = "aime24", index: str = "0", **more: object
) -> dict[str, object]:
    instructions = "Use 'plan', 'code'.\n<code>\n...\n</code>\n<answer>\n...\n</answer>\nRequirements: no Task here."
    return {
        "data_source": source,
        "prompt": [{"role": "user", "content": f"{instructions}\n\nTask:\n{question}"}],
        "reward_model": {"style": "rule", "ground_truth": truth},
        "extra_info": {"index": index},
        **more,
    }


def test_a_row_of_question_and_answer_is_a_task(tmp_path: Path):
    path = write_lines(
        tmp_path / "mine.jsonl",
        {"question": " What is 3 * 4 - 5 ?", "answer": 7, "profile": "code", "grader": "math", "id": "sum"},
        "",
        {"question": "Who was first?", "answer": ["Nora Lind", "N. Lind"], "family": "history"},
    )
    assert load_tasks(path, profile="web") == (
        Task(
            id="sum",
            question="What is 3 * 4 - 5 ?",
            answers=("7",),
            profile="code",
            family="mine",
            grader="math",
        ),
        Task(
            id="mine-2",
            question="Who was first?",
            answers=("Nora Lind", "N. Lind"),
            profile="web",
            family="history",
            grader="judge",
        ),
    )


def test_the_same_rows_load_from_json_lines_an_array_and_parquet(tmp_path: Path):
    rows = [
        {"question": "a ?", "answer": ["x", "y"], "profile": None},
        {"question": "b ?", "answer": ["z"], "profile": "web"},
    ]
    lines = load_tasks(write_lines(tmp_path / "t.jsonl", *rows))
    (tmp_path / "t.json").write_text(json.dumps(rows))
    assert load_tasks(tmp_path / "t.json") == lines
    assert load_tasks(write_parquet(tmp_path / "t.parquet", *rows)) == lines


def test_the_question_is_separated_from_baked_in_instructions(tmp_path: Path):
    question = "Let $x$ be 3.\n\nTask: find Question: $x$."
    path = write_parquet(tmp_path / "t.parquet", published(question, "3"))
    assert load_tasks(path) == (
        Task(id="aime24-0", question=question, answers=("3",), profile="math", family="aime24", grader="math"),
    )


def test_a_published_prompt_without_instructions_is_the_question(tmp_path: Path):
    row = published("", "3") | {"prompt": [{"role": "user", "content": "Which Task: is this?"}]}
    [task] = load_tasks(write_lines(tmp_path / "t.jsonl", row))
    assert task.question == "Which Task: is this?"


def test_answers_wrapped_with_their_question_are_unwrapped_but_latex_is_not(tmp_path: Path):
    wrapped = json.dumps({"target": ["Nora", "Lind"], "question": "who"})
    rows = [
        published("a", wrapped, source="nq"),
        published("b", {"target": ["x"]}, source="nq", index="1"),
        published("c", "{1, 2}", index="2"),
    ]
    tasks = load_tasks(write_lines(tmp_path / "t.jsonl", *rows))
    assert [task.answers for task in tasks] == [("Nora", "Lind"), ("x",), ("{1, 2}",)]
    assert [task.profile for task in tasks] == ["mhqa", "mhqa", "math"]


def test_programs_are_graded_by_their_tests_and_kept_whole(tmp_path: Path):
    truth = json.dumps({"stdin": ["1\n"], "expected_output": ["2\n"]})
    [task] = load_tasks(write_lines(tmp_path / "t.jsonl", published("p", truth, source="lcb", ability="coding")))
    assert (task.profile, task.grader, task.answers) == ("code", "tests", (truth,))


def test_a_known_source_brings_its_profile_grader_and_family(tmp_path: Path):
    path = write_lines(
        tmp_path / "t.jsonl",
        {"question": "a ?", "answer": "b", "data_source": "TQ"},
        {"question": "a ?", "answer": "27.0", "data_source": "amc23", "id": 3},
        {"question": "a ?", "answer": "b", "data_source": "nq", "profile": "web", "grader": "f1", "family": "mine"},
    )
    assert load_tasks(path, profile="code") == (
        Task(id="triviaqa-0", question="a ?", answers=("b",), profile="mhqa", family="triviaqa", grader="exact_first"),
        Task(id="amc23-3", question="a ?", answers=("27",), profile="math", family="amc23", grader="math"),
        Task(id="nq-2", question="a ?", answers=("b",), profile="web", family="mine", grader="f1"),
    )


TWO_TESTS = json.dumps({"stdin": ["1\n", "2\n"], "expected_output": ["2\n", "3\n"]})


def test_a_grader_that_is_asked_for_is_that_of_open_questions_whose_rows_name_none(tmp_path: Path):
    path = write_lines(
        tmp_path / "t.jsonl",
        {"question": "a ?", "answer": "b"},
        {"question": "a ?", "answer": "b", "grader": "f1"},
        {"question": "a ?", "answer": "b", "data_source": "nq"},
        {"question": "a ?", "answer": "b", "profile": "multi"},
    )
    assert [task.grader for task in load_tasks(path)] == ["exact", "f1", "exact_first", "judge"]
    assert load_tasks(path, profile="web")[0].grader == "judge"
    asked = load(str(path), profile="web", grader="exact")
    assert [task.grader for task in asked] == ["exact", "f1", "exact", "exact"]
    [gaia] = load(f"gaia={write_lines(tmp_path / 'g.jsonl', {'Question': 'a ?', 'Final answer': 'b'})}", grader="exact")
    assert gaia.grader == "exact"


def test_programs_keep_their_tests_and_mathematics_its_way_whatever_grader_is_asked_for(tmp_path: Path):
    bare = {"prompt": [{"role": "user", "content": "What is 1 + 2 ?"}]}
    path = write_lines(
        tmp_path / "t.jsonl",
        published("a", TWO_TESTS, source="mine", ability="coding"),
        published("a", TWO_TESTS, source="livecodebench_v5", ability="coding"),
        {"question": "a ?", "answer": TWO_TESTS, "profile": "code"},
        published("a", "3", source="mine"),
        published("a", "3"),
        {"question": "a ?", "answer": "3", "profile": "math"},
        published("", "3", source="plain") | bare,
    )
    tasks = load_tasks(path, profile="code", grader="exact")
    assert [task.grader for task in tasks] == ["tests"] * 3 + ["math"] * 4
    assert tasks == load_tasks(path, profile="code")
    program = published("", TWO_TESTS, source="mine", ability="coding") | bare
    [task] = load_tasks(write_lines(tmp_path / "p.jsonl", program), profile="web", grader="exact")
    assert (task.profile, task.grader) == ("web", "tests")


def test_a_profile_that_overrules_brings_the_way_its_open_questions_are_graded(tmp_path: Path):
    path = write_lines(
        tmp_path / "t.jsonl",
        {"question": "a ?", "answer": "b"},
        {"question": "a ?", "answer": "b", "profile": "web"},
        {"question": "a ?", "answer": "b", "profile": "web", "grader": "f1"},
        {"question": "a ?", "answer": "b", "data_source": "nq"},
        {"question": "a ?", "answer": "3", "profile": "math"},
        {"question": "a ?", "answer": TWO_TESTS, "profile": "code"},
        published("a", TWO_TESTS, source="mine", ability="coding"),
    )
    own = ["f1", "exact_first"]
    worked_out = ["math", "tests", "tests"]
    for profile, grader in (("mhqa", "exact"), ("multi", "judge")):
        tasks = load(str(path), profile=profile, overrule=True)
        assert {task.profile for task in tasks} == {profile}
        assert [task.grader for task in tasks] == [grader, grader, *own, *worked_out]
    asked = load(str(path), profile="multi", grader="f1", overrule=True)
    assert [task.grader for task in asked] == ["f1", "f1", "f1", "f1", *worked_out]


def test_a_grader_of_ones_own_keeps_its_tasks_and_may_be_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    lend(monkeypatch, GRADERS, "close", GRADERS["exact"])
    lend(monkeypatch, BENCHMARKS_KNOWN, "nq", replace(find("nq"), grader="close"))
    path = write_lines(tmp_path / "nq.jsonl", {"question": "a ?", "answer": "1"})
    assert [task.grader for task in load_tasks(path, grader="exact")] == ["close"]
    path = write_lines(tmp_path / "mine.jsonl", {"question": "a ?", "answer": "1"})
    assert [task.grader for task in load_tasks(path, grader="close")] == ["close"]


def test_a_grader_that_nobody_knows_is_a_mistake_even_where_no_row_would_have_it(tmp_path: Path):
    path = write_lines(tmp_path / "t.jsonl", {"question": "a ?", "answer": "3", "profile": "math"})
    with pytest.raises(UserError, match="line 1: unknown grader 'exat'"):
        load_tasks(path, grader="exat")


def test_plain_answers_of_the_code_profile_are_mathematics_or_words(tmp_path: Path):
    bare = published("", "3", source="mine") | {"prompt": [{"role": "user", "content": "What is 1 + 2 ?"}]}
    rows = ({"question": "a ?", "answer": answer} for answer in ("Berg", 7.0, "1/2", "12 May"))
    path = write_lines(tmp_path / "t.jsonl", *rows, bare)
    assert [task.grader for task in load_tasks(path, profile="code")] == ["exact", "math", "math", "exact", "math"]


@pytest.mark.parametrize(
    ("instructions", "ability", "expected"),
    [
        ("<code>\n..\n</code>", "fact-reasoning", ("math", "math")),
        ("'code', then 'answer'", "coding", ("code", "tests")),
        ("<wiki_search> finds", "fact-reasoning", ("mhqa", "exact")),
        ("<web_search> and <crawl_page>; decode what you read", "fact-reasoning", ("web", "judge")),
        ("<web_search>, <crawl_page>, <code>", "fact-reasoning", ("multi", "judge")),
        ("think", "fact-reasoning", ("web", "judge")),
    ],
)
def test_a_row_of_an_unknown_source_has_the_profile_of_its_instructions(
    tmp_path: Path, instructions: str, ability: str, expected: tuple[str, str]
):
    truth = json.dumps({"stdin": ["1"], "expected_output": ["2"]}) if ability == "coding" else "2"
    content = f"{instructions}\n<answer>\n..\n</answer>\n\nQuestion: a ?"
    row = published("", truth, source="mine", ability=ability) | {"prompt": [{"role": "user", "content": content}]}
    [task] = load_tasks(write_lines(tmp_path / "t.jsonl", row), profile="web")
    assert (task.profile, task.grader) == expected
    assert (task.id, task.question, task.answers, task.family) == ("mine-0", "a ?", (truth,), "mine")


def test_only_the_rows_that_are_asked_for_are_read(tmp_path: Path):
    path = write_lines(tmp_path / "t.jsonl", GOOD, GOOD, "not JSON")
    assert len(load_tasks(path, rows=2)) == 2


def test_what_is_asked_for_is_a_benchmark_a_path_or_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "aime24").mkdir()
    (tmp_path / "a=b.jsonl").touch()
    asked = {
        spec: (found.path, found.benchmark and found.benchmark.name)
        for spec in ("aime24", "./aime24", "MATH-500=/x/y.parquet", "a=b.jsonl", "gone.jsonl", "gone/too")
        if (found := source(spec))
    }
    assert asked == {
        "aime24": (None, "aime24"),
        "./aime24": (Path("aime24"), None),
        "MATH-500=/x/y.parquet": (Path("/x/y.parquet"), "math500"),
        "a=b.jsonl": (Path("a=b.jsonl"), None),
        "gone.jsonl": (Path("gone.jsonl"), None),
        "gone/too": (Path("gone/too"), None),
    }


@pytest.mark.parametrize(
    ("spec", "name", "nearest"), [("aime26", "aime26", "aime2"), ("hotpot=x.json", "hotpot", "hotpotqa")]
)
def test_an_unknown_benchmark_names_the_nearest(spec: str, name: str, nearest: str):
    with pytest.raises(UserError, match=rf"^no benchmark '{name}'; the nearest is {nearest}"):
        source(spec)


def test_a_file_read_as_a_benchmark_has_its_tasks(tmp_path: Path):
    path = write_lines(tmp_path / "t.jsonl", {"problem": "a ?", "answer": "4", "unique_id": "test/7"})
    assert load(f"math500={path}") == (
        Task(id="math500-test/7", question="a ?", answers=("4",), profile="math", family="math500", grader="math"),
    )


def test_a_repeated_index_in_a_published_file_gets_an_id_of_its_own(tmp_path: Path):
    path = write_lines(tmp_path / "t.jsonl", published("a", "1"), published("b", "2"))
    assert [task.id for task in load_tasks(path)] == ["aime24-0", "aime24-0-line-2"]


GOOD = {"question": "a ?", "answer": "b"}
MISTAKES = {
    "bad json": (['{"question": "a ?", '], "line 2: not JSON: "),
    "no answer": ([{"question": "a ?"}], "line 2: no `answer`: "),
    "empty answer": ([{"question": "a ?", "answer": []}], "line 2: no `answer`: "),
    "blank alias": ([{"question": "a ?", "answer": ["x", " "]}], "line 2: no `answer`: "),
    "answer of a wrong type": ([{"question": "a ?", "answer": {"x": 1}}], "line 2: no `answer`: "),
    "no question": ([{"answer": "b"}], "line 2: no `question`"),
    "not an object": (["[1]"], "line 2: not a JSON object"),
    "unknown profile": (
        [GOOD | {"profile": "poet"}],
        "line 2: unknown profile 'poet': known are code, math, ",
    ),
    "unhashable profile": ([GOOD | {"profile": ["web"]}], "line 2: unknown profile"),
    "unknown grader": ([GOOD | {"grader": "taste"}], "line 2: unknown grader 'taste': known are "),
    "answer that is no tests": (
        [GOOD | {"profile": "code", "grader": "tests", "answer": "42"}],
        "line 2: the tests are not a JSON object",
    ),
    "two answers of tests": (
        [GOOD | {"profile": "code", "grader": "tests", "answer": ['{"stdin": []}', "{}"]}],
        "line 2: more than one `answer`: ",
    ),
    "long mathematics": (
        [GOOD | {"grader": "math", "answer": ["7", "1" * 2001]}],
        "line 2: an `answer` of more than 2000 characters or 100 brackets equals nothing",
    ),
    "nested mathematics": ([GOOD | {"grader": "math", "answer": "(" * 101}], "line 2: an `answer` of more than "),
    "nested JSON": (["[" * 5000], "line 2: can't be read: "),
    "long number": (['{"answer": ' + "7" * 5000 + "}"], "line 2: can't be read: "),
    "nested truth": (
        [published("q", '{"a": ' * 5000, source="mine", ability="coding")],
        "line 2: the tests are not JSON: ",
    ),
    "id used twice": ([GOOD | {"id": 1}, GOOD | {"id": "1"}], "line 3: id '1' was used before"),
    "published without truth": ([{"prompt": [], "reward_model": {}}], "line 2: no `prompt` with messages, or no "),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line_that_names_file_and_line(tmp_path: Path, name: str):
    rows, expected = MISTAKES[name]
    path = write_lines(tmp_path / "t.jsonl", GOOD, *rows)
    with pytest.raises(UserError) as caught:
        load_tasks(path)
    assert str(caught.value).startswith(f"{path}, {expected}")
    assert "\n" not in str(caught.value)


def test_a_parquet_row_without_answer_is_named_by_its_row(tmp_path: Path):
    path = write_parquet(tmp_path / "t.parquet", GOOD, {"question": "b ?", "answer": None})
    with pytest.raises(UserError, match=r"t\.parquet, row 2: no `answer`"):
        load_tasks(path)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("gone.jsonl", None, "cannot be read: No such file or directory"),
        ("gone.parquet", None, "cannot be read: "),
        ("text.parquet", b"question,answer\n", "not a Parquet file: "),
        ("nested.json.gz", gzip.compress(b"[" * 5000, mtime=0), "can't be read: "),
        ("empty.jsonl", b"\n", "no tasks in it"),
        ("object.json", b"{}", "not a JSON array of tasks"),
        ("nested.json", b"[" * 5000, "can't be read: "),
        ("number.json", b"[\n" + b"7" * 5000 + b"]", "can't be read: "),
        ("tasks.txt", b"", "tasks come in files that end in .jsonl, .json, .parquet, .csv, .tsv"),
        ("empty.csv", b"", "no tasks in it"),
        ("empty", None, "tasks come in files that end in "),
    ],
)
def test_an_unreadable_file_is_one_line_that_names_it(tmp_path: Path, name: str, content: bytes | None, expected: str):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        load_tasks(path)
    assert str(caught.value).startswith(f"{path}: {expected}")
    assert "\n" not in str(caught.value)


def asking(*questions: str) -> list[Task]:
    return [
        Task(id=f"t-{number}", question=question, answers=("a",), profile="web", family="f")
        for number, question in enumerate(questions)
    ]


def test_the_share_that_is_asked_for_is_held_out_by_the_questions_alone():
    tasks = asking(*(f"What is {number} ?" for number in range(1000)))
    training, held_out = split(tasks, 0.2)
    assert len(held_out) == 200
    assert {*training} | {*held_out} == {*tasks}
    assert not {*training} & {*held_out}
    assert {*split(tasks[::-1], 0.2)[1]} == {*held_out}
    renamed = [replace(task, id=f"x-{task.id}") for task in tasks]
    assert [task.question for task in split(renamed, 0.2)[1]] == [task.question for task in held_out]
    assert [len(split(tasks[:n], 0.25)[1]) for n in (2, 3, 5, 200)] == [0, 1, 1, 50]
    grown = {*split(tasks[:900], 0.2)[1]}
    assert len(grown & {*held_out}) > 165, "few change sides where a file grows"
    assert split(tasks, 0.0) == (tuple(tasks), ())


def test_rows_that_repeat_a_question_are_on_one_side():
    again = [f"what is  {number}" for number in range(50)]
    tasks = asking(*(f"What is {number} ?" for number in range(50)), *again, *again, *again)
    training, held_out = split(tasks, 0.25)
    assert (len(training), len(held_out)) == (152, 48)
    trained, evaluated = ({task.question.split()[2] for task in side} for side in (training, held_out))
    assert (len(trained), len(evaluated)) == (38, 12)
    assert not trained & evaluated


def test_a_question_with_more_rows_than_are_held_out_is_trained_on():
    tasks = asking(*["What is 1 ?"] * 50, *(f"What is {number} ?" for number in range(2, 52)))
    training, held_out = split(tasks, 0.2)
    assert len(held_out) == 20
    assert sum(task.question == "What is 1 ?" for task in training) == 50
    assert split(tasks[:50], 0.5) == (tuple(tasks[:50]), ())


@needs_benchmarks
@pytest.mark.parametrize(
    ("name", "count", "profile", "grader"),
    [
        ("aime24.parquet", 30, "math", "math"),
        ("aime25.parquet", 30, "math", "math"),
        ("math500.parquet", 500, "math", "math"),
        ("livecodebench_v5.parquet", 167, "code", "tests"),
        ("nq.jsonl", 3610, "mhqa", "exact_first"),
    ],
)
def test_published_benchmarks_load_without_their_instructions(name: str, count: int, profile: str, grader: str):
    tasks = load_tasks(BENCHMARKS / name)
    assert len({task.id for task in tasks}) == len(tasks) == count
    assert {(task.profile, task.grader) for task in tasks} == {(profile, grader)}
    baked_in = ("<answer>", "<plan>", "special tokens", "Always follow")
    assert not [task.id for task in tasks if any(phrase in task.question for phrase in baked_in)]
    assert len({task.question[:200] for task in tasks}) > 0.95 * count


@needs_benchmarks
def test_a_program_is_asked_for_with_what_its_row_says_of_stdin_or_starter_code():
    tasks = load_tasks(BENCHMARKS / "livecodebench_v5.parquet")
    fill_in = [task for task in tasks if "functional" in json.loads(task.answers[0])]
    assert (len(fill_in), len(tasks)) == (62, 167)
    assert all("starter code" in task.question and "class Solution" in task.question for task in fill_in)
    assert all("STDOUT" in task.question for task in tasks if task not in fill_in)
    assert {task.family for task in tasks} == {"livecodebench_v5/sample_tests"}
