"""Files of tasks as other programs write them: read whole, or refused with what was found."""

import gzip
import json
import math
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pandas
import pyarrow
import pyarrow.parquet
import pytest

from coa.errors import UserError
from coa.tasks.loading import load_tasks
from coa.tasks.remarks import remarks_on

CSV = "question,answer\nWhat ?,7\n"
LINES = '{"question": "What ?", "answer": "7"}\n'


def refusal(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        load_tasks(path)
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(str(path))


def table(folder: Path, text: str, name: str = "t.csv") -> Path:
    (folder / name).write_text(text)
    return folder / name


def rows(folder: Path, *values: object) -> Path:
    path = folder / "t.jsonl"
    path.write_text("".join(f"{json.dumps({'question': 'What ?', 'answer': value})}\n" for value in values))
    return path


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("T.CSV", CSV),
        ("T.JSONL", LINES),
        ("T.Json", f"[{LINES}]"),
        ("T.tsv", CSV.replace(",", "\t")),
        ("T.csv.gz", CSV),
        ("T.JSONL.gz", LINES),
    ],
)
def test_a_file_is_read_whatever_the_case_of_its_ending(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    for path in (tmp_path / name, tmp_path):
        [task] = load_tasks(path)
        assert (task.question, task.answers, task.family) == ("What ?", ("7",), "T")


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
@pytest.mark.parametrize("name", ["t.csv", "t.jsonl", "t.json", "t.tsv"])
def test_a_byte_order_mark_makes_no_difference(tmp_path: Path, encoding: str, name: str) -> None:
    text = {"t.csv": CSV, "t.jsonl": LINES, "t.json": f"[{LINES}]", "t.tsv": CSV.replace(",", "\t")}[name]
    (tmp_path / name).write_bytes(text.replace("What", "Größe").encode(encoding))
    assert load_tasks(tmp_path / name)[0].question == "Größe ?"


def test_a_field_may_be_long(tmp_path: Path) -> None:
    [task] = load_tasks(table(tmp_path, f'question,answer\n"What ?","{"x" * 200_000}"\n'))
    assert len(task.answers[0]) == 200_000


def test_lines_without_values_are_left_out(tmp_path: Path) -> None:
    tasks = load_tasks(table(tmp_path, "question,answer,\n,,\nWhat ?,7,\n\n , ,\nWho ?,x,\n"))
    assert [task.question for task in tasks] == ["What ?", "Who ?"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "question,answer\nWhat ?,7\nWhat is 3, 4 ?,7\n",
            ", row 2: 3 fields, but 2 columns (question, answer): put quotes around a field that has ',' in it",
        ),
        ("question;answer\nWhat ?;7\n", ": one column, 'question;answer', whose name has ';' in it: separate columns"),
        ("question\tanswer\nWhat ?\t7\n", r": one column, 'question\tanswer', whose name has '\t' in it: separate"),
        (
            "Question,Answer\nWhat ?,7\n",
            ", row 1: no `question`; the row has 'Question', 'Answer', of which 'Question' is the nearest",
        ),
        (
            "question, answer\nWhat ?, 7\n",
            ", row 1: no `answer`: a text, or a list of accepted texts; the row has 'question', ' answer', of which "
            "' answer' is the nearest",
        ),
        ("question,anwser\nWhat ?,7\n", ", row 1: no `answer`: a text, or a list of accepted texts; the row has"),
        ("question,answer,answer\nWhat ?,7,8\n", ": two columns are called 'answer'"),
        ('question,answer\nWhat ?,7\n"a ?,b\n', ", line 3: not CSV: unexpected end of data"),
        ("question,answer\nWhat ?,nan\n", ", row 1: no `answer`: a text, or a list of accepted texts; `answer` is NaN"),
        (
            "question,answer\nWhat ?,\"['7', 'seven']\"\n",
            ", row 1: `answer` is the text \"['7', 'seven']\", which looks like a list of accepted answers",
        ),
        (
            "question,answer\nWhat ?,\"['7' 'seven']\"\n",
            ", row 1: `answer` is the text \"['7' 'seven']\", which looks like a list of accepted answers",
        ),
        (
            "question,answer\nWhat ?,\"array(['7'], dtype=object)\"\n",
            ", row 1: `answer` is the text \"array(['7'], dtype=object)\", which looks like a list of accepted answers",
        ),
        (
            "question,answer\nWhat ?,\"{'text': ['7'], 'start': [1]}\"\n",
            ", row 1: `answer` is the text \"{'text': ['7'], 'start': [1]}\", which looks like a list of accepted",
        ),
        (
            "question,answer\nWhat ?,#REF!\n",
            ', row 1: `answer` is "#REF!", which a spreadsheet writes where a formula failed',
        ),
        (
            "question,answer\nWho ?,7\nWhat ?,1.23457E+11\n",
            ', row 2: `answer` is "1.23457E+11", a number rounded by a spreadsheet: give the column a format',
        ),
    ],
)
def test_a_table_that_is_refused_shows_what_was_found(tmp_path: Path, text: str, said: str) -> None:
    assert refusal(table(tmp_path, text)).startswith(said)


def test_a_table_of_pandas_is_read_with_its_index_and_without_its_missing_values(tmp_path: Path) -> None:
    frame = pandas.DataFrame(
        {"question": ["a, b ?", 'c "d"\n?'], "answer": ["[1, 2]", "x"], "profile": ["math", None], "id": [3.0, None]}
    )
    frame.to_csv(tmp_path / "t.csv")
    first, second = load_tasks(tmp_path / "t.csv")
    assert (first.question, first.answers, first.profile, first.id) == ("a, b ?", ("[1, 2]",), "math", "3.0")
    assert (second.question, second.profile, second.id) == ('c "d"\n?', "mhqa", "t-1")
    frame.astype(str).to_csv(tmp_path / "t.csv")
    assert load_tasks(tmp_path / "t.csv")[1].id == "t-1"


@pytest.mark.parametrize(
    ("cell", "answers"),
    [
        ("1.2E+11", ("120000000000", "1.2E+11")),
        ("-5E+15", ("-5000000000000000", "-5E+15")),
        ("1.2e+11", ("1.2e+11",)),
        ("1.2E-05", ("1.2E-05",)),
        ("E+11", ("E+11",)),
        ("NULL", ("NULL",)),
        ("None", ("None",)),
        ("N/A", ("N/A",)),
    ],
)
def test_an_answer_in_a_cell_is_what_it_shows(tmp_path: Path, cell: str, answers: tuple[str, ...]) -> None:
    assert load_tasks(table(tmp_path, f"question,answer\nWhat ?,{cell}\n"))[0].answers == answers


def test_many_answers_that_may_mean_none_are_worth_one_remark(tmp_path: Path) -> None:
    def remarks(*cells: str) -> list[str]:
        lines = (f"What is {n} ?,{cell}" for n, cell in enumerate(cells))
        return list(remarks_on("t.csv", load_tasks(table(tmp_path, "\n".join(["question,answer", *lines])))))

    assert remarks("None", "7", "NULL") == []
    assert remarks("NULL", "7", "None", "NULL", "none") == [
        "t.csv: 3 answers of 5 tasks are NULL or None: leave these rows out if that means that there is no answer"
    ]
    assert remarks("7", "1.2E+11") == [
        "t.csv: answers of 1 of 2 tasks are as a spreadsheet shows large numbers, which it may have rounded: 1.2E+11 "
        "of t-1"
    ]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("t.jsonl", LINES + '{"question": "a", "answer": "7", "answer": "8"}', ', line 2: the key "answer"'),
        ("t.jsonl", '{"question": "a", "answer": "7", "extra_info": {"a": 1, "a": 1}}', ', line 1: the key "a"'),
        ("t.json", f'[{LINES},\n{{"question": "a", "question": "b", "answer": "8"}}]', ', row 2: the key "question"'),
        ("t.json", '\n[{"a": [{"b": 1, "b": 2}]}, {"c": 1, "c": 2}]', ', row 1: the key "b"'),
    ],
)
def test_a_row_with_a_key_twice_is_refused(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text)
    assert refusal(tmp_path / name) == f"{said} is there twice"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (True, "true"),
        (None, "null"),
        (math.nan, "NaN"),
        (-math.inf, "-Infinity"),
        ([], "[]"),
        (["7", math.nan], '["7", NaN]'),
        ([["7"], ["8"]], '[["7"], ["8"]]'),
        ([None], "[null]"),
        ({"value": "7", "aliases": []}, "an object with 'value', 'aliases'"),
        (" ", '" "'),
        ([{"a": 1}] * 100, '[{"a": 1}, '),
    ],
)
def test_an_answer_that_is_no_answer_is_shown(tmp_path: Path, value: object, shown: str) -> None:
    said = refusal(rows(tmp_path, "fine", value))
    assert said.startswith(f", line 2: no `answer`: a text, or a list of accepted texts; `answer` is {shown}")
    assert len(said) < 200


def test_missing_values_of_pandas_are_no_profile_family_or_id(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    row = {"question": "What ?", "answer": 7, "profile": math.nan, "family": math.nan, "id": math.nan, "grader": None}
    path.write_text(f"{json.dumps(row)}\n{json.dumps(row)}\n")
    assert [(task.id, task.profile, task.family) for task in load_tasks(path)] == [
        ("t-0", "mhqa", "t"),
        ("t-1", "mhqa", "t"),
    ]


@pytest.mark.parametrize(
    ("value", "answers"),
    [(Decimal("7.50"), ("7.50",)), (7, ("7",)), (["7", "seven"], ("7", "seven")), (1e-7, ("1e-07",))],
)
def test_the_types_of_parquet_are_answers(tmp_path: Path, value: object, answers: tuple[str, ...]) -> None:
    path = tmp_path / "t.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([{"question": "What ?", "answer": value}]), path)
    assert load_tasks(path)[0].answers == answers


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (
            lambda frame, path: frame.to_json(path),
            ": not a JSON array of tasks, but an object with 'question', 'answer'; one object per line goes into",
        ),
        (
            lambda frame, path: frame.to_json(path, orient="records", lines=True),
            ", line 2: not JSON: Extra data at column 1; one object per line goes into a .jsonl file",
        ),
    ],
)
def test_json_of_another_shape_is_refused_with_the_right_ending(
    tmp_path: Path, write: Callable[[pandas.DataFrame, Path], None], said: str
) -> None:
    path = tmp_path / "t.json"
    write(pandas.DataFrame({"question": ["What ?", "Who ?"], "answer": ["7", "8"]}), path)
    assert refusal(path).startswith(said)


def test_an_array_in_a_file_of_lines_is_refused_with_the_right_ending(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(f"[\n{LINES}]")
    assert refusal(path) == ", line 1: not JSON: Expecting value at column 2; a JSON array goes into a .json file"


def test_a_missing_file_is_named_with_the_nearest(tmp_path: Path) -> None:
    table(tmp_path, CSV, "questions.csv")
    assert refusal(tmp_path / "question.csv").endswith("No such file or directory; there is questions.csv")
