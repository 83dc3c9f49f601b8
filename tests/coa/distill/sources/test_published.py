"""The prompt and the lines of released rows, read from these: what is trained is what the rows say, byte by byte."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from coa.agent.chain_format import OWN, ChainFormat
from coa.agent.episode import AgentConfig
from coa.agent.grammar import render
from coa.config import load
from coa.distill.dataset.exports import FORMATS
from coa.distill.dataset.external import add_rows
from coa.distill.dataset.rows import Demonstration
from coa.distill.dataset.tokens import read_tokens, tokenise
from coa.distill.sources.demonstrations import read_data
from coa.distill.sources.published import LOOKED_AT, format_in
from coa.errors import UserError
from tests.support.fakes import CLOSING, CODECS, OPENING
from tests.support.released import laid_out, row_of

TAGS = "You may use: <think>, <plan>, <wiki_search>, <observation>, <reflection>, <answer>.\nAlways plan."
PROMPT = f"{TAGS}\n\nQuestion: "


def row_on(town: str, output: str | None = None, prompt: str = PROMPT) -> dict[str, Any]:
    spans = ("plan", "find it"), ("wiki_search", town), ("observation", f"Doc 1 : {town}\n\nis old ."), ("answer", town)
    return row_of(f"{prompt}Who leads {town} ?", output or laid_out(*spans))


ROWS = [row_on("Arden"), row_on("Berg")]
LINES = ChainFormat(prompt=PROMPT, before="\n", opened="\n", closed="\n", after="\n", observed="\n\n")


def write(path: Path, rows: object) -> Path:
    path.write_text(json.dumps(rows))
    return path


def test_prompt_and_white_space_are_those_of_the_rows(tmp_path: Path) -> None:
    assert format_in(write(tmp_path / "a.json", ROWS), "mhqa") == asdict(LINES)


@pytest.mark.parametrize("form", [OWN, ChainFormat(opened="\n", closed="\n", after="\n\n", observed="\n\n\n")])
def test_any_format_is_read_from_what_is_written_in_it(tmp_path: Path, form: ChainFormat) -> None:
    rows = [one for _, one in read_data(write(tmp_path / "a.json", ROWS)) if isinstance(one, Demonstration)]
    written = [row_on(one.task.answers[0], render(one.chain, form)) for one in rows]
    assert format_in(write(tmp_path / "b.json", written), "mhqa") == {**asdict(form), "prompt": PROMPT}


def test_the_format_is_that_of_most_rows(tmp_path: Path) -> None:
    odd = row_on("Carl", ROWS[0]["output"].replace("\n<wiki", "<wiki"))
    other = row_on("Dorn", prompt=f"{TAGS}\n\nTask: ")
    assert format_in(write(tmp_path / "a.json", [odd, other, *ROWS]), "mhqa") == asdict(LINES)


@pytest.mark.parametrize("codec", CODECS.values(), ids=list(CODECS))
def test_released_rows_are_trained_and_exported_byte_by_byte(tmp_path: Path, codec: Any) -> None:
    agent = load(AgentConfig, None, [f"formats.mhqa={write(tmp_path / 'a.json', ROWS)}"])
    add_rows(read_data(tmp_path / "a.json"), tmp_path / "data", tmp_path / "unread.jsonl")
    tokenise(tmp_path / "data", codec(), instructed=True, limit=10_000, formats=agent.formats)
    trained = [codec().decode(row.token_ids) for row in read_tokens(tmp_path / "data")]
    said = [f"{OPENING}{row['instruction']}{CLOSING}{row['output']}" for row in ROWS]
    assert trained == [text.removesuffix("\n") for text in said]
    FORMATS["alpaca"].export(tmp_path / "data", tmp_path / "out", instructed=True, formats=agent.formats)
    assert json.loads((tmp_path / "out" / "distilled.json").read_text()) == ROWS
    # Another format is another row.
    tokenise(tmp_path / "data", codec(), instructed=True, limit=10_000)
    assert [codec().decode(row.token_ids) for row in read_tokens(tmp_path / "data")] != trained


def test_a_sharegpt_export_has_the_lines_too(tmp_path: Path) -> None:
    agent = load(AgentConfig, None, [f"formats.mhqa={write(tmp_path / 'a.json', ROWS)}"])
    add_rows(read_data(tmp_path / "a.json"), tmp_path / "data", tmp_path / "unread.jsonl")
    FORMATS["llamafactory"].export(tmp_path / "data", tmp_path / "out", instructed=True, formats=agent.formats)
    for row, made in zip(ROWS, json.loads((tmp_path / "out" / "distilled.json").read_text()), strict=True):
        asked, *said = (turn["value"] for turn in made["conversations"])
        assert (asked, "".join(said)) == (row["instruction"], row["output"])


@pytest.mark.parametrize(
    ("rows", "name", "why"),
    [
        ([], "mhqa", "it has no rows"),
        ([{"question": "Who ?"}], "mhqa", "no `output` (1 of them)"),
        (ROWS, "web", "<wiki_search> is no tag of this profile (2 of them)"),
        ([row_on("Arden", "\n<answer>\nArden\n</answer>")], "mhqa", "it calls no tool (1 of them)"),
        ([row_on("Arden", "Arden")], "mhqa", "no tags (1 of them)"),
        ([row_on("Arden", ROWS[0]["output"].replace("\n<wiki", "<wiki"))], "mhqa", "its tags are not written alike"),
        ([row_on("Arden", ROWS[0]["output"].replace("\n", "\n\n\n\n\n"))], "mhqa", "expected up to 4 blanks"),
        ([row_on("Arden", ROWS[0]["output"].replace("\n", "\r\n"))], "mhqa", "expected up to 4 blanks"),
        ([row_on("Arden", prompt="")], "mhqa", "no instructions before a question (1 of them)"),
    ],
)
def test_a_file_without_such_a_row_is_refused_with_its_reasons(
    tmp_path: Path, rows: object, name: str, why: str
) -> None:
    path = write(tmp_path / "a.json", rows)
    with pytest.raises(UserError) as refused:
        load(AgentConfig, None, [f"formats.{name}={path}"])
    assert str(refused.value).startswith(f"agent.formats.{name}: {path}: none of its first rows shows how {name} is")
    assert why in str(refused.value)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("formats.mhqa=https://example.com/a.json", "is the URL"),
        ("formats.mhqa=nowhere.json", "cannot be read: No such file"),
        ("formats.mhqa=a.txt", "expected a file that ends in"),
        ("formats.nobody=a.json", "unknown profile 'nobody'"),
        ("formats.mhqa={behind: x}", "unknown key formats.mhqa.behind"),
    ],
)
def test_a_file_that_is_none_is_refused_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, why: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("x")
    with pytest.raises(UserError, match=why) as refused:
        load(AgentConfig, None, [said])
    assert "\n" not in str(refused.value)


def test_only_the_first_rows_are_read(tmp_path: Path) -> None:
    rows = [*([row_on("Arden", "Arden")] * LOOKED_AT), *ROWS]
    with pytest.raises(UserError, match=rf"no tags \({LOOKED_AT} of them\)"):
        format_in(write(tmp_path / "a.json", rows), "mhqa")
