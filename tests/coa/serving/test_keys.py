"""Keys, quotas and the store of responses."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coa.errors import UserError
from coa.serving.keys import KeyFile
from coa.serving.limits.quotas import Bucket, Quota, Quotas
from coa.serving.store import ResponseStore, StoreConfig, Stored


def test_a_key_is_found_by_all_of_its_text_and_the_file_holds_none_of_it(tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "keys.jsonl")
    text = file.add("alice", Quota(60), 1_700_000_000)
    found = file.find(text)
    assert found is not None
    assert (found.name, found.quota) == ("alice", Quota(60))
    secret = text.rpartition("-")[2]
    assert secret not in (tmp_path / "keys.jsonl").read_text()
    for other in ("", "coa", text[:-1], text + "x", f"coa-{found.id}-", text.replace("coa-", "")):
        assert file.find(other) is None


def test_only_its_owner_may_read_the_file(tmp_path: Path) -> None:
    KeyFile(tmp_path / "keys.jsonl").add("alice", Quota(), 1)
    assert (tmp_path / "keys.jsonl").stat().st_mode & 0o077 == 0


def test_a_revoked_key_is_none_for_a_server_that_has_read_the_file_before(tmp_path: Path) -> None:
    server, file = KeyFile(tmp_path / "keys.jsonl"), KeyFile(tmp_path / "keys.jsonl")
    text = file.add("alice", Quota(), 1)
    key = server.find(text)
    assert key is not None
    file.revoke(key.id, 2)
    assert server.find(text) is None
    assert [one.revoked for one in server.all()] == [2]
    with pytest.raises(UserError, match="no key 'nobody'"):
        file.revoke("nobody", 3)


def test_a_file_that_is_none_of_keys_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "keys.jsonl").write_text(f"{json.dumps({'id': 'x'})}\n")
    with pytest.raises(UserError, match=r"keys\.jsonl, line 1: not a key"):
        KeyFile(tmp_path / "keys.jsonl").all()


@given(st.lists(st.tuples(st.floats(0, 30), st.integers(1, 5)), max_size=40))
def test_no_more_is_taken_in_any_time_than_a_minutes_amount_and_what_that_time_brings(
    steps: list[tuple[float, int]],
) -> None:
    bucket, now, taken = Bucket.full(6, 0.0), 0.0, 0
    for passed, amount in steps:
        now += passed
        if not bucket.wait_s(now, amount):
            bucket, taken = bucket.take(now, amount), taken + amount
        assert taken <= 6 + 6 * now / 60 + 1e-6


def test_what_was_not_used_does_not_add_up_beyond_a_minutes_amount() -> None:
    quotas, quota = Quotas(), Quota(requests_per_minute=2)
    assert quotas.admit("a", quota, 0.0) == 0
    assert [quotas.admit("a", quota, 3600.0) for _ in range(3)] == [0.0, 0.0, 30.0]


def test_after_the_time_that_it_names_a_key_may_ask_again() -> None:
    quotas, quota = Quotas(), Quota(requests_per_minute=2, tokens_per_minute=100)
    assert [quotas.admit("a", quota, 0.0) for _ in range(2)] == [0.0, 0.0]
    wait = quotas.admit("a", quota, 0.0)
    assert wait == 30
    assert quotas.admit("b", quota, 0.0) == 0, "keys do not share"
    assert quotas.admit("a", quota, wait) == 0


def test_tokens_of_an_answer_are_made_up_for_before_the_next_request() -> None:
    quotas, quota = Quotas(), Quota(tokens_per_minute=60)
    assert quotas.admit("a", quota, 0.0) == 0
    quotas.spend("a", 90, 0.0)
    assert quotas.admit("a", quota, 0.0) == pytest.approx(31)
    assert quotas.admit("a", quota, 31.0) == 0


def test_requests_at_the_same_time_reserve_what_they_may_use_and_give_back_the_rest() -> None:
    quotas, quota = Quotas(), Quota(tokens_per_minute=100)
    assert quotas.admit("a", quota, 0.0) == 0
    assert [quotas.reserve("a", 40, 0.0) for _ in range(3)] == [0.0, 0.0, pytest.approx(12)]
    quotas.spend("a", 10 - 40, 0.0)
    assert quotas.reserve("a", 40, 0.0) == 0
    quotas.spend("a", 50 - 40, 0.0)
    assert quotas.reserve("a", 1, 0.0) == pytest.approx(0.6), "10 + 40 + 50 of 100 are used, or may still be"


def test_a_request_that_may_use_more_than_a_minutes_amount_is_let_in_when_nothing_is_used() -> None:
    quotas, quota = Quotas(), Quota(tokens_per_minute=100)
    assert quotas.admit("a", quota, 0.0) == 0
    assert quotas.reserve("a", 500, 0.0) == 0
    assert quotas.reserve("a", 1, 0.0) == pytest.approx(240.6)
    quotas.spend("a", 20 - 500, 0.0)
    assert quotas.reserve("a", 80, 0.0) == 0
    assert quotas.reserve("b", 500, 0.0) == 0, "a key without a limit"


def test_what_is_given_back_adds_up_to_no_more_than_a_minutes_amount() -> None:
    quotas, quota = Quotas(), Quota(tokens_per_minute=60)
    quotas.admit("a", quota, 0.0)
    quotas.reserve("a", 60, 0.0)
    quotas.spend("a", 0 - 60, 60.0)
    assert quotas.reserve("a", 60, 60.0) == 0
    assert quotas.reserve("a", 60, 60.0) == pytest.approx(60)


def stored(id: str, size: int = 0) -> Stored:
    return Stored({"id": id, "text": "x" * size}, ())


def test_the_oldest_responses_go_where_there_is_no_room_for_more() -> None:
    store = ResponseStore(StoreConfig(entries=2))
    for id in ("a", "b", "c"):
        store.put("me", stored(id))
    assert [store.get("me", id) is not None for id in ("a", "b", "c")] == [False, True, True]
    small = ResponseStore(replace(StoreConfig(), gib=1000 / 2**30))
    small.put("me", stored("a", 600))
    small.put("me", stored("b", 600))
    assert [small.get("me", id) is not None for id in ("a", "b")] == [False, True]
    small.put("me", stored("c", 5000))
    assert small.get("me", "c") is None, "it is larger than the store"


def test_a_response_belongs_to_one_key() -> None:
    store = ResponseStore(StoreConfig())
    store.put("me", stored("a"))
    assert store.get("you", "a") is None
    assert not store.delete("you", "a")
    assert store.delete("me", "a")
    assert store.get("me", "a") is None


def test_responses_in_a_file_are_there_for_the_next_server_within_its_bounds(tmp_path: Path) -> None:
    config = StoreConfig(path=tmp_path / "größe" / "responses.sqlite", entries=3)
    first = ResponseStore(config)
    conversation = ({"role": "user", "content": "Größe ?"},)
    first.put("me", Stored({"id": "a", "output": [{"text": "東京"}]}, conversation))
    for id in ("b", "c"):
        first.put("me", stored(id))
    first.put("me", Stored({"id": "b", "text": "newer"}, ()))
    first.close()
    again = ResponseStore(config)
    assert again.get("me", "a") == Stored({"id": "a", "output": [{"text": "東京"}]}, conversation)
    assert again.get("another", "a") is None
    again.put("me", stored("d"))
    found = [again.get("me", id) is not None for id in ("a", "b", "c", "d")]
    assert found == [False, True, True, True], "what was stored again is newer than what was not"
    assert [again.delete("me", "b"), again.delete("me", "b")] == [True, False]
    small = ResponseStore(replace(config, gib=160 / 2**30))
    small.put("me", stored("e", 120))
    assert [small.get("me", id) is not None for id in ("c", "d", "e")] == [False, False, True]


def test_a_file_that_is_no_store_is_the_operators_mistake(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("notes " * 100)
    with pytest.raises(UserError, match=r"serving\.store\.path=.*notes\.txt: file is not a database"):
        ResponseStore(StoreConfig(path=tmp_path / "notes.txt"))
