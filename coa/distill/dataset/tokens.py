"""The tokens of the rows under a given tokenizer, with the mask of those that the policy generates.

    token_ids      [ prompt ............ | the policy's spans | an observation | the policy's spans ]
    policy_mask    [ 0 0 0 0 0 0 0 0 0 0 | 1 1 1 1 1 1 1 1 1 1 | 0 0 0 0 0 0 0 0 | 1 1 1 1 1 1 1 1 1 ]
                                         ^ prompt_length

They are added after the texts, since the tokenizer of a new model is trained on the texts. Rows longer than the limit
keep their tokens but are skipped when read: a truncated chain would teach the policy to stop in the middle.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise, repeat
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from coa.agent.chain_format import OURS, Formats
from coa.agent.codec import Codec
from coa.agent.profiles import PROFILES
from coa.agent.profiles import profile as find_profile
from coa.distill.dataset.rows import SCHEMA, Demonstration, from_row
from coa.distill.dataset.shards import (
    ROWS_AT_ONCE,
    TOKENS,
    metadata_of,
    outdate_card,
    shard_path,
    shard_paths,
    write_shard,
)
from coa.errors import UserError
from coa.json_object import JsonView
from coa.learning.samples import to_imitate
from coa.storage.files import replacing
from coa.types import Sample, Trajectory

COLUMNS = pa.schema(
    [
        ("tokens", pa.int32()),
        ("prompt_length", pa.int32()),
        ("token_ids", pa.list_(pa.int32())),
        ("policy_mask", pa.list_(pa.bool_())),
    ]
)


@dataclass(frozen=True, slots=True)
class Tokenised:
    rows: int
    too_long: int
    """Rows with more tokens than the limit, which reading leaves out."""


def tokenise(folder: Path, codec: Codec, *, instructed: bool, limit: int, formats: Formats = OURS) -> Tokenised:
    """Adds the token columns to every shard; shards that have them from the same tokenizer and settings are skipped.

    limit: maximum tokens of prompt and chain together. formats: those of `agent.formats`.
    """
    settings = {"codec": fingerprint(codec), "instructed": instructed, "limit": limit}
    if formats:
        settings["formats"] = {name: asdict(form) for name, form in formats.items()}
    rows = too_long = 0
    for path in shard_paths(folder):
        metadata = metadata_of(path)
        if json.loads(metadata.get(TOKENS, b"null")) != settings:
            metadata[TOKENS] = json.dumps(settings).encode()
            outdate_card(folder)
            _rewrite(path, metadata, lambda row: _demonstrate(row, codec, instructed, formats))
        lengths = pq.read_table(path, columns=["tokens"])["tokens"]
        rows += len(lengths)
        too_long += pc.sum(pc.greater(lengths, limit)).as_py() or 0  # pyright: ignore[reportAttributeAccessIssue]
    return Tokenised(rows, too_long)


def write_contexts(
    folder: Path, index: int, rows: Sequence[tuple[Demonstration, Trajectory]], report: JsonView, *, limit: int
) -> None:
    """Writes a shard of rows with the tokens of a program's contexts, which are not those of the rows' texts. limit: as
    in `tokenise`."""
    write_shard(folder, index, (row for row, _ in rows), report)
    path, contexts = shard_path(folder, index), iter([context for _, context in rows])
    metadata = {**metadata_of(path), TOKENS: json.dumps({"contexts": True, "limit": limit}).encode()}
    _rewrite(path, metadata, lambda _: next(contexts))


def mean_lengths(folder: Path) -> tuple[int, float, float]:
    """The number of rows, and the mean tokens of their prompts and of all of them."""
    columns = pa.concat_tables(pq.read_table(path, columns=["prompt_length", "tokens"]) for path in shard_paths(folder))
    prompt, whole = (float(columns[name].to_numpy().mean()) for name in columns.column_names)
    return len(columns), prompt, whole


def fingerprint(codec: Codec) -> str:
    """A digest of the vocabulary and the prompts: the same for tokenizers that give the same tokens."""
    digest = hashlib.sha256()
    for number in range(codec.vocabulary):
        digest.update(codec.decode([number]).encode() + b"\0")
    for profile in PROFILES.values():
        digest.update(codec.prompt(profile, "", instructed=True).tobytes())
    return digest.hexdigest()


def _rewrite(path: Path, metadata: dict[bytes, bytes], demonstrate: Callable[[Demonstration], Trajectory]) -> None:
    texts = pa.schema([field for field in pq.read_schema(path) if field.name not in COLUMNS.names])
    schema = pa.schema([*texts, *COLUMNS], metadata=metadata)
    with (
        replacing(path) as part,
        pq.ParquetFile(path) as file,
        pq.ParquetWriter(part, schema, compression="zstd") as writer,
    ):
        for batch in file.iter_batches(batch_size=ROWS_AT_ONCE, columns=texts.names):
            made = [demonstrate(from_row(row)) for row in batch.to_pylist()]
            columns = {
                "tokens": [len(one.token_ids) for one in made],
                "prompt_length": [one.prompt_length for one in made],
                "token_ids": [one.token_ids for one in made],
                "policy_mask": [one.action_mask for one in made],
            }
            arrays = [pa.array(columns[field.name], field.type) for field in COLUMNS]
            writer.write_table(pa.Table.from_arrays([*batch.columns, *arrays], schema=schema))


def _demonstrate(row: Demonstration, codec: Codec, instructed: bool, formats: Formats) -> Trajectory:
    return codec.demonstration(row.task, row.chain, find_profile(row.task.profile, formats), instructed=instructed)


@dataclass(frozen=True, slots=True)
class TokenRow:
    """A row and its tokens, as stored on disk."""

    row: Demonstration
    token_ids: np.ndarray
    policy_mask: np.ndarray
    prompt_length: int


def read_tokens(folder: Path) -> Iterator[TokenRow]:
    """The rows within the limit, in order; raises UserError if a shard has no tokens."""
    for path in shard_paths(folder):
        settings = json.loads(metadata_of(path).get(TOKENS, b"null"))
        if settings is None:
            raise UserError(f"{path}: its rows have no tokens yet: `coa distill` adds them at its end")
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=ROWS_AT_ONCE):
                ids, masks = _lists(batch["token_ids"]), _lists(batch["policy_mask"])
                rows = batch.select([*SCHEMA.names, "prompt_length"]).to_pylist()
                for row, token_ids, mask in zip(rows, ids, masks, strict=True):
                    if len(token_ids) <= settings["limit"]:
                        yield TokenRow(from_row(row), token_ids, mask, row["prompt_length"])


def _lists(column: pa.ListArray) -> Iterator[np.ndarray]:
    """The lists of a column as one array each, without a Python object for each element."""
    values = column.values.to_numpy(zero_copy_only=False)
    offsets = column.offsets.to_numpy()
    return (values[begin:end].copy() for begin, end in pairwise(offsets))


def digest_of(samples: Iterable[Sample]) -> str:
    """A digest of samples in their order: of their tokens, and of which of these are trained."""
    digest = xxhash.xxh3_128()
    for sample in samples:
        for part in (np.int64(len(sample)), sample.token_ids.astype(np.int64), sample.loss_mask):
            digest.update(part.tobytes())
    return digest.hexdigest()


def read_samples(folder: Path) -> Iterator[Sample]:
    """The rows within the limit as samples to imitate, each repeated by its number of copies."""
    for one in read_tokens(folder):
        yield from repeat(to_imitate(one.token_ids, one.policy_mask), one.row.copies)
