"""How a stream goes on after the end of its engine: another replica plays the episode again from its record.

    front ──── Origin: name, time, record so far ───► replica
    front ◄─── events for the client, and between them notes of what the episode has done ──── replica

The front takes the notes out of the stream. If the replica ends, the front sends the request to another one with the
record of these notes. That one repeats the recorded steps, which gives the same bytes again, and goes on from there;
the client gets what is new. Ids and times in the events follow from the Origin, so they are repeated too. A stream of
the model alone has no notes: it is made anew, with the same seed.
"""

import hashlib
import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from secrets import token_hex

import numpy as np

from coa.agent.journal import Journal, Observed, Said
from coa.serving.chain import partial_tag_length
from coa.serving.faults import ApiError
from coa.serving.retelling import Diverged, Retelling
from coa.types import Tokens

HEADER = "x-coa-origin"
"""Header with an Origin, which only the front may send."""
NOTE, END = ": coa ", "\n\n"
"""A note is a comment of the server-sent events: NOTE, a list of JSON, END."""
KEPT_BYTES = 4 * 2**20
"""Maximum bytes of a stream without notes that the front keeps, to compare it with one that is made anew."""


@dataclass(frozen=True, slots=True)
class Heard:
    """Tokens of a turn, as they came."""

    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Dropped:
    """The last tokens of those heard are no longer part of the turn."""

    tokens: int


@dataclass(frozen=True, slots=True)
class Answered:
    """The result of a tool call."""

    observed: Observed
    seconds: float


@dataclass(frozen=True, slots=True)
class Over:
    """The episode has ended, and the client may know it."""

    at: int
    """Seconds since 1970."""


Step = Heard | Said | Answered
Note = Step | Dropped | Over


@dataclass(frozen=True, slots=True)
class Origin:
    """The state besides the request from which its answer follows."""

    name: str
    """Random; ids in the answer and the seeds of an episode without a seed follow from it."""
    began: int
    """When the request came, in seconds since 1970."""
    record: tuple[str, ...] = ()
    """The notes of earlier replicas."""
    again: bool = False
    """Whether an earlier replica has admitted the request, and counted it for its key."""
    noted: bool = True
    """Whether the replica is to send notes."""

    def header(self) -> str:
        notes = map(json.loads, self.record)
        return json.dumps([self.name, self.began, self.again, *notes], separators=(",", ":"))


def new_origin(*, noted: bool) -> Origin:
    return Origin(token_hex(16), int(time.time()), noted=noted)


def origin_in(header: str | None) -> Origin:
    """The front's Origin; a new one, without notes, if there is no front. Raises ApiError if a client made it up."""
    if header is None:
        return new_origin(noted=False)
    try:
        name, began, again, *record = json.loads(header)
        origin = Origin(str(name), int(began), tuple(map(json.dumps, record)), again=bool(again))
        steps_in(origin.record)
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise ApiError(400, "invalid_value", f"the header {HEADER} is the server's own") from error
    return origin


def seed_of(origin: Origin) -> int:
    """The seed of a request without one."""
    return int(hashlib.sha256(origin.name.encode()).hexdigest()[:7], 16)


def ids_of(origin: Origin) -> Callable[[str], str]:
    """A function that returns the next id with a prefix."""
    count = 0

    def new_id(prefix: str) -> str:
        nonlocal count
        count += 1
        return f"{prefix}_{hashlib.sha256(f'{origin.name} {count}'.encode()).hexdigest()[:32]}"

    return new_id


# --- notes ------------------------------------------------------------------------------------------------------------


def note_of(note: Note) -> str:
    """The note as a comment of a stream."""
    match note:
        case Heard(token_ids):
            value = ["heard", list(token_ids)]
        case Dropped(tokens):
            value = ["dropped", tokens]
        case Said(token_ids=token_ids, versions=versions, ended=ended):
            value = ["said", token_ids.tolist(), [list(run) for run in versions], ended]
        case Answered(observed, seconds):
            value = ["answered", observed.token_ids.tolist(), seconds]
        case Over(at):
            value = ["over", at]
    return f"{NOTE}{json.dumps(value, separators=(',', ':'))}{END}"


def steps_in(record: Sequence[str]) -> list[Step]:
    """The steps of a record, tokens that were dropped left out. Raises ValueError or TypeError if it is none."""
    steps: list[Step] = []
    for note in record:
        kind, *values = json.loads(note)
        match kind, values:
            case "heard", [token_ids]:
                steps.append(Heard(tuple(map(int, token_ids))))
            case "dropped", [tokens]:
                steps = _without(steps, int(tokens))
            case "said", [token_ids, versions, ended]:
                runs = tuple((int(version), int(tokens)) for version, tokens in versions)
                unknown = np.full(len(token_ids), np.nan, np.float32)
                steps.append(Said(token_ids=_array(token_ids), logprobs=unknown, versions=runs, ended=bool(ended)))
            case "answered", [token_ids, seconds]:
                steps.append(Answered(Observed(token_ids=_array(token_ids)), float(seconds)))
            case "over", [_]:
                pass
            case _:
                raise ValueError(f"no step: {note:.80}")
    return steps


def over_in(record: Sequence[str]) -> int | None:
    """When the episode ended, in seconds since 1970; None if it has not."""
    return next((values[0] for kind, *values in map(json.loads, record) if kind == "over"), None)


def _array(token_ids: list[int]) -> Tokens:
    return np.array(token_ids, np.int32).reshape(-1)


def _without(steps: list[Step], tokens: int) -> list[Step]:
    """The steps without the last tokens that were heard."""
    steps = list(steps)
    while tokens > 0 and steps and isinstance(last := steps[-1], Heard):
        kept = last.token_ids[: max(0, len(last.token_ids) - tokens)]
        tokens -= len(last.token_ids) - len(kept)
        steps[-1:] = [Heard(kept)] if kept else []
    return steps


def cut_short(steps: Sequence[Step], decode: Callable[[Sequence[int]], str]) -> tuple[list[Step], int]:
    """The steps that an episode can go on from, and the number of tokens at their end that are dropped: those that may
    be the beginning of a tag, since an engine finds the stop only in what it samples itself. A reader holds them back,
    so no client has seen them. decode: returns the text of tokens."""
    begun = begun_in(steps)
    drop = 0
    while drop < len(begun) and partial_tag_length(decode(begun[: len(begun) - drop])):
        drop += 1
    if partial_tag_length(decode(begun)) < len(decode(begun)) - len(decode(begun[: len(begun) - drop])):
        drop -= 1  # the first of these tokens has text before the tag as well
    return _without(list(steps), drop), drop


def begun_in(steps: Sequence[Step]) -> list[int]:
    """The tokens of the turn that has not ended."""
    begun: list[int] = []
    for step in steps:
        match step:
            case Heard(token_ids):
                begun += token_ids
            case _:
                begun = []
    return begun


def ended_turn(steps: Sequence[Step]) -> Said:
    """The turn that has been heard, as a whole; of the weight version that sampled the turn before."""
    begun = begun_in(steps)
    version = next((step.versions[-1][0] for step in reversed(steps) if isinstance(step, Said) and step.versions), 0)
    unknown = np.full(len(begun), np.nan, np.float32)
    return Said(token_ids=_array(begun), logprobs=unknown, versions=((version, len(begun)),), ended=True)


def journal_in(steps: Sequence[Step]) -> Journal:
    """The turns and results that are complete."""
    return tuple(
        step.observed if isinstance(step, Answered) else step for step in steps if isinstance(step, Said | Answered)
    )


# --- the front --------------------------------------------------------------------------------------------------------


class Passage:
    """A stream on its way through the front, over all replicas that make it.

    If there are notes, another replica repeats the bytes that were sent, of which only a digest is kept. Without notes
    it makes the stream anew, which is compared event by event (`coa.serving.retelling`).
    """

    def __init__(self) -> None:
        self.record: list[str] = []
        self.sequence = -1
        """The last `sequence_number` that was passed on."""
        self._sent, self._digest = 0, hashlib.sha256()
        self._repeated, self._repeating = 0, hashlib.sha256()
        self._kept: list[bytes] | None = []
        """The events that were sent; None where there are notes, or too much was sent."""
        self._kept_bytes = 0
        self._retelling: Retelling | None = None

    @property
    def resumable(self) -> bool:
        """Whether another replica can give what the client lacks."""
        return self._kept is not None or (self._retelling is None and bool(self.record))

    def begin_again(self) -> None:
        """Another replica begins."""
        self._repeated, self._repeating = 0, hashlib.sha256()
        if self._kept is not None and (self._retelling is not None or not self.record):
            self._retelling = Retelling(self._kept)

    def take(self, chunk: bytes) -> bytes:
        """Returns the bytes of a replica's chunk (a note or events) that the client has not got. Raises Diverged."""
        if chunk.startswith(NOTE.encode()):
            self._note(chunk)
            return b""
        new = self._unrepeated(chunk) if self._retelling is None else self._retold(chunk)
        if found := _NUMBERS.findall(new):
            self.sequence = int(found[-1])
        if self._kept is not None and new:
            self._kept += _events_in(new)
            self._kept_bytes += len(new)
            if self._kept_bytes > KEPT_BYTES:
                self._kept = None
        return new

    def _unrepeated(self, chunk: bytes) -> bytes:
        again = min(len(chunk), self._sent - self._repeated)
        if again:
            self._repeating.update(chunk[:again])
            self._repeated += again
            if self._repeated == self._sent and self._repeating.digest() != self._digest.digest():
                raise Diverged
        new = chunk[again:]
        self._digest.update(new)
        self._sent += len(new)
        self._repeated += len(new)
        self._repeating.update(new)
        return new

    def _retold(self, chunk: bytes) -> bytes:
        assert self._retelling is not None
        return b"".join(map(self._retelling.take, _events_in(chunk)))

    def _note(self, chunk: bytes) -> None:
        self.record += [note.removeprefix(NOTE) for note in chunk.decode().split(END) if note]
        if self._retelling is None:
            self._kept = None


def _events_in(chunk: bytes) -> list[bytes]:
    """The events of a chunk, in which they are whole."""
    return [event + END.encode() for event in chunk.split(END.encode()) if event]


_NUMBERS = re.compile(rb'"sequence_number":(\d+)')


def broken_off(path: str, error: ApiError, sequence: int) -> bytes:
    """The event that ends a stream which can't go on, in the protocol at that path. sequence: number of the last
    event, in the Responses API."""
    if path.startswith("/v1/messages"):
        return _event("error", error.anthropic())
    if path.startswith("/v1/responses"):
        told = {"type": "error", "code": error.code, "message": error.message, "param": None}
        return _event("error", {**told, "sequence_number": sequence + 1})
    return f"data: {json.dumps(error.openai())}\n\ndata: [DONE]\n\n".encode()


def _event(name: str, value: object) -> bytes:
    return f"event: {name}\ndata: {json.dumps(value)}\n\n".encode()
