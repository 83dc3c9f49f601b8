"""Reads what wandb writes offline: LevelDB's log format behind a header of 7 bytes, protobuf records within."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wandb.proto import wandb_internal_pb2

RECORD: Any = vars(wandb_internal_pb2)["Record"]  # made when it is imported, unseen by type checkers
HEADER, BLOCK, CHUNK = 7, 32768, 7
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def read_records(path: Path) -> Iterator[Any]:
    data, at, whole = path.read_bytes(), HEADER, b""
    assert data.startswith(b":W&B")
    while at + CHUNK <= len(data):
        if (left := BLOCK - at % BLOCK) < CHUNK:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + CHUNK])
        whole += data[at + CHUNK : at + CHUNK + length]
        at += CHUNK + length
        if kind in (FULL, LAST):
            record = RECORD()
            record.ParseFromString(whole)
            whole = b""
            yield record


def history(path: Path) -> list[dict[str, Any]]:
    """What was logged, a dictionary a call, without wandb's own keys."""
    rows = []
    for record in read_records(path):
        if record.WhichOneof("record_type") == "history":
            items = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            rows.append({key: value for key, value in items.items() if not key.startswith("_")})
    return rows


def run_of(path: Path) -> Any:
    """The record that begins a run: its id, project, name, tags and configuration."""
    return next(record.run for record in read_records(path) if record.WhichOneof("record_type") == "run")


def offline_files(folder: Path) -> list[Path]:
    """The files of a run directory, one for each start, oldest first."""
    return sorted((folder / "wandb").glob("offline-run-*/run-*.wandb"))
