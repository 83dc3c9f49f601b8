r"""Reads rows of data sets for fine-tuning, in the usual formats, as conversations.

    openai     {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "tool_calls": [...]}, ...]}
    sharegpt   {"conversations": [{"from": "human", "value": "..."}, {"from": "function_call", "value": "{...}"}, ...]}
    glaive     {"system": "...", "chat": "USER: ...\n\nASSISTANT: <functioncall> {...}\n\nFUNCTION RESPONSE: ..."}
    alpaca     {"instruction": "...", "input": "...", "output": "...", "history": [["...", "..."]], "system": "..."}

Names of columns, fields and roles count in any case (`Human`, `GPT`). Some data sets put messages into `conversations`,
or turns with `from` into `messages`: the fields of the turns decide.
"""

import codecs
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from coa.agent.grammar import OBSERVATION, Span, render_span
from coa.distill.sources.conversations import conversation_of
from coa.distill.sources.foreign import ForeignRun, Reason, Refusal, Refused
from coa.distill.sources.messages import (
    ASSISTANT,
    ATTACHED,
    SYSTEM,
    TOOL,
    USER,
    Message,
    kind_of,
    read_message,
    role_of,
    text_of,
)
from coa.distill.sources.recorded import activations_of
from coa.distill.sources.released import Unreadable, prompt_of, read_chain
from coa.distill.sources.replies import MARKS, calls_in_json
from coa.distill.sources.source import CSV, JSON, JSONL, PARQUET, files, records
from coa.distill.sources.tools import ToolTable
from coa.errors import UserError
from coa.json_object import Json, JsonView
from coa.storage.json_array import read_array
from coa.tasks.published.source import read_rows as read_file

Row = JsonView

ROWS = OPENAI, SHAREGPT, GLAIVE, ALPACA = "openai", "sharegpt", "glaive", "alpaca"
EXPECTED = (
    "`messages` (OpenAI), `conversations` (ShareGPT), `chat` (Glaive), or `instruction` and `output` (Alpaca, released "
    "AFM)"
)
_SPEAKER = re.compile(r"^(USER|ASSISTANT|FUNCTION RESPONSE):", re.MULTILINE)
_CALLS = "function_call"
_OURS = {
    "a transcript, which `distill.transcripts` takes": {"steps", "ending", "seed"},
    "a row of a run's data set, of which `sft.data` takes the folder": {"text", "copies", "decisions"},
    "a task, which `tasks.path` takes": {"question", "answer"},
}
"""Rows of our own files, by their columns."""
SHOWN = 8
"""Columns that a message shows."""
_IDS = ("task_id", "id", "task")


def data_rows(path: Path) -> Iterator[tuple[str, Row]]:
    """Each row of a `.json`, `.jsonl`, `.parquet` or `.csv` file, or of a folder with a data set, with its place for
    messages. Memory does not grow with their number. Raises UserError."""
    if path.is_file() and path.suffix not in (JSONL, JSON, PARQUET, CSV):
        raise UserError(f"{path}: expected a file that ends in {JSONL}, {JSON}, {PARQUET} or {CSV}")
    if path.suffix == JSON and path.is_file():
        yield from ((f"{path}, row {number}", row) for number, row in enumerate(read_array(path), start=1))
    else:
        yield from ((f"{path}, {at.unit} {at.number}", row) for at, row in read_file(path))


def first_of(file: Path) -> object:
    """The first record of a file: of JSON, the first of its array, or the file itself; None if there is none."""
    if file.suffix == JSONL:
        return next((record for _, record in records(file) if record is not None), None)
    if file.suffix == JSON:
        with file.open("rb") as opened:
            begins = opened.read(256).removeprefix(codecs.BOM_UTF8).lstrip()[:1]
        if begins != b"[":
            return next(records(file))[1]
    return next((row for _, row in data_rows(file)), None)


def format_of(row: Row) -> str:
    """The format of a row; "" if it has none of them."""
    names = {name.lower() for name, value in row.items() if value is not None}
    if "messages" in names:
        return OPENAI
    if names & {"conversations", "conversation"}:
        return SHAREGPT
    if "chat" in names:
        return GLAIVE
    return ALPACA if "instruction" in names else ""


def messages_of(row: Row) -> list[Message]:
    """The messages of a row; raises Refused with what was found in its place."""
    row = _folded(row)
    if attached := next((name for name in ATTACHED if row.get(name)), ""):
        raise Refused(Reason.NOT_TEXT, f"column {attached}")
    system = [Message(SYSTEM, text_of(row["system"]))] if row.get("system") else []
    if (form := format_of(row)) == ALPACA:
        return [*system, *_alpaca(row)]
    if form == GLAIVE:
        return [*system, *_glaive(row["chat"])]
    if not form:
        raise Refused(Reason.UNREADABLE, f"{found_in(row)}, expected {EXPECTED}")
    name = next(name for name in ("messages", "conversations", "conversation") if row.get(name) is not None)
    turns = row[name]
    if not isinstance(turns, Sequence) or isinstance(turns, str):
        raise Refused(Reason.UNREADABLE, f"its `{name}` are {kind_of(turns)}, expected a list")
    return [*system, *(message for number, turn in enumerate(turns, start=1) for message in _turn(turn, number))]


def found_in(row: Row) -> str:
    """Describes a row of no known format for a message: its kind, or else its first columns."""
    for what, columns in _OURS.items():
        if columns <= set(row):
            return f"it is {what}"
    names = [str(name) for name in row]
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"it has the columns {', '.join(names[:SHOWN]) or 'none'}{more}"


def _turn(turn: object, number: int) -> Iterator[Message]:
    if not isinstance(turn, Mapping):
        raise Refused(Reason.UNREADABLE, f"turn {number} is {kind_of(turn)}, expected an object")
    turn = _folded(turn)
    if turn.get("weight") == 0 and _role(turn) in (ASSISTANT, _CALLS):
        raise Refused(Reason.NOT_LEARNT, f"turn {number}")
    if turn.get("role") is not None:
        yield from read_message({name: value for name, value in turn.items() if value is not None}, number)
        return
    name, value, role = turn.get("from"), turn.get("value"), _role(turn)
    if not role:
        known = "a role, or `from` one of human, gpt, function_call, observation, system"
        what = kind_of(turn) if name is None else f"from {name!r}"
        raise Refused(Reason.UNREADABLE, f"turn {number} is {what}, expected {known}")
    if role == _CALLS:
        text = json.dumps(value) if isinstance(value, dict | list) else text_of(value)
        if not (uses := calls_in_json(text)):
            raise Refused(Reason.UNREADABLE, f"turn {number} is no call: {text[:80]!r}, expected a name and arguments")
        yield Message(ASSISTANT, uses=tuple(uses))
    else:
        yield from read_message({**turn, "role": role, "content": value}, number)


def _role(turn: Row) -> str:
    name = turn.get("role") or turn.get("from")
    if not isinstance(name, str):
        return ""
    return _CALLS if name.lower() in (_CALLS, "tool_call") else role_of(name)


def _alpaca(row: Row) -> Iterator[Message]:
    history = row.get("history") or ()
    if not isinstance(history, list | tuple) or not all(
        isinstance(pair, list | tuple) and len(pair) == 2 for pair in history
    ):
        raise Refused(Reason.UNREADABLE, f"its `history` is {kind_of(history)}, expected pairs of question and answer")
    for asked, answer in history:
        yield Message(USER, str(asked))
        yield Message(ASSISTANT, str(answer))
    yield Message(USER, prompt_of(row))
    output = row.get("output")
    if not isinstance(output, str):
        raise Refused(Reason.UNREADABLE, f"its `output` is {kind_of(output)}, expected a text")
    try:
        yield from _tagged(output)
    except Unreadable:
        yield Message(ASSISTANT, output)


def _glaive(chat: object) -> Iterator[Message]:
    if not isinstance(chat, str):
        raise Refused(Reason.UNREADABLE, f"its `chat` is {kind_of(chat)}, expected a text")
    _, *turns = _SPEAKER.split(chat)
    for speaker, text in zip(turns[::2], turns[1::2], strict=True):
        yield Message({"USER": USER, "ASSISTANT": ASSISTANT}.get(speaker, TOOL), MARKS.sub("", text).strip())


def _tagged(text: str) -> Iterator[Message]:
    """The messages of a text in our tags, with its observations: the results are messages of their own."""
    said: list[str] = []
    for span in read_chain(text):
        if span.tag == OBSERVATION:
            yield Message(ASSISTANT, "".join(said))
            yield Message(TOOL, span.text)
            said = []
        else:
            said.append(render_span(Span(span.tag, span.text)))
    yield Message(ASSISTANT, "".join(said))


def read_conversations(path: Path, table: ToolTable, form: str) -> Iterator[ForeignRun | Refusal]:
    """The runs of a file, or of a folder's files; each row is one."""
    for file in files(path, JSON, JSONL, PARQUET):
        for where, row in data_rows(file):
            try:
                yield run_of(row, where, table, form)
            except Refused as refused:
                yield Refusal(where, refused.reason, refused.detail)


def run_of(row: Row, where: str, table: ToolTable, form: str) -> ForeignRun:
    """Raises Refused for a row of another format, without a user's words or a reply, and if its calls or results cannot
    be told."""
    if (found := format_of(row)) != form:
        expected = f"it is {found}, expected {form}" if found else f"{found_in(row)}, expected {EXPECTED}"
        raise Refused(Reason.UNREADABLE, expected)
    one = conversation_of(messages_of(row))
    if not one.calls or not one.opening.strip():
        missing = "reply" if not one.calls else "user's message before the first reply"
        raise Refused(Reason.UNREADABLE, f"it has no {missing}")
    return ForeignRun(
        where=where,
        team=form,
        ids=tuple(str(row[name]) for name in _IDS if isinstance(row.get(name), str | int)),
        question=one.opening,
        activations=activations_of([one], table),
    )


def _folded(row: Row) -> Json:
    """The row with its names in small letters."""
    return {str(name).lower(): value for name, value in row.items()}
