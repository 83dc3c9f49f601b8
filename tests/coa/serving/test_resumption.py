"""Records of episodes, and streams that pass through the front from one replica after another."""

import json

import numpy as np
import pytest

from coa.agent.journal import Observed, Said
from coa.serving import resumption
from coa.serving.faults import ApiError
from coa.serving.resumption import (
    NOTE,
    Answered,
    Dropped,
    Heard,
    Origin,
    Passage,
    Step,
    begun_in,
    broken_off,
    cut_short,
    ids_of,
    journal_in,
    new_origin,
    note_of,
    origin_in,
    steps_in,
)
from coa.serving.retelling import Diverged


def said(*token_ids: int, ended: bool = True) -> Said:
    ids = np.array(token_ids, np.int32)
    return Said(token_ids=ids, logprobs=np.zeros(len(ids), np.float32), versions=((3, len(ids)),), ended=ended)


def answered(*token_ids: int) -> Answered:
    return Answered(Observed(token_ids=np.array(token_ids, np.int32)), 0.25)


def notes_of(*steps: Step | Dropped) -> list[str]:
    return [note_of(step).removeprefix(NOTE).strip() for step in steps]


def plain(steps: list[Step]) -> list[object]:
    found: list[object] = []
    for step in steps:
        match step:
            case Heard(token_ids):
                found.append(token_ids)
            case Said():
                found.append((step.token_ids.tolist(), step.versions, step.ended))
            case Answered():
                found.append((step.observed.token_ids.tolist(), step.seconds))
    return found


COURSE = (Heard((1, 2)), Heard((3,)), said(1, 2, 3), answered(7, 8), Heard((4, 5)), Heard((6,)))


def test_a_record_has_the_steps_that_were_noted() -> None:
    steps = steps_in(notes_of(*COURSE))
    assert plain(steps) == plain(list(COURSE))
    assert [type(delta) for delta in journal_in(steps)] == [Said, Observed]
    assert begun_in(steps) == [4, 5, 6]
    assert begun_in(steps[:4]) == []


def test_dropped_tokens_are_no_longer_in_it() -> None:
    steps = steps_in([*notes_of(*COURSE, Dropped(2), Heard((9,)))])
    assert begun_in(steps) == [4, 9]
    assert begun_in(steps_in(notes_of(*COURSE, Dropped(99)))) == []


def test_an_origin_goes_to_a_replica_and_back() -> None:
    origin = Origin("a1", 1_700_000_000, tuple(notes_of(*COURSE)))
    found = origin_in(origin.header())
    assert (found.name, found.began, found.noted) == ("a1", 1_700_000_000, True)
    assert plain(steps_in(found.record)) == plain(list(COURSE))
    assert [ids_of(found)("msg"), ids_of(found)("msg")] == [ids_of(origin)("msg")] * 2
    new_id = ids_of(origin)
    assert new_id("msg") != new_id("msg")
    assert not origin_in(None).noted
    assert new_origin(noted=True).name != new_origin(noted=True).name


@pytest.mark.parametrize(
    "header", ["", "[]", "{}", "[1]", '["a",1,false,["heard"]]', '["a",1,true,["said",[1],1,true]]', "[[" * 9]
)
def test_an_origin_that_a_client_made_up_is_refused(header: str) -> None:
    with pytest.raises(ApiError, match="the server's own"):
        origin_in(header)


TOKENS = {1: "text", 2: "<", 3: "/", 4: "answer", 5: " a", 6: "b <", 7: ">"}


def decode(token_ids: object) -> str:
    return "".join(TOKENS[one] for one in token_ids)  # pyright: ignore[reportGeneralTypeIssues]


@pytest.mark.parametrize(
    ("begun", "kept"),
    [
        ((1, 5), (1, 5)),
        ((1, 2), (1,)),
        ((1, 2, 3, 4), (1,)),
        ((1, 2, 3, 4, 7), (1, 2, 3, 4, 7)),
        ((1, 6, 3), (1, 6)),  # the text before the tag was shown
        ((2,), ()),
    ],
)
def test_what_may_be_the_beginning_of_a_tag_is_sampled_again(begun: tuple[int, ...], kept: tuple[int, ...]) -> None:
    steps, dropped = cut_short([said(1), answered(1), *(Heard((one,)) for one in begun)], decode)
    assert begun_in(steps) == list(kept)
    assert dropped == len(begun) - len(kept)


def test_a_client_gets_each_byte_once_over_all_replicas() -> None:
    passage = Passage()
    first = [note_of(Heard((1,))), "data: a\n\n", "data: b\n\n", note_of(Heard((2,)))]
    got = b"".join(passage.take(chunk.encode()) for chunk in first)
    assert got == b"data: a\n\ndata: b\n\n"
    assert passage.resumable
    assert passage.record == notes_of(Heard((1,)), Heard((2,)))
    passage.begin_again()
    second = ["data: a\n\nda", "ta: b\n\ndata: c\n\n", note_of(Heard((3,))) + note_of(Heard((4,)))]
    assert b"".join(passage.take(chunk.encode()) for chunk in second) == b"data: c\n\n"
    assert passage.record == notes_of(Heard((1,)), Heard((2,)), Heard((3,)), Heard((4,)))
    passage.begin_again()
    assert passage.take(b"data: a\n\ndata: b\n\ndata: c\n\ndata: d\n\n") == b"data: d\n\n"


def test_a_replica_that_says_something_else_is_noticed() -> None:
    passage = Passage()
    passage.take(note_of(Heard((1,))).encode())
    passage.take(b"data: a\n\ndata: b\n\n")
    passage.begin_again()
    assert passage.take(b"data: a\n\n") == b""
    with pytest.raises(Diverged):
        passage.take(b"data: x\n\n")


def delta(text: str, name: str) -> bytes:
    return f'data: {{"id":"{name}","delta":"{text}"}}\n\n'.encode()


def test_a_stream_without_notes_is_made_anew() -> None:
    passage = Passage()
    got = passage.take(delta("The ma", "1"))
    assert passage.resumable
    passage.begin_again()
    got += passage.take(delta("The ", "2") + delta("mayor", "2"))
    passage.begin_again()
    got += passage.take(delta("The mayor is", "3")) + passage.take(b"data: [DONE]\n\n")
    assert got == delta("The ma", "1") + delta("yor", "1") + delta(" is", "1") + b"data: [DONE]\n\n"


def test_what_was_begun_before_the_first_note_is_made_anew_too() -> None:
    passage = Passage()
    got = passage.take(delta("The ", "1"))
    passage.begin_again()
    passage.take(note_of(Heard((1,))).encode())
    got += passage.take(delta("The mayor", "1"))
    passage.begin_again()
    got += passage.take(delta("The mayor is", "1"))
    assert got == delta("The ", "1") + delta("mayor", "1") + delta(" is", "1")


def test_too_much_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resumption, "KEPT_BYTES", 100)
    passage = Passage()
    passage.take(delta("x" * 200, "1"))
    assert not passage.resumable


def test_the_event_that_ends_a_stream_is_that_of_its_protocol() -> None:
    error, passage = ApiError(502, "engine_lost", "gone"), Passage()
    passage.take(b'event: x\ndata: {"type":"x","sequence_number":41,"delta":"\\"sequence_number\\":99"}\n\n')
    head, data = broken_off("/v1/responses", error, passage.sequence).decode().strip().split("\n")
    assert head == "event: error"
    assert json.loads(data.removeprefix("data: ")) == {
        "type": "error",
        "code": "engine_lost",
        "message": "gone",
        "param": None,
        "sequence_number": 42,
    }
    assert broken_off("/v1/messages", error, -1).startswith(b'event: error\ndata: {"type": "error", "error"')
    assert broken_off("/v1/chat/completions", error, -1).endswith(b"data: [DONE]\n\n")
