"""Runs to import, and what becomes of them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coa.agent.profiles import profile
from coa.distill import FilterConfig, to_chain
from coa.distill.sources import Refusal, import_runs
from coa.distill.sources.recorder.records import Record, append
from coa.teams.transcript import Transcript
from coa.types import Task

QUESTION = "Where was the owner of Vexon Labs born ?"
PAGES = {"Vexon Labs": "Vexon Labs is owned by Nora Lind.", "Nora Lind": "Nora Lind was born in Berg."}
OPEN = FilterConfig(keep_without_reflection=1.0, reflection_required=())
"""Drops no run for lack of reflection."""


def task(of: str = "mhqa", name: str = "t1", question: str = QUESTION) -> Task:
    return Task(id=name, question=question, answers=("Berg",), profile=of, family="f")


def imported(form: str, path: Path, *tasks: Task, **options: Any) -> list[Transcript]:
    """Of runs that are all imported."""
    results = list(import_runs(form, path, tasks or (task(),), **options))
    assert not [result for result in results if isinstance(result, Refusal)], results
    return [result for result in results if isinstance(result, Transcript)]


def refused(form: str, path: Path, *tasks: Task, **options: Any) -> Refusal:
    """Of one run that is not."""
    [result] = import_runs(form, path, tasks or (task(),), **options)
    assert isinstance(result, Refusal)
    return result


def spans(transcript: Transcript) -> list[tuple[str, str]]:
    return [(span.tag, span.text) for span in to_chain(transcript)]


def holds(transcript: Transcript) -> bool:
    return profile(transcript.task.profile).transitions_hold(to_chain(transcript))


def asks(name: str, arguments: Mapping[str, Any] | str, text: str | None = None, *, key: str = "c1") -> dict[str, Any]:
    body = arguments if isinstance(arguments, str) else json.dumps(arguments)
    call = {"id": key, "type": "function", "function": {"name": name, "arguments": body}}
    return {"role": "assistant", "content": text, "tool_calls": [call]}


def says(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


USER = {"role": "user", "content": f"Question: {QUESTION}"}
SYSTEM = {"role": "system", "content": "You are the lead agent."}


class Session:
    """Calls of a model, a second apart."""

    def __init__(self, folder: Path, name: str = "s", task: str = "") -> None:
        self.folder, self.name, self.task, self.now = folder, name, task, 1000.0

    def call(self, messages: Sequence[Any], reply: Mapping[str, Any] | None, **fields: Any) -> list[Any]:
        """The messages and the reply, for an agent to go on from."""
        self.now += 1
        finish = "tool_calls" if (reply or {}).get("tool_calls") else "stop"
        record = {
            "session": self.name,
            "task": self.task,
            "began": self.now,
            "seconds": 0.5,
            "status": 200,
            "model": "m",
            "stream": False,
            "messages": list(messages),
            "tools": None,
            "reply": reply,
            "finish": finish,
            "usage": {"prompt_tokens": 10, "completion_tokens": 1},
            "failure": "",
        }
        append(self.folder, Record(**{**record, **fields}), ())
        return [*messages, reply]

    def loop(self, messages: Sequence[Any], *replies: Mapping[str, Any], result: str = "seen") -> list[Any]:
        """Each tool call has the same result."""
        sent = list(messages)
        for reply in replies:
            sent = self.call(sent, reply)
            sent += [
                {"role": "tool", "tool_call_id": call["id"], "content": result} for call in reply.get("tool_calls", ())
            ]
        return sent


def run_of(session: Session, *tasks: Task) -> Transcript:
    """Its only one."""
    [transcript] = imported("recorded", session.folder, *tasks)
    return transcript
