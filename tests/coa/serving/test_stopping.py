"""Stop sequences of the agent's answers."""

import itertools
from typing import Any

import pytest

from coa.serving.chain import Closed, Opened, Text
from coa.serving.events import Event, Finished, ServedUsage
from coa.serving.stopping import Stopping
from coa.types import Status


def course(answer: str, cuts: tuple[int, ...] = ()) -> list[Event]:
    """An episode that thinks, and answers in these pieces."""
    places = (0, *cuts, len(answer))
    pieces = [answer[begin:end] for begin, end in itertools.pairwise(places) if begin < end]
    end = Finished(status=Status.ANSWERED, answer=answer, usage=ServedUsage(output_tokens=9))
    thought: list[Event] = [Opened("think"), Text("stop STOP"), Closed("think", "stop STOP", 3)]
    return [*thought, Opened("answer"), *map(Text, pieces), Closed("answer", answer, 4), end]


def passed_on(stopping: Stopping, events: list[Event]) -> tuple[str, str, Finished, Any]:
    """The answer as streamed, as closed, and the end; and the thought."""
    out = [one for event in events for one in stopping.take(event)]
    at = out.index(Opened("answer"))
    streamed = "".join(event.text for event in out[at:] if isinstance(event, Text))
    [closed] = [event.text for event in out[at:] if isinstance(event, Closed)]
    end = out[-1]
    assert isinstance(end, Finished)
    return streamed, closed, end, out[:at]


@pytest.mark.parametrize(
    ("answer", "sequences", "kept", "by"),
    [
        ("one two three", (" two",), "one", " two"),
        ("one two three", ("three", "two"), "one ", "two"),
        ("one two", ("one",), "", "one"),
        ("one two", ("four", "two "), "one two", ""),
        ("aab", ("ab",), "a", "ab"),
        ("abababc", ("ababc",), "ab", "ababc"),
        ("größe STOP", ("STOP", "ße"), "grö", "ße"),
        ("a\n\nb", ("\n\n", "\n"), "a", "\n\n"),
        ("", ("x",), "", ""),
    ],
)
def test_an_answer_ends_before_the_first_sequence_however_it_comes_in_pieces(
    answer: str, sequences: tuple[str, ...], kept: str, by: str
) -> None:
    for number in range(4):
        for cuts in itertools.combinations(range(1, len(answer)), number):
            streamed, closed, end, thought = passed_on(Stopping(sequences), course(answer, cuts))
            assert (streamed, closed, end.answer, end.stopped_by) == (kept, kept, kept, by)
            assert thought == course("")[:3], "only the answer is cut"
            assert end.usage.output_tokens == 9


def test_text_is_held_back_only_as_long_as_it_may_begin_a_sequence() -> None:
    stopping = Stopping(("\n\nUser:",))
    stopping.take(Opened("answer"))
    assert stopping.take(Text("one\n")) == [Text("one")]
    assert stopping.take(Text("two")) == [Text("\ntwo")]
    assert stopping.take(Text("\n\nUse")) == []
    assert stopping.take(Closed("answer", "one\ntwo\n\nUse", 5)) == [
        Text("\n\nUse"),
        Closed("answer", "one\ntwo\n\nUse", 5),
    ]


def test_without_sequences_every_event_is_passed_on_as_it_is() -> None:
    events = course("one two", (3,))
    stopping = Stopping(())
    assert [one for event in events for one in stopping.take(event)] == events
