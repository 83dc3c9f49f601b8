"""The record of a call of a model: one line of JSON in the file of its session.

DIR/SESSION.jsonl   {"session": "run-1", "task": "t7", "began": 1765000000.1, "seconds": 2.4, "status": 200,
                     "model": "m", "stream": true, "messages": [...], "tools": [...], "reply": {...},
                     "finish": "tool_calls", "usage": {"prompt_tokens": 9, ...}, "failure": "", "id": "",
                     "continues": ""}

Requests and replies of all protocols are recorded in the form of chat completions.
"""

import json
from collections.abc import Collection
from dataclasses import dataclass, fields
from pathlib import Path
from urllib.parse import quote

from coa.distill.sources.recorder.hiding import hidden
from coa.json_object import JsonView
from coa.storage.jsonl import append_text

MAX_NAME_BYTES = 200
"""Maximum bytes of a file name; file systems allow 255."""
TOO_DEEP = "its messages or its reply are nested too deep to be kept"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    session: str
    task: str
    """The task id as the client sent it; empty if it sent none."""
    began: float
    """Seconds since 1970."""
    seconds: float
    status: int
    """HTTP status of the model endpoint's answer; 0 if there was no answer."""
    model: str
    stream: bool
    messages: object
    """The messages as they were sent; None if the request could not be read."""
    tools: object
    reply: JsonView | None
    """The assistant's message, or the part of it that arrived."""
    finish: str
    usage: JsonView | None
    failure: str
    """Reason of the failure; empty if the reply is complete."""
    id: str = ""
    """The reply's id; empty if its protocol has none."""
    continues: str = ""
    """The id of the reply that the messages continue; empty if they are the whole conversation."""


def file_name(session: str) -> str:
    """The file name of a session, safe for any id: `../x` is `%2E.%2Fx.jsonl`.

    Raises ValueError for an empty or overlong id.
    """
    quoted = quote(session, safe=" ", errors="replace")
    if quoted.startswith("."):
        quoted = f"%2E{quoted[1:]}"
    if not session.strip() or len(quoted) > MAX_NAME_BYTES:
        raise ValueError(f"a session id has 1 to {MAX_NAME_BYTES} characters")
    return f"{quoted}.jsonl"


def append(folder: Path, record: Record, keys: Collection[str]) -> None:
    """Adds one line to the session's file. `keys` are hidden in all texts. A call that is nested too deeply to be
    written as JSON is recorded as a failure, without messages, tools and reply.

    Raises DiskFull if there is no room. The incomplete line that a full disk or a kill leaves stays as a separate line,
    so that a reader of the session knows that a call is missing.
    """
    values = {field.name: getattr(record, field.name) for field in fields(record)}
    try:
        line = json.dumps(hidden(values, keys))
    except RecursionError:
        rest = {"messages": None, "tools": None, "reply": None, "usage": None, "failure": record.failure or TOO_DEEP}
        line = json.dumps(hidden(values | rest, keys))
    append_text(folder / file_name(record.session), line, keep_torn=True)
