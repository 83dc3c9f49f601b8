"""Weight transports by name, their files, and one of a user's own."""

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch

from actors.weights.holder import segment_path
from actors.weights.manifest import Manifest, digest, lay_out, seal
from actors.weights.segment import reading, write_pieces
from actors.weights.store import Address
from actors.weights.transports import find_sender
from coa.errors import DiskFull, UserError
from tests.support.weights import FolderWeightStore

LAYOUT = lay_out([("a", "F32", (5000,)), ("b", "BF16", (777,))], 3000)


def model(folder: Path, name: str = "1") -> tuple[Path, Manifest, np.ndarray]:
    """A file of random weights."""
    data = np.random.default_rng(0).integers(0, 256, LAYOUT.nbytes, np.uint8)
    path = segment_path(str(folder), name)
    write_pieces(path, LAYOUT, iter([(0, data)]))
    return path, seal(1, LAYOUT, lambda start, stop: data[start:stop]), data


def test_a_way_that_is_not_there_and_one_that_publishes_nothing_are_the_persons_mistakes() -> None:
    with pytest.raises(UserError, match="unknown weight transport 'hots': known are host, ipc, on_disk"):
        find_sender("hots")
    with pytest.raises(UserError, match="'on_disk' can't publish weights"):
        find_sender("on_disk")


def test_no_room_in_shared_memory_says_how_much_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import errno
    import os

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(DiskFull, match=r"no room for weights of 0\.00 GiB"):
        write_pieces(tmp_path / "file", LAYOUT, iter([]))


def test_digests_of_a_file_are_those_of_its_bytes(tmp_path: Path) -> None:
    path, manifest, data = model(tmp_path)
    with reading(path, LAYOUT, len(LAYOUT.header())) as read:
        assert digest(read(*LAYOUT.bucket(2))) == manifest.digests[2] == digest(data[6000:9000])


def test_a_transport_of_ones_own_is_one_file(one_rank: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from actors.learner.lora import Source
    from actors.weights.parts import ModelParts
    from actors.weights.ranks import Ranks
    from actors.weights.transports import TRANSPORTS, find_receiver

    monkeypatch.setenv("COA_EXTENSIONS", "docs.examples.folder_transport")
    monkeypatch.setenv("COA_WEIGHTS_FOLDER", str(tmp_path / "weights"))
    tensor = torch.arange(1000, dtype=torch.float32)
    parameter = torch.nn.Parameter(tensor.clone())
    parts = ModelParts([Source("t", (parameter,))], sharded=False, bucket_bytes=300)
    sender = find_sender("folder")(Ranks("node"), FolderWeightStore(str(tmp_path)))
    published = sender.send(parts, 5, "5-0")
    TRANSPORTS._entries.pop("folder")  # nothing of it is left for other tests
    assert published is not None
    receiver = find_receiver("on_disk")
    prepared = asyncio.run(receiver.prepare(published, Address("engine", "node")))
    with receiver.receive(published.manifest, prepared, 0) as data:
        published.manifest.check(data)
        assert np.array_equal(data.view(np.float32), tensor.numpy())
        with torch.no_grad():
            for version in (6, 7, 8):  # an engine that is slow to load what it has checked
                parameter.add_(1)
                sender.send(parts, version, f"{version}-0")
        published.manifest.check(data)
    assert sorted(path.name for path in (tmp_path / "weights").iterdir()) == ["7-0.safetensors", "8-0.safetensors"]
