"""Exports of the data set for other trainers, each in its own folder.

    trl           train-00000.parquet                     token ids, and the mask of the policy's tokens
    llamafactory  distilled.json, dataset_info.json       its sharegpt: turns of human, gpt and observation
    alpaca        distilled.json, dataset_info.json       its alpaca: instruction, output; trains on observations

A row is repeated `copies` times. Files are written while rows are read, so memory does not grow with their number.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from coa.agent.chain_format import OURS, OWN, ChainFormat, Formats
from coa.agent.grammar import OBSERVATION, Chain, escape, render
from coa.agent.profiles import profile as find_profile
from coa.distill.dataset.rows import Demonstration
from coa.distill.dataset.shards import ROWS_AT_ONCE, read_rows, shard_path
from coa.distill.dataset.tokens import read_tokens
from coa.json_object import Json, JsonView
from coa.registry import Registry
from coa.storage.chunks import chunks
from coa.storage.files import replacing, write_atomically

NAME = "distilled"
"""The name of the data set in LLaMA-Factory."""
_ALPACA = ChainFormat(observed="\n\n")
"""How chains are written that have no format of their own."""
_TRL = pa.schema([("input_ids", pa.list_(pa.int32())), ("assistant_masks", pa.list_(pa.int8()))])


def export_trl(folder: Path, out: Path, *, instructed: bool, formats: Formats = OURS) -> int:
    """Exports for `SFTTrainer`, which takes `input_ids` as tokenised and masks labels where `assistant_masks` is 0.

    Rows over the limit that the data was tokenised with are left out. Prompts and formats are those of the tokenised
    rows, so `instructed` and `formats` have no effect. Returns the number of rows written.
    """
    rows = 0
    with replacing(shard_path(out, 0)) as part, pq.ParquetWriter(part, _TRL, compression="zstd") as writer:
        for some in chunks(_repeated_tokens(folder), ROWS_AT_ONCE):
            columns = {name: [row[name] for row in some] for name in _TRL.names}
            writer.write_table(pa.Table.from_pydict(columns, schema=_TRL))
            rows += len(some)
    return rows


def _repeated_tokens(folder: Path) -> Iterator[Json]:
    for one in read_tokens(folder):
        yield from repeat(
            {"input_ids": one.token_ids, "assistant_masks": one.policy_mask.astype("int8")}, one.row.copies
        )


def export_alpaca(folder: Path, out: Path, *, instructed: bool, formats: Formats = OURS) -> int:
    """Exports for the published agents' fork of LLaMA-Factory, in the columns of the published AFM sets.

    A blank line follows each observation, by which the fork finds the text to mask (`ignore_observation`);
    LLaMA-Factory itself trains on the whole output. `coa.agent.grammar.parse` can read the output.
    """
    return _export_json(folder, out, lambda row: _alpaca(row, instructed, formats), {"file_name": f"{NAME}.json"})


def _alpaca(row: Demonstration, instructed: bool, formats: Formats) -> Json:
    form = formats.get(row.task.profile, _ALPACA)
    return {"instruction": user_turn(row, instructed, formats), "input": "", "output": render(row.chain, form)}


def export_llamafactory(folder: Path, out: Path, *, instructed: bool, formats: Formats = OURS) -> int:
    """Exports for LLaMA-Factory, as conversations in its sharegpt layout, whose `observation` turns are masked.

    The turns after the question, joined, are the chain as tag text.
    """
    described = {
        "file_name": f"{NAME}.json",
        "formatting": "sharegpt",
        "columns": {"messages": "conversations"},
        "tags": {
            "role_tag": "from",
            "content_tag": "value",
            "user_tag": "human",
            "assistant_tag": "gpt",
            "observation_tag": "observation",
        },
    }
    return _export_json(folder, out, lambda row: _conversation(row, instructed, formats), described)


def _conversation(row: Demonstration, instructed: bool, formats: Formats) -> Json:
    turns = turns_of(row.chain, formats.get(row.task.profile, OWN))
    asked = {"from": "human", "value": user_turn(row, instructed, formats)}
    return {"conversations": [asked, *({"from": speaker, "value": text} for speaker, text in turns)]}


def turns_of(chain: Chain, form: ChainFormat = OWN) -> Iterator[tuple[str, str]]:
    """Turns of ("gpt" or "observation", tag text): the spans between two observations are one turn of the policy."""
    said: list[str] = []
    for span in chain:
        if span.tag == OBSERVATION:
            yield "gpt", "".join(said)
            yield "observation", render([span], form)
            said = []
        else:
            said.append(render([span], form))
    yield "gpt", "".join(said)


def user_turn(row: Demonstration, instructed: bool, formats: Formats = OURS) -> str:
    """The user's turn, as in `Codec.prompt`."""
    preface = find_profile(row.task.profile, formats).preface() if instructed else ""
    return preface + escape(row.task.question)


def _export_json(folder: Path, out: Path, as_item: Callable[[Demonstration], Json], described: JsonView) -> int:
    rows = _write_array(out / f"{NAME}.json", (as_item(row) for row in read_rows(folder) for _ in range(row.copies)))
    write_atomically(out / "dataset_info.json", json.dumps({NAME: described}, indent=2))
    return rows


def _write_array(path: Path, items: Iterable[object]) -> int:
    """Writes a JSON array with one item per line; returns the number of items."""
    count = 0
    with replacing(path) as part, part.open("w", encoding="utf-8") as file:
        for item in items:
            file.write((",\n" if count else "[\n") + json.dumps(item, ensure_ascii=False))
            count += 1
        file.write("\n]\n" if count else "[]\n")
    return count


@dataclass(frozen=True, slots=True)
class Format:
    export: Callable[..., int]
    """(folder, out, *, instructed, formats) -> number of rows written."""
    use: str
    """Command or call that trains on the export."""
    warning: str = ""
    """A warning for users who train on this export."""


_LLAMA_FACTORY = f"llamafactory-cli train ... dataset_dir={{out}} dataset={NAME}"
FORMATS = Registry(
    "format",
    {
        "trl": Format(
            export_trl,
            'SFTTrainer(..., train_dataset=load_dataset("{out}", split="train"), args=SFTConfig(..., max_length=None))',
        ),
        "llamafactory": Format(export_llamafactory, _LLAMA_FACTORY),
        "alpaca": Format(
            export_alpaca,
            _LLAMA_FACTORY,
            warning="LLaMA-Factory trains on observations in this form; --format llamafactory masks them",
        ),
    },
)
