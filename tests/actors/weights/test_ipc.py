"""Weights through memory that a rank and a worker share: what arrives, what stays behind, and who is sent elsewhere."""

import asyncio
import errno
import os
import socket
import threading
import time
from multiprocessing.connection import Client
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.learner import loop
from actors.weights import ipc, sharing
from actors.weights.ipc import DONE, Offer, receive, send
from actors.weights.store import Address
from actors.weights.transports import find_receiver
from coa.errors import DamagedWeights, DiskFull, SyncError, WeightsLost
from coa.learning.orders import Numbered, Stop, Train
from tests.support.offers import (
    OnlyRank,
    digests_of,
    parts_of,
    sender_of,
    store_in,
    take,
    take_elsewhere,
)
from tests.support.patience import PATIENCE_S, soon

BUCKET = 3001
"""No multiple of an element: tensors span buckets, and elements do."""


def model(*, seed: int = 0) -> list[tuple[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"a": (40, 50), "b": (7,), "c": (3, 300)}
    tensors = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    return [("a", tensors["a"].bfloat16()), ("b", tensors["b"]), ("c", tensors["c"])]


class Rank:
    """A rank that offers a version of a small model."""

    def __init__(self, folder: Path, members: dict[str, int] | None = None, bucket_bytes: int = BUCKET) -> None:
        self.folder, self.store = folder, store_in(folder, members)
        self.tensors = model()
        self.parts = parts_of(self.tensors, bucket_bytes)
        self.sender = sender_of(self.store)
        self.version = 0

    def publish(self) -> Any:
        self.version += 1
        return self.sender.send(self.parts, self.version, f"{self.version}-0")

    @property
    def offer(self) -> Offer:
        return self.sender._offer

    def files(self) -> list[str]:
        """What of the weights is in shared memory."""
        return sorted(path.name for path in self.folder.glob("*.safetensors"))


@pytest.fixture
def rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    rank = Rank(tmp_path)
    yield rank
    monkeypatch.setattr(ipc, "WAIT_S", 0.1)
    rank.sender.withdraw()
    assert not rank.sender._offer


def test_workers_in_processes_of_their_own_get_every_byte_and_nothing_stays(rank: Rank) -> None:
    published = rank.publish()
    assert published.transport == "ipc"
    assert published.manifest.layout.buckets > 2
    assert take_elsewhere(published, rank.folder, Address("first", ""))["digests"] == digests_of(published)
    assert take(published, Address("second", ""))["digests"] == digests_of(published)
    assert rank.offer.taken == {"first", "second"}
    rank.sender.withdraw()
    assert rank.files() == []


@settings(deadline=None, max_examples=30)
@given(bucket=st.integers(16, 9000))
def test_any_size_of_buckets_gives_every_byte_in_order(bucket: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    rank = Rank(tmp_path_factory.mktemp("rank"), bucket_bytes=bucket)
    published = rank.publish()
    assert take(published)["digests"] == digests_of(published)
    by_host = sender_of(rank.store, "host").send(rank.parts, 1, "again")
    assert published.manifest == by_host.manifest, "the same digests as by any other way"
    rank.sender.withdraw()


def test_two_buckets_are_all_that_a_rank_shares_and_for_no_longer_than_it_takes(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []
    copied = ipc.copied

    def look(*args: Any) -> Any:
        seen.append(rank.files())
        assert [os.stat(rank.folder / name).st_size for name in rank.files()] == [BUCKET, BUCKET]
        return copied(*args)

    monkeypatch.setattr(ipc, "copied", look)
    published = rank.publish()
    assert rank.files() == []
    take(published)
    assert seen == [["1-0-0.safetensors", "1-0-1.safetensors"]]
    assert rank.files() == []


# --- who is sent to the host ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", [Address("engine", "another node"), Address("engine", "", workers=2)])
def test_a_worker_that_is_not_on_the_ranks_device_alone_finds_the_version_on_the_host(
    address: Address, rank: Rank
) -> None:
    published = rank.publish()
    with pytest.raises(SyncError, match="the rank is not on this device"):
        take(published, address)
    assert take(published.fallback, address)["digests"] == digests_of(published)
    assert rank.publish().transport == "host", "it will not be on that device next time either"


def test_a_worker_on_another_device_is_told_so(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    names = iter(["GPU-1", "GPU-2"])
    monkeypatch.setattr(sharing, "device_name", lambda device: next(names))
    published = rank.publish()
    with pytest.raises(SyncError, match="the rank is not on this device"):
        take(published)
    assert take(published.fallback)["digests"] == digests_of(published)


def test_a_worker_that_can_not_open_the_handles_finds_the_version_on_the_host(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(handles: Any) -> Any:
        raise RuntimeError("CUDA error: peer access is not supported")

    monkeypatch.setattr(sharing, "opened_buffers", refused)
    published = rank.publish()
    with pytest.raises(SyncError, match="RuntimeError: CUDA error: peer access"):
        take(published)
    assert take(published.fallback)["digests"] == digests_of(published)
    assert rank.publish().transport == "host"


def hello(rank: Rank, published: Any, **changes: Any) -> Any:
    """A worker's connection after its first word."""
    connection = Client(published.place.meeting.address, "AF_INET")
    token = published.place.meeting.token
    send(connection, {"token": token, "engine": "e", "node": "", "workers": 1, "device": "cpu", **changes})
    return connection


def hasten_the_first(limit_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first connection for which this limit holds has nearly no time; later ones have all of it."""
    bounded, hastened = ipc.bounded, iter([0.01])
    monkeypatch.setattr(
        ipc, "bounded", lambda one, seconds: bounded(one, next(hastened, seconds) if seconds == limit_s else seconds)
    )


def test_a_worker_that_dies_costs_the_others_nothing(rank: Rank) -> None:
    published = rank.publish()
    with hello(rank, published) as connection:
        assert len(receive(connection)) == 2
    assert take(published)["digests"] == digests_of(published)
    assert rank.offer.taken == {"engine"}
    assert rank.files() == ["1-0.safetensors"], "whoever it was can find it there"
    assert rank.publish().transport == "ipc", "that it died says nothing of the device"


def test_a_worker_that_says_nothing_more_is_given_up_after_a_time(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    hasten_the_first(ipc.STEP_S, monkeypatch)
    published = rank.publish()
    with hello(rank, published) as connection:
        receive(connection)
        assert soon(lambda: rank.files() == ["1-0.safetensors"])
    assert take(published)["digests"] == digests_of(published)


def test_a_worker_that_is_ahead_of_the_rank_is_not_believed(rank: Rank) -> None:
    published = rank.publish()
    with hello(rank, published) as connection:
        receive(connection)
        send(connection, DONE)
        assert soon(lambda: rank.files() == ["1-0.safetensors"])
    assert rank.offer.taken == set()


@pytest.mark.parametrize("said", [b"", b"nothing", b"[]", b"{}", b'{"token": 3}', b"\x80\x05."])
def test_a_stranger_gets_nothing_and_changes_nothing(said: bytes, rank: Rank) -> None:
    published = rank.publish()
    with Client(published.place.meeting.address, "AF_INET") as connection:
        connection.send_bytes(said)
        with pytest.raises((EOFError, ConnectionError)):
            connection.recv_bytes()
    with hello(rank, published, token="of another version") as connection, pytest.raises((EOFError, ConnectionError)):
        connection.recv_bytes()
    assert take(published)["digests"] == digests_of(published)
    assert rank.files() == []
    assert published.place.meeting.token not in repr(published)


def test_a_stranger_who_says_half_a_word_is_not_waited_for(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    hasten_the_first(ipc.HELLO_S, monkeypatch)
    published = rank.publish()
    with socket.create_connection(published.place.meeting.address) as stranger:
        stranger.sendall(b"\x00\x00\x00\x10half")
        assert take(published)["digests"] == digests_of(published)


# --- when the weights change ------------------------------------------------------------------------------------------


def test_weights_that_change_while_they_are_copied_are_found(rank: Rank) -> None:
    """Nobody does that: a rank withdraws them first. But what is checked is what arrived."""
    published = rank.publish()
    rank.tensors[0][1].add_(1)
    with pytest.raises(DamagedWeights, match="was changed"):
        take(published)


def test_before_weights_change_an_engine_that_is_known_is_waited_for(tmp_path: Path) -> None:
    rank = Rank(tmp_path, {"engine": 1})
    published = rank.publish()
    withdrawn = threading.Thread(target=rank.sender.withdraw)
    withdrawn.start()
    time.sleep(0.1)
    assert withdrawn.is_alive()
    assert take(published)["digests"] == digests_of(published)
    withdrawn.join(PATIENCE_S)
    assert not withdrawn.is_alive()
    assert rank.files() == []


def test_what_an_engine_has_not_taken_then_it_finds_on_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ipc, "WAIT_S", 0.1)
    rank = Rank(tmp_path, {"engine": 1, "late": 1})
    published = rank.publish()
    take(published)
    assert soon(lambda: rank.offer.taken == {"engine"})
    rank.sender.withdraw()
    assert (tmp_path / "absent").read_text() == '["late"]'
    rank.tensors[0][1].add_(1)
    with pytest.raises(SyncError, match="ConnectionRefusedError"):
        take(published, Address("late", ""))
    assert take(published.fallback, Address("late", ""))["digests"] == digests_of(published)


def test_what_is_nowhere_any_more_is_asked_for_again_and_is_no_fault_of_the_engine(tmp_path: Path) -> None:
    """An engine that comes up while the rank is at its next step."""
    rank = Rank(tmp_path)
    published = rank.publish()
    take(published)
    rank.sender.withdraw()
    receiver = find_receiver(published.fallback.transport)
    with pytest.raises(WeightsLost, match="not kept any more: they are asked for again, or others"):
        asyncio.run(receiver.prepare(published.fallback, Address("late", "")))


def test_a_version_is_offered_until_the_next_one(rank: Rank) -> None:
    first = rank.publish()
    rank.tensors[1][1].mul_(2)
    second = rank.publish()
    assert digests_of(first) != digests_of(second)
    with pytest.raises(SyncError):
        take(first)
    assert take(second)["digests"] == digests_of(second)


# --- the rank ---------------------------------------------------------------------------------------------------------


def test_several_ranks_publish_on_the_host(tmp_path: Path) -> None:
    ranks = OnlyRank()
    ranks.world = 2
    sender = sender_of(store_in(tmp_path), ranks=ranks)
    published = sender.send(parts_of(model(), BUCKET), 1, "1-0")
    sender.withdraw()
    assert published.transport == "host"


def test_what_fails_beside_the_rank_is_raised_by_it(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    published = rank.publish()
    rank.sender.check()

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        patch.setattr(os, "pwrite", full)
        with pytest.raises(SyncError):
            take(published)
        assert soon(lambda: rank.offer.failure)
        with pytest.raises(DiskFull):
            rank.sender.check()
        with pytest.raises(DiskFull):
            rank.sender.withdraw()


def test_a_rank_tells_its_sender_before_its_weights_change_and_looks_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    rank: Any = object.__new__(loop.Rank)
    rank._account = SimpleNamespace(enter=lambda *_: None, seconds=lambda _: {})
    rank._sender = SimpleNamespace(withdraw=lambda: done.append("withdraw"), check=lambda: done.append("check"))
    rank._learner = SimpleNamespace(step=lambda *_: done.append("step"))
    rank._job = SimpleNamespace(publish=True)
    rank._waited, rank._rank, rank._epoch, rank._number = 0.0, 0, 1, 0
    answers = iter([None, Numbered(1, 0, Stop())])
    monkeypatch.setattr(rank, "_fetch", lambda shares: [], raising=False)
    monkeypatch.setattr(rank, "_ask", lambda *_: next(answers), raising=False)
    rank._train(Train(version=0, shares=(), cursor=0))
    assert done == ["withdraw", "step"]
    done.clear()
    assert isinstance(rank._next(), Stop)
    assert done == ["check", "check"]
