"""What other trainers read: TRL's `SFTTrainer`, and LLaMA-Factory by its documented layouts."""

import json
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coa.agent.codec import Codec
from coa.agent.grammar import Chain, Span, parse, render
from coa.agent.profiles import MHQA, PROFILES
from coa.distill.dataset.exports import FORMATS, export_alpaca, export_llamafactory, export_trl, turns_of
from coa.distill.dataset.rows import Demonstration
from coa.distill.dataset.shards import shard_path, write_shard
from coa.distill.dataset.tokens import TokenRow, read_tokens, tokenise
from coa.distill.sources.released import to_demonstration
from coa.errors import UserError
from coa.types import Task
from jobs.commands import export
from tests.support.fakes import answered_chains, tag_codec
from tests.support.tiny import make_model

ROOT = Path(__file__).parents[4]
CHAIN = (
    Span("plan", "p"),
    Span("think", "t"),
    Span("wiki_search", "Arden"),
    Span("observation", "its mayor: <answer> Moss</answer>"),
    Span("reflection", "r"),
    Span("wiki_search", "Berg"),
    Span("observation", ""),
    Span("answer", "Berg"),
)


def row(number: int = 0, chain: Chain = CHAIN, profile: str = "mhqa", copies: int = 1) -> Demonstration:
    task = Task(id=f"t-{number}", question="Who <plan> ?", answers=("Berg",), profile=profile, family="test")
    return Demonstration(task=task, text=render(chain), copies=copies, interactions=len(chain))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    write_shard(folder, 0, [row(0), row(1, CHAIN[:1] + CHAIN[-1:], copies=2)], {})
    write_shard(folder, 1, [row(2)], {})
    return folder


# What LLaMA-Factory's data/README.md says of its files.

ODD, EVEN = {"human", "observation"}, {"gpt", "function_call"}
ALPACA_COLUMNS = {"prompt", "query", "response", "history", "system"}
SHAREGPT_COLUMNS = {"messages", "system", "tools"}
TAGS = {
    "role_tag": "from",
    "content_tag": "value",
    "user_tag": "human",
    "assistant_tag": "gpt",
    "observation_tag": "observation",
    "function_tag": "function_call",
    "system_tag": "system",
}


def faults(folder: Path) -> list[str]:
    """What of a folder is not as documented; the names of roles and columns are the documented defaults."""
    found: list[str] = []
    for name, told in json.loads((folder / "dataset_info.json").read_text()).items():
        rows = json.loads((folder / told["file_name"]).read_text())
        sharegpt = told.get("formatting", "alpaca") == "sharegpt"
        if set(told) - {"file_name", "formatting", "columns", "tags", "ranking"}:
            found.append(f"{name}: unknown keys")
        if set(told.get("columns", {})) - (SHAREGPT_COLUMNS if sharegpt else ALPACA_COLUMNS):
            found.append(f"{name}: unknown columns")
        if any(TAGS.get(key) != value for key, value in told.get("tags", {}).items()):
            found.append(f"{name}: unknown tags")
        check = conversation_faults if sharegpt else instruction_faults
        found += [f"{name}, row {number}: {why}" for number, one in enumerate(rows) for why in check(one)]
    return found


def instruction_faults(one: Mapping[str, Any]) -> list[str]:
    wrong = [key for key in ("instruction", "output") if not isinstance(one.get(key), str) or not one[key]]
    return [*wrong, *(["input"] if not isinstance(one.get("input", ""), str) else []), *sorted(set(one) - COLUMNS)]


COLUMNS = {"instruction", "input", "output", "system", "history"}


def conversation_faults(one: Mapping[str, Any]) -> list[str]:
    turns: Sequence[Mapping[str, str]] = one["conversations"]
    if len(turns) % 2 or not turns:
        return ["does not end with the model"]
    wrong = [i for i, turn in enumerate(turns) if turn["from"] not in (EVEN if i % 2 else ODD) or set(turn) - SPOKEN]
    return [f"turn {i}" for i in wrong]


SPOKEN = {"from", "value"}


def test_the_checker_sees_what_it_looks_for(tmp_path: Path) -> None:
    (tmp_path / "d.json").write_text('[{"conversations": [{"from": "human", "value": ""}]}]')
    (tmp_path / "e.json").write_text('[{"instruction": "a", "input": 3, "label": ""}]')
    info = {"a": {"file_name": "d.json", "formatting": "sharegpt", "tags": {"role_tag": "role"}}}
    (tmp_path / "dataset_info.json").write_text(json.dumps({**info, "b": {"file_name": "e.json", "split": ""}}))
    assert faults(tmp_path) == [
        "a: unknown tags",
        "a, row 0: does not end with the model",
        "b: unknown keys",
        "b, row 0: output",
        "b, row 0: input",
        "b, row 0: label",
    ]
    assert conversation_faults({"conversations": [{"from": "gpt"}, {"from": "human"}]}) == ["turn 0", "turn 1"]


@pytest.mark.parametrize("name", ["llamafactory", "alpaca"])
def test_llama_factory_gets_what_its_documentation_asks_for(tmp_path: Path, data: Path, name: str) -> None:
    assert FORMATS[name].export(data, tmp_path / "out", instructed=True) == 4
    assert faults(tmp_path / "out") == []
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["dataset_info.json", "distilled.json"]
    assert len(json.loads((tmp_path / "out" / "distilled.json").read_text())) == 4


def test_alpaca_has_a_blank_line_after_each_observation_and_reads_back(tmp_path: Path, data: Path) -> None:
    export_alpaca(data, tmp_path, instructed=False)
    first, second, third, _ = json.loads((tmp_path / "distilled.json").read_text())
    assert first == {
        "instruction": r"Who <\plan> ?",
        "input": "",
        "output": (
            "<plan> p</plan><think> t</think><wiki_search> Arden</wiki_search>"
            "<observation> its mayor: <\\answer> Moss<\\/answer></observation>\n\n<reflection> r</reflection>"
            "<wiki_search> Berg</wiki_search><observation> </observation>\n\n<answer> Berg</answer>"
        ),
    }
    assert second == third
    assert parse(first["output"]).chain == CHAIN
    assert to_demonstration(first, 1, "f").chain[:3] == CHAIN[:3]


def test_instructions_come_first_where_the_run_gave_them(tmp_path: Path, data: Path) -> None:
    export_alpaca(data, tmp_path / "alpaca", instructed=True)
    export_llamafactory(data, tmp_path / "llamafactory", instructed=True)
    asked = MHQA.preface() + r"Who <\plan> ?"
    assert json.loads((tmp_path / "alpaca/distilled.json").read_text())[0]["instruction"] == asked
    turn = json.loads((tmp_path / "llamafactory/distilled.json").read_text())[0]["conversations"][0]
    assert turn == {"from": "human", "value": asked}


def test_what_llama_factory_learns_holds_no_observation(tmp_path: Path, data: Path) -> None:
    """Of a conversation it learns what `gpt` says, of the columns of alpaca the whole output."""

    def learnt(name: str) -> list[str]:
        FORMATS[name].export(data, tmp_path / name, instructed=False)
        rows = json.loads((tmp_path / name / "distilled.json").read_text())
        if name == "alpaca":
            return [row["output"] for row in rows]
        return [turn["value"] for row in rows for turn in row["conversations"] if turn["from"] == "gpt"]

    assert not any("<observation>" in text for text in learnt("llamafactory"))
    assert any("<observation>" in text for text in learnt("alpaca"))
    assert [name for name, one in FORMATS.items() if one.warning] == ["alpaca"]


def test_a_conversation_tells_turns_apart(tmp_path: Path, data: Path) -> None:
    export_llamafactory(data, tmp_path, instructed=False)
    first = json.loads((tmp_path / "distilled.json").read_text())[0]["conversations"]
    assert [(turn["from"], turn["value"]) for turn in first] == [
        ("human", r"Who <\plan> ?"),
        ("gpt", "<plan> p</plan><think> t</think><wiki_search> Arden</wiki_search>"),
        ("observation", "<observation> its mayor: <\\answer> Moss<\\/answer></observation>"),
        ("gpt", "<reflection> r</reflection><wiki_search> Berg</wiki_search>"),
        ("observation", "<observation> </observation>"),
        ("gpt", "<answer> Berg</answer>"),
    ]


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(list(PROFILES.values())).flatmap(answered_chains))
def test_turns_put_together_are_the_chain(chain: Chain) -> None:
    turns = list(turns_of(chain))
    assert "".join(text for _, text in turns) == render(chain)
    assert [speaker for speaker, _ in turns] == (["gpt", "observation"] * len(turns))[: len(turns)]
    assert turns[-1][0] == "gpt"
    assert all(text for _, text in turns)


# TRL.


def repeated(data: Path) -> list[TokenRow]:
    return [one for one in read_tokens(data) for _ in range(one.row.copies)]


def test_trl_gets_tokens_and_masks_as_often_as_copies_say(tmp_path: Path, data: Path) -> None:
    tokenise(data, tag_codec(), instructed=False, limit=1000)
    assert export_trl(data, tmp_path / "out", instructed=False) == 4
    told = pq.read_table(shard_path(tmp_path / "out", 0)).to_pylist()
    assert told == [
        {"input_ids": one.token_ids.tolist(), "assistant_masks": one.policy_mask.astype(int).tolist()}
        for one in repeated(data)
    ]


def labelled(ids: list[int], mask: list[bool]) -> list[tuple[int, int]]:
    return [(token, token if ours else -100) for token, ours in zip(ids, mask, strict=True)]


@pytest.mark.slow
def test_trl_trains_on_the_policys_tokens_alone(tmp_path: Path, data: Path) -> None:
    pytest.importorskip("trl")
    model = make_model(tmp_path / "model")
    tokenise(data, Codec.load(model), instructed=False, limit=1000)
    export_trl(data, tmp_path / "out", instructed=False)
    command = [sys.executable, "-m", "tests.support.trl_step", str(model), str(tmp_path / "out")]
    alone = {key: value for key, value in os.environ.items() if key not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
    done = subprocess.run(command, cwd=ROOT, env=alone, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    (batch,) = told["batch"]
    got = sorted(
        list(zip(ids, labels, strict=True)) for ids, labels in zip(batch["input_ids"], batch["labels"], strict=True)
    )
    trajectories = repeated(data)
    longest = max(len(one.token_ids) for one in trajectories)
    padding = (told["pad"], -100)
    expected = sorted(
        [*labelled(one.token_ids.tolist(), one.policy_mask.tolist()), *[padding] * (longest - len(one.token_ids))]
        for one in trajectories
    )
    assert got == expected
    assert told["moved"]


# Memory, and the command.


def test_memory_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    long = row(0, (*CHAIN[:3], Span("observation", "x" * 20_000), *CHAIN[-1:]))
    peaks = []
    for shards in (1, 6):
        folder = tmp_path / f"data-{shards}"
        for index in range(shards):
            write_shard(folder, index, [long] * 100, {})
        tracemalloc.start()
        export_llamafactory(folder, tmp_path / f"out-{shards}", instructed=False)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]


@pytest.fixture
def finished(data: Path) -> Path:
    (data.parent / "config.yaml").write_text("agent: {instructed: true}")
    return data.parent


def test_the_command_writes_a_runs_data_as_the_run_asks(
    tmp_path: Path, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    export.run(finished, "llamafactory", out)
    assert json.loads((out / "distilled.json").read_text())[0]["conversations"][0]["value"].startswith(MHQA.preface())
    assert (
        capsys.readouterr().out == f"4 rows in {out}\nllamafactory-cli train ... dataset_dir={out} dataset=distilled\n"
    )


def test_a_form_in_which_observations_are_learnt_is_told(
    tmp_path: Path, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export.run(finished, "alpaca", tmp_path / "out")
    warning = "warning: LLaMA-Factory trains on observations in this form; --format llamafactory masks them"
    assert capsys.readouterr().out.splitlines()[2:] == [warning]


def test_a_runs_recipe_that_can_not_be_read_is_one_line(tmp_path: Path, finished: Path) -> None:
    (finished / "config.yaml").write_text("agent: [1\n")
    with pytest.raises(UserError, match=r"config\.yaml: line 2: "):
        export.run(finished, "alpaca", tmp_path / "out")
    (finished / "config.yaml").write_text("seed: 1")
    export.run(finished, "alpaca", tmp_path / "out")


def test_data_without_tokens_is_no_data_for_trl(tmp_path: Path, finished: Path) -> None:
    with pytest.raises(UserError, match="its rows have no tokens yet"):
        export.run(finished, "trl", tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_the_command_refuses_what_it_can_not_do(tmp_path: Path, finished: Path) -> None:
    assert sorted(FORMATS) == ["alpaca", "llamafactory", "trl"]
    with pytest.raises(UserError, match="unknown format 'sharegpt': known are trl, llamafactory, alpaca"):
        export.check(finished, "sharegpt", tmp_path / "out")
    with pytest.raises(UserError, match="nothing is distilled there yet"):
        export.check(tmp_path / "nowhere", "trl", tmp_path / "out")
    (tmp_path / "out").mkdir()
    export.check(finished, "trl", tmp_path / "out")
    (tmp_path / "out/README.md").write_text("mine")
    with pytest.raises(UserError, match="is not an empty folder"):
        export.check(finished, "trl", tmp_path / "out")
