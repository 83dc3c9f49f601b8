"""Streams that are made anew, and cut into deltas differently."""

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coa.serving.retelling import Diverged, Retelling

TEXT = "The mayor of Arden is Berg, since 1999."


def cut(text: str, places: Sequence[int]) -> list[str]:
    edges = [0, *sorted({place for place in places if 0 < place < len(text)}), len(text)]
    return [text[a:b] for a, b in pairwise(edges)]


def chat(pieces: Sequence[str], name: str) -> list[bytes]:
    def chunk(delta: object, **more: object) -> bytes:
        value = {"id": name, "created": len(name), "choices": [{"index": 0, "delta": delta, "logprobs": None, **more}]}
        return f"data: {json.dumps(value)}\n\n".encode()

    said = [chunk({"content": piece}) for piece in pieces]
    return [chunk({"role": "assistant", "content": ""}), *said, chunk({}, finish_reason="stop"), b"data: [DONE]\n\n"]


def responses(pieces: Sequence[str], name: str) -> list[bytes]:
    events: list[dict[str, Any]] = [{"type": "response.created"}]
    events += [{"type": "response.output_text.delta", "item_id": "msg_1", "delta": piece} for piece in pieces]
    events += [{"type": "response.output_text.done", "item_id": "msg_1", "text": "".join(pieces)}]
    return [
        f"event: {event['type']}\ndata: {json.dumps({**event, 'sequence_number': number})}\n\n".encode()
        for number, event in enumerate(events)
    ] + [b"data: [DONE]\n\n"]


def told(events: Sequence[bytes]) -> tuple[str, list[object], set[object]]:
    """The text of the deltas, the sequence numbers, and the ids."""
    values = [json.loads(one.partition(b"data: ")[2]) for one in events if b"data: {" in one]
    text = "".join(
        value.get("delta") or "".join(choice["delta"].get("content") or "" for choice in value.get("choices", ()))
        for value in values
    )
    numbers = [value["sequence_number"] for value in values if "sequence_number" in value]
    return text, numbers, {value["id"] for value in values if "id" in value}


@pytest.mark.parametrize("write", [chat, responses])
@given(
    first=st.lists(st.integers(0, len(TEXT))),
    second=st.lists(st.integers(0, len(TEXT))),
    third=st.lists(st.integers(0, len(TEXT))),
    data=st.data(),
)
def test_the_client_has_the_text_once_however_it_is_cut(
    write: Callable[[Sequence[str], str], list[bytes]],
    first: list[int],
    second: list[int],
    third: list[int],
    data: st.DataObject,
) -> None:
    got = write(cut(TEXT, first), "a")
    got = got[: data.draw(st.integers(0, len(got)))]
    for places, name in ((second, "b"), (third, "c")):
        again = Retelling(got)
        anew = write(cut(TEXT, places), name)
        if name == "b":
            anew = anew[: data.draw(st.integers(0, len(anew)))]
        begun = bool(got)
        got = [*got, *filter(None, map(again.take, anew))]
        if begun:
            assert len(told(got)[2]) <= 1, "the client sees one id"
    text, numbers, _ = told(got)
    assert text == TEXT
    assert numbers == list(range(len(numbers)))
    assert got[-1] == b"data: [DONE]\n\n"
    assert got.count(b"data: [DONE]\n\n") == 1 or got[-2] == got[-1]


@pytest.mark.parametrize(
    "anew", [["The major"], ["A"], ["The mayor", " of", " Arden was"]], ids=["within", "at once", "later"]
)
def test_another_text_is_noticed(anew: list[str]) -> None:
    again = Retelling(chat(["The ", "mayor of", " Arden is"], "a")[:4])
    with pytest.raises(Diverged):
        list(map(again.take, chat(anew, "b")))


def event(kind: str, **more: object) -> bytes:
    return f"data: {json.dumps({'type': kind, **more})}\n\n".encode()


def test_an_event_without_a_text_has_to_come_too() -> None:
    with pytest.raises(Diverged):
        Retelling([event("added", item="reasoning")]).take(event("added", item="message"))


def test_an_empty_piece_after_its_text_is_passed_over() -> None:
    again = Retelling([event("text", delta="ab"), event("done", text="ab")])
    anew = [event("text", delta="ab"), event("text", delta=""), event("done", text="ab"), event("ended")]
    assert list(map(again.take, anew)) == [b"", b"", b"", b'data: {"type":"ended"}\n\n']


def test_another_end_is_noticed() -> None:
    again = Retelling(responses(["The ", "mayor"], "a"))
    with pytest.raises(Diverged):
        list(map(again.take, responses(["The mayor of"], "b")))
