"""Agents of smolagents on 14 tasks: their model is a script behind a loopback endpoint, their tools keep what they saw.

Each task has a script for a `ToolCallingAgent` and one for a `CodeAgent`, and is run with and without planning. What is
left is the recorder's folder, the log of each run, and `Run`s: every call that reached a tool, its result, the answer.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from coa.distill.sources.recorder import RecorderConfig, serving
from coa.types import Task
from tests.support import servers

TOOLS = {"wiki_search": "query", "web_search": "query", "visit_webpage": "url"}
PAGES = {
    "Vexon Labs": "Vexon Labs is owned by Nora Lind.",
    "Nora Lind": "Nora Lind was born in Berg.",
    "Berg": "Berg lies on the Arne.",
    "Arne": "The Arne is 210 km long.",
    "errors": "Observation: the log says ZeroDivisionError: division by zero, then Error: stop.",
    "https://a.example/berg": "# Berg\n\nBerg lies on the Arne.\n\nIt has 4,000 inhabitants.",
    "https://a.example/arne": "# Arne\n\nA river.\n\nIts length is 210 km.",
    "rivers": "## Search Results\n\n[Arne](https://a.example/arne)\nA river of 210 km.",
    "towns": "## Search Results\n\n[Berg](https://a.example/berg)\nA town on the Arne.",
}
DOWN = "Lost Page"
"""What a tool raises an error for."""
PLAN = "1. find the owner\n2. find her town"
FORCED = "I could not find it."


def call(name: str, argument: str, *, key: str = "c1") -> dict[str, Any]:
    arguments = json.dumps({{**TOOLS, "final_answer": "answer"}[name]: argument})
    return {"id": key, "type": "function", "function": {"name": name, "arguments": arguments}}


def calls(*asked: Mapping[str, Any], text: str | None = None) -> dict[str, Any]:
    return {"role": "assistant", "content": text, "tool_calls": list(asked)}


def code(program: str, text: str = "Thought: go on.") -> dict[str, Any]:
    return {"role": "assistant", "content": f"{text}\n<code>\n{program}\n</code>"}


def answers(text: str, said: str | None = None) -> dict[str, Any]:
    return calls(call("final_answer", text, key="c9"), text=said)


FIRST, SECOND = "print(wiki_search('Vexon Labs'))", "page = wiki_search(query='Nora Lind')\nprint(page)"
BERG = code("final_answer('Berg')", "Thought: done.")
SAY = {"role": "assistant", "content": "I think that it is Berg, but who knows."}
Script = Sequence[Mapping[str, Any]]

SCRIPTS: Mapping[str, tuple[Script, Script]] = {
    "one search": ([calls(call("wiki_search", "Nora Lind"), text="Look.")], [code(SECOND, "Thought: look.")]),
    "two searches": (
        [
            calls(call("wiki_search", "Vexon Labs"), text="Owner."),
            calls(call("wiki_search", "Nora Lind"), text="Town."),
        ],
        [code(FIRST, "Thought: owner."), code(SECOND, "Thought: town.")],
    ),
    "nothing said": (
        [calls(call("wiki_search", "Vexon Labs")), calls(call("wiki_search", "Nora Lind"))],
        [code(FIRST, ""), code(SECOND, "")],
    ),
    "two at once": (
        [calls(call("wiki_search", "Vexon Labs", key="c7"), call("wiki_search", "Nora Lind", key="c2"), text="Both.")],
        [code("a = wiki_search('Vexon Labs')\nb = wiki_search(query='Nora Lind')\nprint(a)\nprint(b)", "Both.")],
    ),
    "a loop": (
        [calls(*(call("wiki_search", q, key=f"k{9 - n}") for n, q in enumerate(("Nora Lind", "Berg", "Arne"))))],
        [code("for q in ['Nora Lind', 'Berg', 'Arne']:\n    print('--', q)\n    print(wiki_search(query=q))", "All.")],
    ),
    "an error": (
        [
            calls(call("wiki_search", DOWN)),
            calls(call("wiki_search", DOWN), text="Again."),
            calls(call("wiki_search", "Nora Lind"), text="Else."),
        ],
        [code(f"print(wiki_search('{DOWN}'))", "Thought: look."), code(SECOND, "Thought: another.")],
    ),
    "pages": (
        [calls(call("visit_webpage", "https://a.example/berg"), text="Read.")],
        [code("page = visit_webpage('https://a.example/berg')\nprint(page)", "Thought: read.")],
    ),
    "lists at once": (
        [calls(call("web_search", "rivers", key="a"), call("web_search", "towns", key="b"), text="Both.")],
        [code("for q in ('rivers', 'towns'):\n    r = web_search(q)\n    print(f'{q}: {r}')", "Thought: both.")],
    ),
    "pages at once": (
        [
            calls(
                call("visit_webpage", "https://a.example/berg"),
                call("visit_webpage", "https://a.example/arne", key="d"),
            )
        ],
        [
            code(
                "a = visit_webpage('https://a.example/berg')\n"
                "b = visit_webpage('https://a.example/arne')\n"
                "print(a, '---', b)"
            )
        ],
    ),
    "errors in pages": ([calls(call("wiki_search", "errors"), text="Log.")], [code("print(wiki_search('errors'))")]),
    "no call": ([SAY, calls(call("wiki_search", "Nora Lind"), text="Look.")], [SAY, code(SECOND)]),
    "out of steps": (
        [calls(call("wiki_search", q), text=f"{q} ?") for q in ("Vexon Labs", "Nora Lind", "Berg", "Arne", "errors")],
        [code(f"print(wiki_search('{q}'))") for q in ("Vexon Labs", "Nora Lind", "Berg", "Arne", "errors")],
    ),
    "computes": (
        [calls(call("wiki_search", "Arne"), text="How long ?"), answers("420", "Twice 210.")],
        [
            code("print(wiki_search('Arne'))"),
            code("total = 2 * 210\nprint(total)", "Thought: double."),
            code("length = 210\nfor _ in range(1):\n    length *= 2\nfinal_answer(length)", "Thought: again."),
        ],
    ),
    "answers at once": (
        [calls(call("wiki_search", "Nora Lind"), text="Look."), answers("Berg\nis her town.", "So:")],
        [code("who = 'Nora Lind'\nprint(wiki_search(who))\ntown = 'Berg'\nfinal_answer(f'{town} of {who}')", "All.")],
    ),
}
"""By task: the replies of the two agents; one that does not answer in them says "Berg" then."""
TASKS = [Task(id=f"t{n}", question=f"Question {n}: {name} ?", answers=("Berg",), profile="react", family="f")
         for n, name in enumerate(SCRIPTS)]  # fmt: skip
UNANSWERED = ("out of steps",)
NOT_TOLD_APART = (("pages at once", "tools"),)
"""Parallel calls whose results have several lines: nobody can say where one ends."""
NOT_RECORDED = (("answers at once", "code"),)
"""A last program that calls a tool and answers: what the tool returned went through no call of a model."""


@dataclass(slots=True)
class Run:
    """What happened in a run, as its tools and its caller saw it."""

    name: str
    """TASK-KIND-PLANNING"""
    task: Task
    kind: str
    planned: bool
    seen: list[tuple[str, str, str]] = field(default_factory=list)
    """Tool, argument, result of each call in the order in which the agent asked for them."""
    answer: str = ""


@dataclass(slots=True)
class _Model:
    """A chat endpoint that gives the replies of a script, and plans and forced answers where it is asked for them."""

    replies: list[Mapping[str, Any]]

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        opening = json.dumps(body["messages"][0])
        if "got stuck" in opening:
            message: Mapping[str, Any] = {"role": "assistant", "content": FORCED}
        elif "<end_plan>" in (body.get("stop") or ()):
            message = {"role": "assistant", "content": PLAN}
        else:
            message = self.replies.pop(0)
        finish = "tool_calls" if message.get("tool_calls") else "stop"
        usage = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}
        choice = {"index": 0, "message": message, "finish_reason": finish}
        return web.json_response(
            {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}
        )


def _tools(smolagents: Any, seen: list[tuple[str, str, str]]) -> list[Any]:
    def look(name: str, argument: str) -> str:
        if argument == DOWN:
            seen.append((name, argument, f"no page {argument}"))
            raise ValueError(f"no page {argument}")
        seen.append((name, argument, PAGES[argument]))
        return PAGES[argument]

    @smolagents.tool
    def wiki_search(query: str) -> str:
        """Looks up.

        Args:
            query: what
        """
        return look("wiki_search", query)

    @smolagents.tool
    def web_search(query: str) -> str:
        """Searches.

        Args:
            query: what
        """
        return look("web_search", query)

    @smolagents.tool
    def visit_webpage(url: str) -> str:
        """Reads.

        Args:
            url: where
        """
        return look("crawl_page", url)

    return [wiki_search, web_search, visit_webpage]


def _play(smolagents: Any, run: Run, url: str, log: Path) -> None:
    make = {"tools": smolagents.ToolCallingAgent, "code": smolagents.CodeAgent}[run.kind]
    model = smolagents.OpenAIModel(model_id="m", api_base=f"{url}/session/{run.name}/v1", api_key="none")
    options = {"max_tool_threads": 1} if run.kind == "tools" else {}
    agent = make(
        tools=_tools(smolagents, run.seen),
        model=model,
        planning_interval=2 if run.planned else None,
        verbosity_level=0,
        max_steps=5,
        **options,
    )
    result = agent.run(run.task.question, return_full_result=True)
    run.answer = str(result.output)
    log.mkdir(parents=True, exist_ok=True)
    (log / f"{run.name}.json").write_text(json.dumps({"task_id": run.task.id, **result.dict()}, default=str))


async def play_all(smolagents: Any, recorded: Path, logs: Path) -> list[Run]:
    """Plays every task with both kinds of agents, with and without planning: what is recorded, the logs, the truth."""
    runs: list[Run] = []
    for task, scripts in zip(TASKS, SCRIPTS.values(), strict=True):
        for kind, script in zip(("tools", "code"), scripts, strict=True):
            for planned in (False, True):
                run = Run(f"{task.id}-{kind}-{'planned' if planned else 'plain'}", task, kind, planned)
                last = BERG if kind == "code" else answers("Berg")
                model = _Model([*script, last])
                async with servers.serving(model.answer) as upstream:
                    config = RecorderConfig(upstream=f"{upstream}/v1", folder=recorded)
                    async with serving(config) as url:
                        await asyncio.to_thread(_play, smolagents, run, url, logs)
                runs.append(run)
    return runs
