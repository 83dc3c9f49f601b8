"""Streams as servers send them: framing, pieces of tool calls, usage, errors."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from coa.distill.sources.recorder.chat import ChatStream
from coa.distill.sources.recorder.completion import Completion
from coa.distill.sources.recorder.events import Stream

Chunk = dict[str, Any]


def chunk(delta: Chunk, finish: str | None = None, **more: Any) -> Chunk:
    return {"model": "m-1", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more}


def sent(*chunks: object, after: str = "\n\n") -> bytes:
    return "".join(f"data: {json.dumps(one)}{after}" for one in chunks).encode()


def read(data: bytes, width: int = 1 << 20) -> Stream:
    stream = ChatStream()
    for at in range(0, len(data), width):
        stream.feed(data[at : at + width])
    stream.close()
    return stream


def message_of(data: bytes) -> Any:
    stream = read(data)
    assert (stream.fault, stream.whole) == ("", True)
    return stream.completion.message


HELLO = [chunk({"role": "assistant", "content": "Bé"}), chunk({"content": "rg ☃"}), chunk({}, "stop")]
DONE = b"data: [DONE]\n\n"
PLAIN = sent(*HELLO) + DONE
SAID = Completion({"role": "assistant", "content": "Bérg ☃"}, "stop", None, "m-1")
FRAMES = {
    "plain": PLAIN,
    "CRLF": PLAIN.replace(b"\n", b"\r\n"),
    "CR": PLAIN.replace(b"\n", b"\r"),
    "no blank": PLAIN.replace(b"data: ", b"data:"),
    "tab": PLAIN.replace(b"data: ", b"data: \t"),
    "comments": b": connected\n\n" + PLAIN.replace(b"\n\n", b"\n\n: ping\n\n:\n\n"),
    "wrapped comments": PLAIN.replace(b"\n\n", b"\n\ndata: : OPENROUTER PROCESSING\n\ndata:\n\n"),
    "names and ids": PLAIN.replace(b"data: {", b"event: message\nid: 7\nretry: 3\ndata: {"),
    "one line apart": sent(*HELLO, after="\n") + DONE,
    "several lines": PLAIN.replace(b'"model": "m-1", ', b'"model": "m-1",\ndata: '),
    "mark of UTF-8": b"\xef\xbb\xbf" + PLAIN,
    "no end of the last line": sent(*HELLO) + b"data: [DONE]",
    "no DONE": sent(*HELLO),
    "no DONE and no end": sent(*HELLO).rstrip(),
    "escaped": "".join(f"data: {json.dumps(one, ensure_ascii=False)}\n\n" for one in HELLO).encode() + DONE,
}


@pytest.mark.parametrize("width", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("frame", FRAMES)
def test_a_stream_is_read_however_it_is_framed_and_cut(frame: str, width: int) -> None:
    stream = read(FRAMES[frame], width)
    assert (stream.fault, stream.whole, stream.completion) == ("", True, SAID)


def piece(name: str = "", arguments: Any = "", **fields: Any) -> Chunk:
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value != ""}
    return {**fields, "function": function}


def calls_in(pieces: Sequence[Chunk], *, together: bool = False) -> Any:
    """The tool calls of a reply whose pieces come in one chunk, or in as many."""
    chunks = [pieces] if together else [[one] for one in pieces]
    return message_of(sent(*(chunk({"tool_calls": one}) for one in chunks), chunk({}, "tool_calls")))["tool_calls"]


def call(id: str, name: str, arguments: str) -> Chunk:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


A, B = '{"q": "a"}', '{"q": "b"}'


def split(*fields: Chunk) -> list[Chunk]:
    """Two calls, each in two pieces, which bear these fields."""
    parts = (("f", A[:4]), ("", A[4:]), ("g", B[:4]), ("", B[4:]))
    return [piece(name, arguments, **bears) for (name, arguments), bears in zip(parts, fields, strict=True)]


CALLS = {
    "numbered": [
        piece("f", "", index=0, id="a"),
        piece("", A, index=0),
        piece("g", "", index=1, id="b"),
        piece("", B, index=1),
    ],
    "no numbers": split({"id": "a"}, {}, {"id": "b"}, {}),
    "one number": [piece("f", A, index=0, id="a"), piece("g", B, index=0, id="b")],
    "one number, in pieces": split({"index": 0, "id": "a"}, {"index": 0}, {"index": 0, "id": "b"}, {"index": 0}),
    "the rest under another number": [
        piece("f", A, index=0, id="a"),
        piece("g", "", index=0, id="b"),
        piece("", B[:4], index=1),
        piece("", B[4:], index=1),
    ],
    "the id with each piece": split(
        {"index": 0, "id": "a"}, {"index": 0, "id": "a"}, {"index": 1, "id": "b"}, {"index": 1, "id": "b"}
    ),
    "id and name with each piece": [
        piece("f", A[:4], id="a"),
        piece("f", A[4:], id="a"),
        piece("g", B[:4], id="b"),
        piece("g", B[4:], id="b"),
    ],
    "mixed by turns": [
        piece("f", A[:4], index=0, id="a"),
        piece("g", B[:4], index=1, id="b"),
        piece("", A[4:], index=0),
        piece("", B[4:], index=1),
    ],
    "by turns without numbers": [
        piece("f", A[:4], id="a"),
        piece("g", B[:4], id="b"),
        piece("", A[4:], id="a"),
        piece("", B[4:], id="b"),
    ],
    "empty ids": split(
        {"index": 0, "id": "a"}, {"index": 0, "id": ""}, {"index": 1, "id": "b"}, {"index": 1, "id": ""}
    ),
    "objects": [piece("f", json.loads(A), index=0, id="a"), piece("g", json.loads(B), index=1, id="b")],
    "numbers as text": [piece("f", A, index="0", id="a"), piece("g", B, index="1", id="b")],
    "null fields": [
        piece("f", None, index=0, id="a"),
        piece("", A, index=0, id=None),
        piece("g", None, index=1, id="b"),
        {"index": 1, "id": None, "function": {"name": None, "arguments": B}},
    ],
    "a new id with each piece": split(
        {"index": 0, "id": "a"}, {"index": 0, "id": "a2"}, {"index": 1, "id": "b"}, {"index": 1, "id": "b2"}
    ),
    "new ids without numbers": split({"id": "a"}, {"id": "a2"}, {"id": "b"}, {"id": "b2"}),
    "the name after the id": [
        piece("", "", index=0, id="a"),
        piece("f", A, index=0),
        piece("", "", index=1, id="b"),
        piece("g", "", index=1),
        piece("", B, index=1),
    ],
    "the name last": [
        piece("", A, index=0, id="a"),
        piece("f", index=0),
        piece("", B, index=1, id="b"),
        piece("g", index=1),
    ],
    "numbers that begin at one": [piece("f", A, index=1, id="a"), piece("g", B, index=2, id="b")],
}


@pytest.mark.parametrize("together", [False, True], ids=["apart", "in one chunk"])
@pytest.mark.parametrize("form", CALLS)
def test_tool_calls_are_told_apart_whatever_their_pieces_bear(form: str, together: bool) -> None:
    assert calls_in(CALLS[form], together=together) == [call("a", "f", A), call("b", "g", B)]


def test_a_name_in_pieces_is_one_name() -> None:
    pieces = [piece("sea", index=0, id="a"), piece("rch", index=0), piece("", A, index=0)]
    assert calls_in(pieces) == [call("a", "search", A)]


@pytest.mark.parametrize("fields", [{"index": 0}, {"index": 0, "id": "x"}, {"id": "x"}, {}])
def test_whole_calls_under_one_number_and_one_id_are_as_many_calls(fields: Chunk) -> None:
    id = fields.get("id", "")
    assert calls_in([piece("f", A, **fields), piece("f", B, **fields)]) == [call(id, "f", A), call(id, "f", B)]


def test_two_numbers_with_one_id_are_two_calls() -> None:
    pieces = [piece("f", A, index=0, id="x"), piece("f", B, index=1, id="x")]
    assert calls_in(pieces, together=True) == [call("x", "f", A), call("x", "f", B)]


def test_the_older_form_of_a_call_is_kept_as_such() -> None:
    deltas = [{"function_call": {"name": "f", "arguments": A[:3]}}, {"function_call": {"arguments": A[3:]}}]
    message = message_of(sent(*map(chunk, deltas), chunk({}, "function_call")))
    assert message == {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": A}}


def test_content_in_parts_and_thoughts_are_texts() -> None:
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
    deltas = [{"content": [thinking]}, {"content": [{"type": "text", "text": "Be"}]}, {"content": "rg"}]
    message = message_of(sent(*map(chunk, deltas), chunk({}, "stop")))
    assert message == {"role": "assistant", "content": "Berg", "reasoning_content": "hm"}


def test_parts_that_are_no_text_are_kept_as_they_came() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:"}}
    deltas = [{"content": [{"type": "text", "text": "Be"}, picture]}, {"content": "rg"}, {"images": [picture]}]
    message = message_of(sent(*map(chunk, deltas), chunk({}, "stop")))
    assert message == {"role": "assistant", "content": ["Berg", picture], "images": [picture]}


@pytest.mark.parametrize(
    "pieces",
    [
        [{"reasoning_content": "h"}, {"reasoning_content": "m"}],
        [{"thinking": "h"}, {"thinking": "m"}],
        [{"reasoning_details": [{"type": "reasoning.text", "text": text}]} for text in "hm"],
        [{"thinking_blocks": [{"type": "thinking", "thinking": text}]} for text in "hm"],
        [{"reasoning_content": text, "thinking_blocks": [{"type": "thinking", "thinking": text}]} for text in "hm"],
    ],
)
def test_reasoning_is_kept_once_whatever_its_field(pieces: list[Chunk]) -> None:
    message = message_of(sent(*map(chunk, pieces), *HELLO))
    assert (message["reasoning_content"], message["content"]) == ("hm", "Bérg ☃")


def test_the_first_choice_is_kept_and_what_only_one_chunk_says_of_it() -> None:
    first = {"index": "0", "delta": {"role": "model", "content": "Be"}}
    other = {"index": 1, "delta": {"content": "no"}, "finish_reason": "length"}
    last = {"delta": {"content": "rg", "refusal": "I "}, "finish_reason": "stop"}
    after = {"delta": {"refusal": "won't"}, "finish_reason": None}
    stream = read(sent({"model": "m-1", "choices": [first, other]}, *({"choices": [one]} for one in (last, after))))
    message = {"role": "model", "content": "Berg", "refusal": "I won't"}
    assert stream.completion == Completion(message, "stop", None, "m-1")


def test_a_reply_that_comes_as_one_message_is_read() -> None:
    whole = {"choices": [{"message": {"role": "assistant", "content": "Berg"}, "finish_reason": "stop"}]}
    assert message_of(sent(whole)) == {"role": "assistant", "content": "Berg"}


FULL = {"prompt_tokens": 7, "completion_tokens": 3}
USAGES = {
    "at the end": sent(*HELLO, {"choices": [], "usage": FULL}) + DONE,
    "on an earlier chunk": sent(chunk({"content": "x"}, usage=FULL), chunk({}, "stop", usage=None)),
    "zeros at the end": sent(chunk({"content": "x"}, usage=FULL), chunk({}, "stop", usage=dict.fromkeys(FULL, 0))),
    "totals so far": sent(
        *(chunk({"content": "x"}, usage={"prompt_tokens": 7, "completion_tokens": n}) for n in (1, 2)),
        chunk({}, "stop", usage=FULL),
    ),
    "in two parts": sent(
        chunk({"content": "x"}, usage={"prompt_tokens": 7}), chunk({}, "stop", usage={"completion_tokens": 3})
    ),
    "after DONE": sent(*HELLO) + DONE + sent({"choices": [], "usage": FULL}),
    "in the choice": sent({"choices": [{"delta": {"content": "x"}, "finish_reason": "stop", "usage": FULL}]}),
    "in a field of its own": sent(*HELLO, {"choices": [], "x_groq": {"usage": FULL}}) + DONE,
    "without choices": sent(*HELLO, {"usage": FULL}) + DONE,
    "null choices": sent(*HELLO, {"choices": None, "usage": FULL}) + DONE,
}


@pytest.mark.parametrize("place", USAGES)
def test_usage_is_found_wherever_it_is(place: str) -> None:
    stream = read(USAGES[place])
    assert (stream.fault, stream.completion.usage) == ("", FULL)


@pytest.mark.parametrize(
    ("last", "fault"),
    [
        (b'data: {"error": {"message": "overloaded", "code": 529}}\n\n', "an error in the answer: overloaded"),
        (b'data: {"error": "overloaded"}\n\n', "an error in the answer: overloaded"),
        (b'event: error\ndata: {"message": "overloaded"}\n\n', "an error in the answer: overloaded"),
        (b'data: {"object": "error", "message": "overloaded"}\n\n', "an error in the answer: overloaded"),
        (b'{"error": {"message": "overloaded"}}\n', "an error in the answer: overloaded"),
        (b"data: [ERROR] overloaded\n\n", "the answer is no reply of a model: [ERROR] overloaded"),
        (b"data: {\n\n", "the answer is no reply of a model: {"),
        (b'data: {"choices": [7]}\n\n', "the answer is no reply of a model: an event with choices"),
        (sent(chunk({}, "error")), "the server broke it off: error"),
        (sent(chunk({}, "abort")), "the server broke it off: abort"),
    ],
)
def test_an_error_in_the_middle_is_a_failure_that_says_what_it_was(last: bytes, fault: str) -> None:
    stream = read(sent(HELLO[0]) + last + sent(*HELLO[1:]) + DONE)
    assert stream.fault == fault
    assert stream.completion.message is not None


def test_a_stream_without_an_end_is_not_whole() -> None:
    assert not read(sent(*HELLO[:2])).whole
