"""The distilled data set on disk: rows, tokens, and what `datasets` makes of the folder."""

import json
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coa.agent.codec import Codec
from coa.agent.grammar import Chain, Span, parse, render
from coa.agent.profiles import PROFILES
from coa.distill.dataset.card import data_card
from coa.distill.dataset.rows import Decision, Demonstration, OwnColumns, demonstration_of, interactions_of
from coa.distill.dataset.shards import (
    read_demonstrations,
    read_reports,
    read_rows,
    shard_path,
    shard_paths,
    write_shard,
)
from coa.distill.dataset.summary import TokenStatistics, summarise
from coa.distill.dataset.tokens import (
    COLUMNS,
    Tokenised,
    fingerprint,
    mean_lengths,
    read_samples,
    read_tokens,
    tokenise,
)
from coa.distill.filters import Kept
from coa.errors import UserError
from coa.learning.samples import to_imitate
from coa.teams.transcript import AgentStep, Ending, ToolStep, Transcript
from coa.tools.base import ToolCall
from coa.types import Task
from coa.usage import Usage
from tests.support.fakes import CODECS, answered_chains, tag_codec, text_codec

CHAIN = parse(
    "<plan> p</plan><wiki_search> Arden</wiki_search><observation> a town</observation>"
    "<reflection> r</reflection><answer> Berg</answer>"
).chain


def row(number: int = 0, chain: Chain = CHAIN, profile: str = "mhqa", **changed: Any) -> Demonstration:
    task = Task(id=f"t-{number}", question="Who ?", answers=("Berg", "B."), profile=profile, family="test")
    return replace(Demonstration(task=task, text=render(chain), interactions=interactions_of(chain)), **changed)


def kept(n: int = 0, copies: int = 1) -> Kept:
    search = "<wiki_search> Arden</wiki_search>"
    steps = (
        AgentStep("planner", "<plan> p</plan>", usage=Usage(1, 100, 10)),
        AgentStep("searcher", search, usage=Usage(1, 200, 20)),
        ToolStep(ToolCall("wiki_search", "Arden"), "a town"),
        AgentStep("searcher", "done", usage=Usage(1, 300, 30)),
        AgentStep("critic", "<reflection> r</reflection>"),
        AgentStep("planner", "<answer> Berg</answer>"),
    )
    transcript = Transcript(
        task=row(n).task,
        attempt=3,
        seed=0,
        steps=steps,
        ending=Ending.ANSWERED,
        team="planner",
        models=(("planner", "big"), ("searcher", "small")),
    )
    return Kept(transcript=transcript, chain=CHAIN, copies=copies)


def equal(left: Any, right: Any) -> bool:
    """Of frozen dataclasses that may hold arrays, dtypes included."""
    pairs = [(getattr(left, field.name), getattr(right, field.name)) for field in fields(left)]
    return all(a.dtype == b.dtype and np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b for a, b in pairs)


# Rows.


def test_a_kept_run_is_a_row_with_what_it_is_from(tmp_path: Path) -> None:
    decisions = (Decision("complexity", "kept"), Decision("reflection", "kept"))
    write_shard(tmp_path, 0, [demonstration_of(kept(copies=2), decisions=decisions)], {"kept": 1})
    (told,) = pq.read_table(shard_path(tmp_path, 0)).to_pylist()
    assert told == {
        "task_id": "t-0",
        "attempt": 3,
        "question": "Who ?",
        "answers": ["Berg", "B."],
        "profile": "mhqa",
        "family": "test",
        "grader": "exact",
        "metadata": "",
        "text": render(CHAIN),
        "copies": 2,
        "source": "team",
        "team": "planner",
        "models": '{"planner": "big", "searcher": "small"}',
        "interactions": 5,
        "reflected": True,
        "corrected": False,
        "requests": 3,
        "prompt_tokens": 600,
        "completion_tokens": 60,
        "decisions": '[{"stage": "complexity", "outcome": "kept"}, {"stage": "reflection", "outcome": "kept"}]',
    }


def test_rows_come_back_as_they_were_written_in_the_order_of_the_shards(tmp_path: Path) -> None:
    rows = [
        demonstration_of(kept(0), source="import:other", decisions=[Decision("quality", "kept")]),
        demonstration_of(kept(1, copies=3)),
        row(2, team="flat"),
    ]
    write_shard(tmp_path, 1, rows[2:], {"n": 1})
    write_shard(tmp_path, 0, rows[:2], {"n": 2})
    assert list(read_rows(tmp_path)) == rows
    assert list(read_demonstrations(tmp_path)) == [(one.task, one.text, one.copies) for one in rows]
    assert list(read_reports(tmp_path)) == [{"n": 2}, {"n": 1}]


@pytest.mark.parametrize(
    ("checks", "corrected"), [(("2 doubtful", "4"), True), (("3", "1"), False), (("?", "1"), False), ((), False)]
)
def test_a_run_corrected_itself_if_its_first_double_check_scored_low(
    tmp_path: Path, checks: tuple[str, ...], corrected: bool
) -> None:
    chain = (Span("plan", "p"), *(Span("double_check", check) for check in checks), Span("answer", "a"))
    write_shard(tmp_path, 0, [row(chain=chain, profile="web")], {})
    told = pq.read_table(shard_path(tmp_path, 0), columns=["corrected", "reflected"]).to_pylist()
    assert told == [{"corrected": corrected, "reflected": False}]


def test_a_worlds_own_columns_are_written_besides_and_stay_when_tokens_come(tmp_path: Path) -> None:
    own = OwnColumns(("first", "who"), lambda name, task, chain: chain[0].tag if name == "first" else task.id)
    rows = [row(1), row(2, chain=CHAIN[1:])]
    write_shard(tmp_path, 0, rows, {}, own)
    write_shard(tmp_path, 1, [], {}, own)
    columns = {"first": [CHAIN[0].tag, CHAIN[1].tag], "who": [one.task.id for one in rows]}
    assert pq.read_table(shard_path(tmp_path, 0), columns=["first", "who"]).to_pydict() == columns
    assert pq.read_table(shard_path(tmp_path, 1), columns=["first", "who"]).to_pydict() == {"first": [], "who": []}
    for instructed in (True, False):  # the second time, columns of tokens are there already
        tokenise(tmp_path, tag_codec(), instructed=instructed, limit=1000)
        found = pq.read_table(shard_path(tmp_path, 0)).to_pydict()
        assert {name: found[name] for name in columns} == columns
        assert list(found)[-4:] == COLUMNS.names
    assert list(read_rows(tmp_path)) == rows


def test_half_a_surrogate_pair_is_written_as_a_question_mark(tmp_path: Path) -> None:
    broken = row(chain=(*CHAIN[:2], Span("observation", "a\ud800b"), *CHAIN[3:]))
    write_shard(tmp_path, 0, [broken], {})
    (read,) = read_rows(tmp_path)
    assert read.chain[2] == Span("observation", "a?b")


def test_a_shard_that_fails_leaves_the_one_before_and_nothing_else(tmp_path: Path) -> None:
    def rows() -> Iterator[Demonstration]:
        yield row()
        raise RuntimeError("the team is gone")

    write_shard(tmp_path, 0, [row(7)], {})
    with pytest.raises(RuntimeError):
        write_shard(tmp_path, 0, rows(), {})
    assert [one.task.id for one in read_rows(tmp_path)] == ["t-7"]
    assert [path.name for path in tmp_path.iterdir()] == ["train-00000.parquet"]


def test_other_files_are_refused_by_name(tmp_path: Path) -> None:
    shard_path(tmp_path, 0).write_text("text")
    with pytest.raises(UserError, match=r"train-00000\.parquet: not a Parquet file: "):
        list(read_rows(tmp_path))
    write_shard(tmp_path, 0, [row()], {})
    table = pq.read_table(shard_path(tmp_path, 0)).drop_columns(["text"])
    pq.write_table(table, shard_path(tmp_path, 0))
    with pytest.raises(UserError, match="there is no column text"):
        list(read_rows(tmp_path))


# Tokens.


@pytest.mark.parametrize("codec", CODECS)
@settings(max_examples=20, deadline=None)
@given(data=st.data(), instructed=st.booleans())
def test_tokens_from_the_columns_are_those_of_the_codec(
    tmp_path_factory: pytest.TempPathFactory, codec: str, data: st.DataObject, instructed: bool
) -> None:
    folder = tmp_path_factory.mktemp("data")
    rows = [
        row(number, data.draw(answered_chains(profile)), name, copies=1 + number % 2)
        for number, (name, profile) in enumerate(PROFILES.items())
    ]
    write_shard(folder, 0, rows[:2], {})
    write_shard(folder, 1, rows[2:], {})
    tokenise(folder, CODECS[codec](), instructed=instructed, limit=100_000)
    read = list(read_tokens(folder))
    whole = [replace(one, text=one.text.encode(errors="replace").decode()) for one in rows]
    expected = [
        (CODECS[codec]().demonstration(one.task, one.chain, PROFILES[one.task.profile], instructed=instructed), one)
        for one in whole
    ]
    assert [one.row.copies for one in read] == [one.copies for one in rows]
    means = (fmean(one.prompt_length for one in read), fmean(len(one.token_ids) for one in read))
    assert mean_lengths(folder) == pytest.approx((len(rows), *means))
    assert [one.prompt_length for one in read] == [wanted.prompt_length for wanted, _ in expected]
    samples = [to_imitate(wanted.token_ids, wanted.action_mask) for wanted, one in expected for _ in range(one.copies)]
    assert all(equal(got, wanted) for got, wanted in zip(read_samples(folder), samples, strict=True))
    assert list(read_rows(folder)) == whole


def test_what_the_columns_hold_is_the_policys_tokens_and_no_others(tmp_path: Path) -> None:
    write_shard(tmp_path, 0, [row()], {"kept": 1})
    assert tokenise(tmp_path, tag_codec(), instructed=False, limit=100) == Tokenised(1, 0)
    (told,) = pq.read_table(shard_path(tmp_path, 0)).to_pylist()
    ids, mask = told["token_ids"], told["policy_mask"]
    learnt = [one for one, ours in zip(ids, mask, strict=True) if ours]
    assert tag_codec().decode(learnt) == render(span for span in CHAIN if span.tag != "observation")
    assert told["tokens"] == len(ids) == len(mask)
    assert told["prompt_length"] == len(tag_codec().prompt(PROFILES["mhqa"], "Who ?", instructed=False))
    assert list(read_reports(tmp_path)) == [{"kept": 1}]


def test_rows_over_the_limit_keep_their_tokens_and_are_left_out_in_reading(tmp_path: Path) -> None:
    long = row(1, (Span("plan", "p " * 100), *CHAIN[1:]))
    write_shard(tmp_path, 0, [row(0), long, row(2)], {})
    length = len(tag_codec().demonstration(row().task, CHAIN, PROFILES["mhqa"], instructed=False).token_ids)
    assert tokenise(tmp_path, tag_codec(), instructed=False, limit=length) == Tokenised(3, 1)
    assert [one.row.task.id for one in read_tokens(tmp_path)] == ["t-0", "t-2"]
    assert tokenise(tmp_path, tag_codec(), instructed=False, limit=length - 1) == Tokenised(3, 3)
    assert list(read_tokens(tmp_path)) == []
    assert [len(ids) for ids in pq.read_table(shard_path(tmp_path, 0))["token_ids"].to_pylist()].count(length) == 2


def test_only_shards_that_lack_these_tokens_are_written_again(tmp_path: Path) -> None:
    def tokenised(codec: Codec, instructed: bool = False) -> list[bool]:
        before = [path.stat().st_ino for path in shard_paths(tmp_path)]
        tokenise(tmp_path, codec, instructed=instructed, limit=1000)
        return [path.stat().st_ino != inode for path, inode in zip(shard_paths(tmp_path), before, strict=True)]

    write_shard(tmp_path, 0, [row(0)], {})
    assert tokenised(tag_codec()) == [True]
    write_shard(tmp_path, 1, [row(1)], {})
    assert tokenised(tag_codec()) == [False, True]
    assert tokenised(tag_codec()) == [False, False]
    assert tokenised(tag_codec(), instructed=True) == [True, True]
    assert tokenised(text_codec(), instructed=True) == [True, True]


def test_codecs_that_differ_have_other_fingerprints() -> None:
    turned = Codec(tag_codec()._tokenizer, opening="", closing="")
    assert len({fingerprint(codec) for codec in (tag_codec(), text_codec(), turned)}) == 3


def test_rows_without_tokens_are_not_trained_on(tmp_path: Path) -> None:
    write_shard(tmp_path, 0, [row()], {})
    with pytest.raises(UserError, match=r"train-00000\.parquet: its rows have no tokens yet: .*`coa distill`"):
        list(read_samples(tmp_path))


# The folder as a data set.


def load(folder: Path, cache: Path) -> Any:
    import datasets

    return datasets.load_dataset(str(folder), split="train", cache_dir=str(cache))


def card(folder: Path) -> str:
    return data_card(
        "x",
        summarise(folder),
        transcripts=1,
        dropped={},
        filters={},
        contaminated=0,
        cost=Usage(),
        instructed=True,
        limit=1000,
    )


def test_datasets_reads_the_folder_with_and_without_a_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    folder = tmp_path / "data"
    write_shard(folder, 0, [row(0), row(1)], {"kept": 2})
    write_shard(folder, 1, [row(2)], {"kept": 1})
    assert load(folder, tmp_path / "a")["task_id"] == ["t-0", "t-1", "t-2"]
    tokenise(folder, tag_codec(), instructed=True, limit=1000)
    (folder / "README.md").write_text(card(folder))
    (folder / ".train-00002.parquet.1.partial").write_text("half a shard")
    (folder / "notes.json").write_text('{"a": 1}')
    loaded = load(folder, tmp_path / "b")
    assert {name: str(kind) for name, kind in loaded.features.items()} | {"text": ""} == {
        **dict.fromkeys(pq.read_schema(shard_path(folder, 0)).names, "Value('string')"),
        **dict.fromkeys(("attempt", "requests", "prompt_tokens", "completion_tokens"), "Value('int64')"),
        **dict.fromkeys(("copies", "interactions", "tokens", "prompt_length"), "Value('int32')"),
        **dict.fromkeys(("reflected", "corrected"), "Value('bool')"),
        "answers": "List(Value('string'))",
        "token_ids": "List(Value('int32'))",
        "policy_mask": "List(Value('bool'))",
        "text": "",
    }
    assert loaded["policy_mask"] == [sample.loss_mask.tolist() for sample in read_samples(folder)]


def test_a_card_does_not_outlive_what_it_tells(tmp_path: Path) -> None:
    path = tmp_path / "README.md"
    write_shard(tmp_path, 0, [row()], {})
    path.write_text(card(tmp_path))
    tokenise(tmp_path, tag_codec(), instructed=True, limit=1000)
    assert not path.exists()
    path.write_text(card(tmp_path))
    tokenise(tmp_path, tag_codec(), instructed=True, limit=1000)
    assert path.exists()
    write_shard(tmp_path, 1, [row()], {})
    assert not path.exists()


def test_a_summary_counts_rows_tokens_and_costs(tmp_path: Path) -> None:
    doubted = (Span("plan", "p"), Span("double_check", "1"), Span("answer", "a"))
    write_shard(tmp_path, 0, [demonstration_of(kept(copies=2)), row(1, doubted, "web")], {})
    assert summarise(tmp_path).tokens is None
    tokenise(tmp_path, tag_codec(), instructed=False, limit=5)
    write_shard(tmp_path, 1, [row(2)], {})
    tokenise(tmp_path, tag_codec(), instructed=False, limit=5)
    told = summarise(tmp_path)
    assert (told.rows, told.copies, told.reflected, told.corrected) == (3, 4, 2, 1)
    assert (told.requests, told.prompt_tokens, told.completion_tokens) == (3, 600, 60)
    assert told.interactions == (5 + 3 + 5) / 3
    assert told.counts["profile"] == {"mhqa": 2, "web": 1}
    assert {json.loads(models).get("planner"): n for models, n in told.counts["models"].items()} == {None: 2, "big": 1}
    demonstrations = [
        tag_codec().demonstration(one.task, one.chain, PROFILES[one.task.profile], instructed=False)
        for one in read_rows(tmp_path)
    ]
    lengths = [len(one.token_ids) for one in demonstrations]
    assert told.tokens == TokenStatistics(
        total=sum(lengths),
        learnt=sum(int(one.action_mask.sum()) for one in demonstrations),
        mean=sum(lengths) / 3,
        median=sorted(lengths)[1],
        p95=float(np.percentile(lengths, 95)),
        longest=max(lengths),
    )
