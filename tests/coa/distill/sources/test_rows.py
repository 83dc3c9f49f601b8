"""Rows of data sets for fine-tuning, as runs and as demonstrations."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coa.agent.grammar import Span, render
from coa.distill.dataset.exports import export_alpaca, export_llamafactory
from coa.distill.dataset.rows import Decision, Demonstration
from coa.distill.dataset.shards import write_shard
from coa.distill.sources import Refusal, detect, import_runs
from coa.distill.sources.demonstrations import check_data_file, demonstration_in, read_data
from coa.distill.sources.foreign import Reason, Refused
from coa.distill.sources.released import Unreadable
from coa.errors import UserError
from coa.teams.transcript import Ending
from coa.types import Task
from tests.support.imported_runs import QUESTION, asks, imported, refused, spans, task
from tests.support.junk import JUNK, spoilt

Row = dict[str, Any]
PAGE = (Path(__file__).parents[4] / "docs/formats.md").read_text()
SHOWN = {form: json.loads(text) for form, text in re.findall(r"```json (\w+)\n(.*?)```", PAGE, re.DOTALL)}
CHAINS = {
    form: [tuple(part.strip().split(": ", 1)) for part in line.split(" | ")]
    for form, line in re.findall(r"^(\w+) +(\w+: .*)$", PAGE.split("```chains\n")[1].split("```")[0], re.MULTILINE)
}
USER = {"role": "user", "content": QUESTION}
CALLS = [("wiki_search", "Vexon Labs"), ("observation", "owned")]
DONE = [*CALLS, ("answer", "Berg")]


def write(path: Path, *rows: object) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(list(rows)), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    else:
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def demonstrations(path: Path, **options: Any) -> list[Demonstration]:
    """Of rows that are all trained on."""
    read = [one for _, one in read_data(path, **options)]
    assert not [one for one in read if isinstance(one, str)], read
    return [one for one in read if isinstance(one, Demonstration)]


def chain_of(one: Demonstration) -> list[tuple[str, str]]:
    return [(span.tag, span.text) for span in one.chain]


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".parquet"])
@pytest.mark.parametrize("form", ["openai", "sharegpt", "glaive", "alpaca"])
def test_the_rows_in_the_documents_are_imported_and_trained_on(form: str, suffix: str, tmp_path: Path) -> None:
    path = write(tmp_path / f"rows{suffix}", SHOWN[form])
    assert detect(path) == form
    [run] = imported(form, path)
    assert (spans(run), run.ending, run.team, run.answer) == (CHAINS[form], Ending.ANSWERED, form, "Berg")
    [one] = demonstrations(path)
    assert chain_of(one) == CHAINS[form]
    assert (one.task.answers, one.source, one.decisions) == (("Berg",), f"import:{form}", ())
    assert one.task.question.startswith(QUESTION)
    assert one.task.profile == ("direct" if form == "alpaca" else "mhqa")


HUMAN, SAID = {"from": "human", "value": QUESTION}, {"from": "gpt", "value": "Berg"}
CALL = {"name": "wiki_search", "arguments": {"query": "Vexon Labs"}}
CALLED, SEEN = {"from": "function_call", "value": json.dumps(CALL)}, {"from": "observation", "value": "owned"}
GLAIVE = """<functioncall> {"name": "wiki", "arguments": '{"query": "Vexon Labs"}'} <|endoftext|>"""
TOOL_CALL = f"<tool_call>\n{json.dumps(CALL)}\n</tool_call>"


@pytest.mark.parametrize(
    "turns",
    [
        [HUMAN, CALLED, SEEN, SAID],
        [{"From": "Human", "Value": QUESTION}, CALLED, SEEN, {"from": "GPT", "value": "Berg"}],
        [
            {"from": "user", "value": QUESTION},
            CALLED,
            {"from": "tool", "value": "owned"},
            {**SAID, "from": "assistant"},
        ],
        [HUMAN, {"from": "function_call", "value": CALL}, {"from": "function_response", "value": "owned"}, SAID],
        [
            {"from": "system", "value": "s", "weight": None},
            {**HUMAN, "weight": 0.0},
            CALLED,
            SEEN,
            {**SAID, "weight": 1},
        ],
        [
            HUMAN,
            {"from": "gpt", "value": TOOL_CALL},
            {"from": "tool", "value": "<tool_response>owned</tool_response>"},
            SAID,
        ],
        [HUMAN, {"from": "gpt", "value": "Action: wiki\nAction Input: Vexon Labs\n"}, {**SEEN, "from": "human"}, SAID],
        [HUMAN, {"from": "gpt", "value": '[wiki(query="Vexon Labs")]'}, {**SEEN, "from": "tool"}, SAID],
        [
            HUMAN,
            {"from": "gpt", "value": GLAIVE},
            {"from": "human", "value": "FUNCTION RESPONSE: owned"},
            {**SAID, "value": "Berg <|endoftext|>"},
        ],
        [HUMAN, {"from": "gpt", "value": GLAIVE}, {"from": "tool", "value": "FUNCTION RESPONSE: owned"}, SAID],
        [HUMAN, {"from": "gpt", "value": "<wiki_search> Vexon Labs</wiki_search>"}, SEEN, SAID],
        [USER, {"role": "assistant", "content": TOOL_CALL}, {"role": "tool", "content": "owned"}, SAID],
    ],
)
def test_turns_of_sharegpt_in_many_hands(turns: list[Row], tmp_path: Path) -> None:
    for name in ("conversations", "conversation"):
        path = write(tmp_path / "rows.jsonl", {name: turns})
        assert detect(path) == "sharegpt"
        assert spans(imported("sharegpt", path)[0]) == DONE
        assert chain_of(demonstrations(path)[0]) == DONE


def test_a_result_that_is_an_object_is_its_json(tmp_path: Path) -> None:
    seen = {"from": "observation", "value": {"owner": ["Nora"]}}
    path = write(tmp_path / "rows.jsonl", {"conversations": [HUMAN, CALLED, seen, SAID]})
    assert chain_of(demonstrations(path)[0])[1] == ("observation", '{"owner": ["Nora"]}')


TEXT = {"type": "text", "text": QUESTION}
SEARCH = asks("wiki", {"query": "Vexon Labs"})
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "owned"}
ANSWER = {"role": "assistant", "content": "Berg"}


@pytest.mark.parametrize(
    "messages",
    [
        [USER, SEARCH, RESULT, ANSWER],
        [
            USER,
            {"role": "assistant", "function_call": SEARCH["tool_calls"][0]["function"]},
            {**RESULT, "role": "function"},
            ANSWER,
        ],
        [USER, {**SEARCH, "weight": 1}, RESULT, ANSWER],
        [{**USER, "weight": 0}, SEARCH, {**RESULT, "weight": 0}, ANSWER],
        [USER, SEARCH, {**RESULT, "role": "ipython"}, ANSWER],
        [USER, asks("wiki", json.dumps(json.dumps({"query": "Vexon Labs"}))), RESULT, ANSWER],
        [{"role": "developer", "content": "Rules."}, USER, SEARCH, RESULT, ANSWER],
        [USER, asks("wiki", {"query": "Vexon Labs"}, key=""), {"role": "tool", "content": "owned"}, ANSWER],
        [HUMAN, CALLED, SEEN, SAID],
    ],
)
def test_messages_of_openai_in_many_hands(messages: list[Row], tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", {"messages": messages, "tools": [], "parallel_tool_calls": True})
    assert spans(imported("openai", path)[0]) == DONE
    assert chain_of(demonstrations(path)[0]) == DONE


def test_arguments_with_fractions_of_a_json_array_are_read(tmp_path: Path) -> None:
    call = asks("answer", {"answer": 0.5})
    call["tool_calls"][0]["function"]["arguments"] = {"answer": 0.5}
    path = write(tmp_path / "rows.json", {"messages": [USER, SEARCH, RESULT, call]})
    assert chain_of(demonstrations(path)[0])[-1] == ("answer", "0.5")


@pytest.mark.parametrize(
    "results",
    [
        [{"from": "observation", "value": "owned"}, {"from": "observation", "value": "born"}],
        [{"from": "observation", "value": json.dumps(["owned", "born"])}],
        [{"from": "tool", "value": "<tool_response>owned</tool_response><tool_response>born</tool_response>"}],
    ],
)
def test_calls_at_once_have_their_own_results(results: list[Row], tmp_path: Path) -> None:
    both = {"from": "function_call", "value": json.dumps([CALL, {**CALL, "arguments": {"query": "Nora"}}])}
    path = write(tmp_path / "rows.jsonl", {"conversations": [HUMAN, both, *results, SAID]})
    wanted = [*CALLS, ("wiki_search", "Nora"), ("observation", "born"), ("answer", "Berg")]
    assert chain_of(demonstrations(path)[0]) == wanted


def test_arguments_of_other_tools_that_a_column_adds_do_not_count(tmp_path: Path) -> None:
    calls = [asks("wiki", {"query": "Vexon Labs"}), asks("python", {"code": "print(1)"})]
    for call in calls:
        function = call["tool_calls"][0]["function"]
        function["arguments"] = json.loads(function["arguments"])
    path = write(tmp_path / "r.parquet", *({"messages": [USER, call, RESULT, ANSWER]} for call in calls))
    assert [chain_of(one)[0][1] for one in demonstrations(path)] == ["Vexon Labs", "```py\nprint(1)\n```"]


ANTHROPIC = {"type": "tool_use", "id": "c", "name": "wiki", "input": {"query": "a"}}
LEGACY = {
    "role": "assistant",
    "content": [ANTHROPIC],
    "function_call": CALL,
    "tool_calls": [{"function": CALL}],
}
WHOLE = [*SHOWN.values(), {"messages": [USER, LEGACY, RESULT, ANSWER]}, {**SHOWN["alpaca"], "history": [["a", "b"]]}]


@settings(deadline=None, max_examples=200)
@given(st.sampled_from(WHOLE), st.lists(st.integers(0, 40), min_size=1, max_size=7), JUNK)
def test_a_row_that_is_wrong_somewhere_is_trained_on_or_left_out(row: Row, at: list[int], junk: Any) -> None:
    try:
        one = demonstration_in(spoilt(row, at, junk), 1, "f")
    except (Unreadable, Refused):
        return
    assert one.chain[-1].tag == "answer"


def test_earlier_turns_stay(tmp_path: Path) -> None:
    row = {"instruction": "Her town ?", "input": "", "output": "Berg", "history": [["Who owns it ?", "Nora Lind"]]}
    [one] = demonstrations(write(tmp_path / "rows.jsonl", row))
    assert one.task.question == "Who owns it ?"
    assert chain_of(one) == [("think", "Nora Lind"), ("observation", "Her town ?"), ("answer", "Berg")]
    assert one.decisions == (Decision("quality", "transition violation"),)
    row["output"] = "<wiki_search> Nora</wiki_search><observation> born</observation><answer> Berg</answer>"
    [one] = demonstrations(write(tmp_path / "rows.jsonl", row))
    assert chain_of(one)[2:] == [("wiki_search", "Nora"), ("observation", "born"), ("answer", "Berg")]


@pytest.mark.parametrize(
    ("wanted", "name", "profile"),
    [("mhqa", "wiki", "react"), ("web", "search", "react"), ("mhqa", "python", "react"), ("direct", "wiki", "react")],
)
def test_a_profile_that_allows_the_chain_is_found(wanted: str, name: str, profile: str, tmp_path: Path) -> None:
    call = asks(name, {"input": "1 + 1"})
    [one] = demonstrations(write(tmp_path / "r.jsonl", {"messages": [USER, call, RESULT, ANSWER]}), profile=wanted)
    assert (one.task.profile, one.decisions) == (profile, ())


def test_the_recipes_profile_decides_what_a_search_is(tmp_path: Path) -> None:
    path = write(tmp_path / "r.jsonl", {"messages": [USER, asks("search", {"q": "a"}, "Look."), RESULT, ANSWER]})
    assert [one.task.profile for one in demonstrations(path, profile="multi")] == ["multi"]
    assert chain_of(demonstrations(path, profile="multi")[0])[1] == ("web_search", "a")
    assert chain_of(demonstrations(path, profile="mhqa")[0])[1] == ("wiki_search", "a")


@pytest.mark.parametrize("answer", ["7", r"So \boxed{7}"])
def test_a_result_of_programs_is_mathematics(answer: str, tmp_path: Path) -> None:
    run = asks("python", {"code": "print(7)"}, "Compute.")
    look = {"role": "assistant", "content": f"Seen.\nFinal answer: {answer}"}
    path = write(tmp_path / "r.jsonl", {"messages": [USER, run, {**RESULT, "content": "7"}, look]})
    assert demonstrations(path, profile="code")[0].task.profile == "code"
    [one] = demonstrations(path)
    assert (one.task.profile, one.task.answers, one.task.grader) == ("math", ("7",), "math")


NOT_LEARNT = "a reply of weight 0, which is not to be learnt: turn 2"


def unusable(path: Path) -> str:
    [(_, why)] = read_data(path)
    assert isinstance(why, str)
    return why


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (
            {"prompt": "a", "completion": "b"},
            "it has the columns prompt, completion, expected `messages` (OpenAI), `conversations` (ShareGPT), `chat` "
            "(Glaive), or `instruction` and `output` (Alpaca, released AFM)",
        ),
        (dict.fromkeys("abcdefghij", 1), "it has the columns a, b, c, d, e, f, g, h and 2 more, expected `messages`"),
        (dict.fromkeys("abcdefgh", 1), "it has the columns a, b, c, d, e, f, g, h, expected `messages`"),
        ({"question": "a", "answer": "b", "level": 1}, "it is a task, which `tasks.path` takes, expected `messages`"),
        ({"messages": "hello"}, "not a run of this format: its `messages` are the text 'hello', expected a list"),
        ({"messages": []}, "not a run of this format: it has no reply"),
        ({"messages": [USER]}, "not a run of this format: it has no reply"),
        (
            {"messages": [ANSWER]},
            "not a run of this format: it has no user's message before the first reply",
        ),
        (
            {"messages": [USER, {"text": "x"}]},
            "not a run of this format: turn 2 is an object with text, expected a role",
        ),
        (
            {"conversations": [HUMAN, {"from": "narrator", "value": "x"}]},
            "not a run of this format: turn 2 is from 'narrator', expected a role",
        ),
        (
            {"conversations": [HUMAN, {"from": "function_call", "value": "search it " * 9}, SEEN, SAID]},
            f"not a run of this format: turn 2 is no call: {'search it ' * 8!r}, expected a name and arguments",
        ),
        (
            {"messages": [USER, asks("get_weather", {"a": 1}), RESULT, ANSWER]},
            "a tool that nobody has mapped: get_weather",
        ),
        ({"messages": [USER, SEARCH, ANSWER]}, "a tool call without its result: wiki_search"),
        ({"messages": [USER, SEARCH, RESULT]}, "no answer at the end"),
        (
            {"conversations": [HUMAN, {"from": "gpt", "value": "[wiki(query=a)]"}, SEEN, SAID]},
            "not a run of this format: calls are '[wiki(query=a)]'",
        ),
        ({"messages": [USER, {**SEARCH, "weight": 0}, RESULT, ANSWER]}, NOT_LEARNT),
        ({"conversations": [HUMAN, {**CALLED, "weight": 0}, SEEN, SAID]}, NOT_LEARNT),
        (
            {"instruction": "Who ?", "output": "a", "history": [["b"]]},
            "not a run of this format: its `history` is a list, expected pairs of question and answer",
        ),
        *(
            (row, f"a picture, or another part of a message that is no text: {kind}")
            for row, kind in (
                ({"messages": [{**USER, "content": [{"type": "image_url"}, TEXT]}, ANSWER]}, "image_url"),
                ({"messages": [USER, SEARCH, {**RESULT, "content": [TEXT, {"type": "image"}]}, ANSWER]}, "image"),
                ({"messages": [USER, {**ANSWER, "content": [TEXT, {"type": "output_image"}]}]}, "output_image"),
                ({"messages": [USER, ANSWER, {"role": "user", "content": [{"type": "file"}]}]}, "file"),
                ({"messages": [{"role": "system", "content": [{"type": "image"}]}, USER, ANSWER]}, "image"),
                ({"messages": [{**USER, "images": ["a.png"]}, ANSWER]}, "images"),
                ({"conversations": [{"from": "human", "value": [TEXT, {"type": "video"}]}, SAID]}, "video"),
                ({"conversations": [HUMAN, SAID], "image": "coco/1.jpg"}, "column image"),
                ({"instruction": "<image>Who ?", "output": "a", "images": ["1.jpg"]}, "column images"),
            )
        ),
        (
            {"instruction": "Who ?", "output": ["a"]},
            "not a run of this format: its `output` is a list, expected a text",
        ),
        (
            {"instruction": "Who ?", "output": "a", "history": "b"},
            "not a run of this format: its `history` is the text 'b', expected pairs of question and answer",
        ),
    ],
)
def test_a_row_that_is_left_out_says_what_was_found(row: Row, why: str, tmp_path: Path) -> None:
    assert unusable(write(tmp_path / "rows.jsonl", row)).startswith(why)


@pytest.mark.parametrize(("suffix", "place"), [(".jsonl", "line 1"), (".json", "row 1"), (".parquet", "row 1")])
def test_a_row_of_another_format_is_refused_by_a_named_one(suffix: str, place: str, tmp_path: Path) -> None:
    path = write(tmp_path / f"rows{suffix}", SHOWN["sharegpt"])
    assert refused("openai", path) == Refusal(f"{path}, {place}", Reason.UNREADABLE, "it is sharegpt, expected openai")


def test_the_task_of_a_row_is_named_by_it_or_found_by_its_question(tmp_path: Path) -> None:
    named = {"id": 7, "messages": [{"role": "user", "content": "rewritten"}, ANSWER]}
    rows = [{**named, "task_id": "t2"}, {"messages": [USER, ANSWER]}, named]
    found = list(import_runs("openai", write(tmp_path / "r.jsonl", *rows), [task(), task(name="t2"), task(name="7")]))
    assert [None if isinstance(one, Refusal) else one.task.id for one in found] == ["t2", "t1", "7"]


@pytest.mark.parametrize(
    ("name", "text", "form"),
    [
        ("a.jsonl", '{"session": "s", "messages": [], "reply": {}}', "recorded"),
        ("a.jsonl", '{"session": "s", "mess\n{"session": "s", "messages": [], "reply": {}}', "recorded"),
        ("a.json", '{"steps": [], "output": "x"}', "smolagents"),
        ("a.json", '[{"task": "x", "task_images": null}]', "smolagents"),
        ("a.jsonl", '{"task_id": "x", "intermediate_steps": []}', "oagents"),
        ("a.json", '\ufeff [{"Instruction": "x", "Output": "y"}]', "alpaca"),
    ],
)
def test_the_format_is_detected_by_the_first_record(name: str, text: str, form: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    assert detect(tmp_path / name) == detect(tmp_path) == form


@pytest.mark.parametrize(
    ("text", "what"),
    [("", "missing"), ('{"question": "x"}', "an object with question"), ("[1]", "a list"), ('"x"', "the text 'x'")],
)
def test_what_has_no_known_format_is_shown(text: str, what: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(text)
    with pytest.raises(UserError) as caught:
        detect(tmp_path / "a.jsonl")
    formats = "recorded, smolagents, oagents, openai, sharegpt, glaive, alpaca"
    assert (
        str(caught.value) == f"{tmp_path}/a.jsonl: no known format: its first row is {what}; --format names {formats}"
    )


CHAIN = (Span("plan", "p"), Span("wiki_search", "q"), Span("observation", "o"), Span("answer", "Berg"))


@pytest.mark.parametrize("instructed", [False, True])
@pytest.mark.parametrize("export", [export_alpaca, export_llamafactory])
def test_what_is_exported_is_read_back(export: Any, instructed: bool, tmp_path: Path) -> None:
    of = Task(id="a", question=QUESTION, answers=("Berg",), profile="mhqa", family="f")
    write_shard(tmp_path / "data", 0, [Demonstration(task=of, text=render(CHAIN), interactions=4)], {})
    export(tmp_path / "data", tmp_path / "out", instructed=instructed)
    [one] = demonstrations(tmp_path / "out/distilled.json")
    assert (one.chain, one.task) == (CHAIN, replace(of, id="distilled-1", family="distilled"))


def test_a_file_is_checked_up_to_its_first_row_that_can_be_used(tmp_path: Path) -> None:
    bad: Sequence[Row] = [
        {"prompt": "a"},
        {"prompt": "b"},
        {"messages": [USER, asks("mail", {"to": "a"}), RESULT, ANSWER]},
    ]
    check_data_file(write(tmp_path / "some.jsonl", *bad, SHOWN["openai"]))
    with pytest.raises(UserError) as caught:
        check_data_file(write(tmp_path / "none.jsonl", *bad))
    assert str(caught.value).startswith(
        f"{tmp_path}/none.jsonl: none of its 3 rows can be trained on (2 x it has the columns prompt, expected"
    )
    assert str(caught.value).endswith("; 1 x a tool that nobody has mapped: mail)")
    with pytest.raises(
        UserError, match=r"rows\.txt: expected a file that ends in \.jsonl, \.json, \.parquet or \.csv$"
    ):
        check_data_file(write(tmp_path / "rows.txt", SHOWN["openai"]))


def test_a_file_is_read_to_its_first_good_row_and_so_far_at_least(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coa.distill.sources.demonstrations.CHECKED", 2)
    good, bad = json.dumps(SHOWN["openai"]), '{"prompt": "a"}'
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join((bad, bad, good, "{cut", good)))
    check_data_file(path)
    path.write_text("\n".join((good, "{cut", good)))
    with pytest.raises(UserError, match="line 2"):
        check_data_file(path)


@pytest.mark.parametrize(("name", "place"), [("r.json", "row 2"), ("r.jsonl", "line 2")])
def test_a_row_with_a_key_twice_ends_the_reading(name: str, place: str, tmp_path: Path) -> None:
    rows = [json.dumps(SHOWN["openai"]), '{"messages": [{"role": "user", "content": "a", "content": "b"}]}']
    (tmp_path / name).write_text(f"[{','.join(rows)}]" if name == "r.json" else "\n".join(rows))
    with pytest.raises(UserError) as caught:
        list(read_data(tmp_path / name))
    assert str(caught.value) == f'{tmp_path}/{name}, {place}: the key "content" is there twice'
