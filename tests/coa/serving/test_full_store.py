"""A store of responses whose disk is full; SQLite says so where its file may not grow."""

from pathlib import Path

import pytest

from coa.serving.faults import ApiError
from coa.serving.store import ResponseStore, StoreConfig, Stored


def stored(id: str, size: int) -> Stored:
    return Stored({"id": id, "text": "x" * size}, ())


def test_what_can_not_be_stored_is_told_and_later_responses_are_stored(tmp_path: Path) -> None:
    store = ResponseStore(StoreConfig(tmp_path / "responses.sqlite"))
    store.put("me", stored("a", 10))
    before = store._count, store._used
    store._rows.execute("PRAGMA max_page_count = 40")
    for _ in range(3):
        with pytest.raises(ApiError, match="can't be stored") as told:
            store.put("me", stored("b", 1_000_000))
        assert told.value.status == 503
    assert (store._count, store._used) == before
    assert store.get("me", "b") is None
    store.put("me", stored("c", 10))
    assert [one is not None for one in (store.get("me", "a"), store.get("me", "c"))] == [True, True]
    store.close()
