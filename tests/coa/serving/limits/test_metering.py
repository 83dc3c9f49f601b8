"""What is counted of a stream of the model alone, and what its client sees of the counting."""

import json
from typing import Any

import pytest

from coa.serving.limits.metering import ChunkMeter, MessageMeter, Meter, tokens_of


def chunk(**fields: Any) -> str:
    return f"data: {json.dumps(fields)}\n\n"


def usage(sampled: int) -> dict[str, int]:
    return {"prompt_tokens": 900, "completion_tokens": sampled, "total_tokens": 900 + sampled}


CHOICE = [{"index": 0, "delta": {"content": "data: é"}}]
STREAM = [
    chunk(choices=CHOICE, usage=usage(3)),
    chunk(choices=CHOICE, usage=usage(7)),
    chunk(choices=[], usage=usage(7)),
    "data: [DONE]\n\n",
]
BARE = [chunk(choices=CHOICE)] * 2


@pytest.mark.parametrize(
    ("options", "seen"),
    [
        (None, [*BARE, "", STREAM[3]]),
        ({"include_usage": True}, [*BARE, *STREAM[2:]]),
        ({"include_usage": True, "continuous_usage_stats": True}, STREAM),
    ],
)
def test_a_client_sees_the_usage_that_it_asked_for(options: Any, seen: list[str]) -> None:
    meter = ChunkMeter({"model": "m", "stream": True, **({"stream_options": options} if options else {})})
    assert meter.body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert [meter.take(text) for text in STREAM] == seen
    assert meter.tokens == 907


def test_a_stream_that_is_left_costs_its_prompt_and_what_was_sampled() -> None:
    meter: Meter = ChunkMeter({})
    assert meter.tokens == 0
    meter.take(STREAM[0])
    assert meter.tokens == 903


def test_an_error_in_a_stream_is_passed_on() -> None:
    error = chunk(error={"message": "half\ud83d"})
    assert ChunkMeter({}).take(error) == error


def test_messages_are_counted_from_their_first_event_on() -> None:
    meter = MessageMeter({"model": "m"})

    def event(kind: str, **fields: Any) -> str:
        return f"event: {kind}\n{chunk(type=kind, **fields)}"

    stream = [
        event("message_start", message={"usage": {"input_tokens": 900, "output_tokens": 0}}),
        event("content_block_delta", delta={"text": "a"}),
        event("content_block_delta", delta={"text": "b"}),
    ]
    assert [meter.take(text) for text in stream] == stream
    assert meter.tokens == 902
    meter.take(event("message_delta", usage={"input_tokens": 900, "output_tokens": 7}))
    assert meter.tokens == 907
    assert meter.body == {"model": "m"}


def test_tokens_are_added_up_in_the_words_of_either_protocol() -> None:
    assert tokens_of({"prompt_tokens": 2, "completion_tokens": None, "total_tokens": 9}) == 2
    assert tokens_of({"input_tokens": 2, "output_tokens": 3}) == 5
