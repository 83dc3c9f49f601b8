"""Data that is brought along, against what the run is evaluated on."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from coa.agent.grammar import Span, render
from coa.config import load
from coa.distill.dataset.rows import Demonstration
from coa.distill.dataset.shards import CARD, read_rows, write_shard
from coa.errors import UserError
from coa.types import Task
from jobs.recipe.checks import check_run
from jobs.recipe.find import find_recipe
from jobs.recipe.schema import Recipe
from jobs.run.console import Console
from jobs.run.run_dir import RunDir
from jobs.stages.external_data import add_external_data
from tests.support.tiny import make_model

OUTPUT = "\n<plan>\nfind it\n</plan>\n\n<wiki_search>\nArden\n</wiki_search>\n\n<observation>\nBerg\n</observation>\n\n"
OUTPUT += "<reflection>\ngood\n</reflection>\n\n<answer>\nBerg\n</answer>\n"
CHAIN = (Span("plan", "p"), Span("wiki_search", "q"), Span("observation", "o"), Span("answer", "Berg"))
NAMED = "Which of the rivers that cross the plain of Berg is the longest one of all ?"


def question(number: int) -> str:
    return f"Who was the mayor of town {number} ?"


def brought_run(folder: Path, out: io.StringIO, *settings: str) -> RunDir:
    """On forty tasks, of which some are held out, and an evaluation set of one."""
    tasks, named = folder / "tasks.jsonl", folder / "named.jsonl"
    rows = [{"id": f"t-{number}", "question": question(number), "answer": "x"} for number in range(40)]
    tasks.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    named.write_text(json.dumps({"question": NAMED, "answer": "x"}))
    config = load(
        Recipe,
        find_recipe("tiny"),
        [f"run_dir={folder / 'run'}", f"tasks.path={tasks}", f"distill.against=[{named}]", *settings],
    )
    config = replace(config, model=replace(config.model, path=str(make_model(folder / "model"))))
    run = RunDir(config, Console(out, io.StringIO()))
    run.prepare()
    return run


def released(path: Path, *questions: str) -> Path:
    path.write_text(json.dumps([{"instruction": one, "input": "", "output": OUTPUT} for one in questions]))
    return path


def test_held_out_questions_and_named_evaluation_sets_are_left_out_of_data_that_is_brought(tmp_path: Path) -> None:
    path, other = tmp_path / "afm.json", tmp_path / "other"
    out = io.StringIO()
    run = brought_run(tmp_path, out, f"sft.data=[{path},{other}]")
    held_out, loss_mask = run.evaluation_tasks()[0].question, run.training_task("sft", 0).question
    released(path, loss_mask, held_out.upper(), "Who leads Arden ?", f"{NAMED} Name it .")
    chain = render(CHAIN)
    rows = [
        Demonstration(
            task=Task(id=one, question=one, answers=("x",), profile="mhqa", family="f"), text=chain, interactions=4
        )
        for one in ("Who leads Berg ?", held_out)
    ]
    write_shard(other, 0, rows, {})
    check_run(run.config)
    add_external_data(run)
    kept = [row.task.question for row in read_rows(run.data)]
    assert kept == [loss_mask, "Who leads Arden ?", "Who leads Berg ?"]
    told = out.getvalue()
    assert (
        "afm.json: 2 of 4 rows, 0 violate their profile's table of transitions; 1 left out as in an evaluation set; "
        "1 left out as in the held-out part of its own tasks\n" in told
    )
    assert (
        "other: 1 of 2 rows, 0 violate their profile's table of transitions; "
        "1 left out as in the held-out part of its own tasks\n" in told
    )
    assert "Questions that are in an evaluation: 3 rows, left out." in (run.data / CARD).read_text()
    listed = [json.loads(line) for line in (run.teachers / "left-out-0.jsonl").read_text().splitlines()]
    assert listed == [
        {"row": 2, "reason": "in the held-out part of its own tasks: exact"},
        {"row": 4, "reason": "in an evaluation set: n-gram"},
    ]
    listed = [json.loads(line) for line in (run.teachers / "left-out-1.jsonl").read_text().splitlines()]
    assert listed == [{"row": 2, "reason": "in the held-out part of its own tasks: exact"}]


MESSAGES = [
    {"role": "user", "content": "Who leads Arden ?"},
    {"role": "assistant", "content": "find it", "tool_calls": [{"id": "c", "function": {"name": "wiki_search"}}]},
    {"role": "tool", "tool_call_id": "c", "content": "Berg"},
    {"role": "assistant", "content": "Berg"},
]
MESSAGES[1]["tool_calls"][0]["function"]["arguments"] = '{"query": "Arden"}'


def test_rows_of_other_formats_are_trained_on_and_the_rest_is_listed(tmp_path: Path) -> None:
    path, out = tmp_path / "rows.jsonl", io.StringIO()
    run = brought_run(tmp_path, out, f"sft.data=[{path}]")
    asked = {"instruction": run.evaluation_tasks()[0].question, "output": "x"}
    turns = [{"from": "human", "value": "Who leads Berg ?"}, {"from": "gpt", "value": "Moss"}]
    rows = [{"messages": MESSAGES}, {"conversations": turns}, asked, {"prompt": "a"}, {"messages": MESSAGES[:2]}]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    check_run(run.config)
    add_external_data(run)
    assert [(row.task.question, row.task.profile, row.source) for row in read_rows(run.data)] == [
        ("Who leads Arden ?", "mhqa", "import:openai"),
        ("Who leads Berg ?", "direct", "import:sharegpt"),
    ]
    assert "rows.jsonl: 2 of 5 rows, 0 violate their profile's table of transitions; 1 left out as in" in out.getvalue()
    listed = [json.loads(line)["reason"] for line in (run.teachers / "left-out-0.jsonl").read_text().splitlines()]
    assert [reason.partition(", expected")[0] for reason in listed] == [
        "in the held-out part of its own tasks: exact",
        "it has the columns prompt",
        "no answer at the end",
    ]


NONE = "none of its 1 rows can be trained on"


@pytest.mark.parametrize(
    ("name", "text", "what"),
    [
        (
            "a.jsonl",
            '{"question": "x", "answer": "y"}',
            f"{NONE} (1 x it is a task, which",
        ),
        (
            "a.jsonl",
            '{"steps": "x", "ending": "y", "seed": 1}',
            f"{NONE} (1 x it is a transcript",
        ),
        (
            "a.jsonl",
            '{"text": "x", "copies": 1, "decisions": ""}',
            f"{NONE} (1 x it is a row of a run's data",
        ),
        ("a.json", '[{"prompt": "x", "chosen": "y"}]', f"{NONE} (1 x it has the columns"),
        ("a.json", "[]", "none of its 0 rows can be trained on"),
        ("a.json", '{"messages": []}', "not a JSON array"),
        ("a.txt", "Who ?", "expected a file that ends in .jsonl, .json, .parquet or .csv"),
        ("a.parquet", "Who ?", "not a Parquet file"),
    ],
)
def test_rows_in_a_foreign_form_are_found_before_anything_starts(
    name: str, text: str, what: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_text(text)
    run = brought_run(tmp_path, io.StringIO(), f"sft.data=[{path}]")
    with pytest.raises(UserError) as caught:
        check_run(run.config)
    assert str(caught.value).startswith(f"sft.data: {path}: {what}")


def test_a_folder_of_rows_in_other_formats_is_no_data_set_of_ours_and_is_read(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    pq.write_table(pa.Table.from_pylist([{"messages": MESSAGES}]), tmp_path / "set/train-00000-of-00001.parquet")
    run = brought_run(tmp_path, io.StringIO(), f"sft.data=[{tmp_path / 'set'}]")
    check_run(run.config)
    add_external_data(run)
    assert [row.source for row in read_rows(run.data)] == ["import:openai"]


def test_data_of_which_nothing_is_left_is_a_mistake(tmp_path: Path) -> None:
    path = released(tmp_path / "afm.json", NAMED, "")
    run = brought_run(tmp_path, io.StringIO(), f"sft.data=[{path}]")
    with pytest.raises(UserError, match=r"^sft\.data: none of its 2 rows can be trained on \(1 x in an"):
        add_external_data(run)
    assert not (run.data / CARD).exists()
