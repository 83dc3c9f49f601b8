"""Runs of other systems as transcripts: recorded ones, from a real client's calls on, and those of two frameworks."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coa.distill import FilterConfig, filter_runs, to_chain
from coa.errors import UserError
from coa.grammar import Span, render
from coa.imports import Reason, Refusal, import_runs, read_tools
from coa.imports.foreign import Call
from coa.imports.messages import agent_name
from coa.imports.programs import Used, free_names, pieces_of_program, used_by
from coa.profiles import profile
from coa.recorder.records import Record, append
from coa.teachers.store import read_transcripts
from coa.teachers.transcript import Ending, Graded, ToolStep, Transcript
from coa.tools.base import ToolCall
from coa.types import Task
from coa.usage import Usage
from jobs.import_runs import run as import_command
from tests.fakes import tag_codec
from tests.test_recorder import recording

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


# From a real client to a demonstration.


def asks(name: str, arguments: Mapping[str, Any] | str, text: str | None = None, *, key: str = "c1") -> dict[str, Any]:
    body = arguments if isinstance(arguments, str) else json.dumps(arguments)
    call = {"id": key, "type": "function", "function": {"name": name, "arguments": body}}
    return {"role": "assistant", "content": text, "tool_calls": [call]}


def says(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


LOOP = (
    asks("wikipedia_search", {"query": "Vexon Labs"}, "Find the owner, then her town."),
    asks("wikipedia_search", {"query": "Nora Lind"}, "Nora Lind owns it."),
    says("She was born there.\nFinal answer: Berg"),
)
CHAIN = [
    ("plan", "Find the owner, then her town."),
    ("wiki_search", "Vexon Labs"),
    ("observation", "Vexon Labs is owned by Nora Lind."),
    ("think", "Nora Lind owns it."),
    ("wiki_search", "Nora Lind"),
    ("observation", "Nora Lind was born in Berg."),
    ("think", "She was born there."),
    ("answer", "Berg"),
]


async def agent(url: str, *, stream: bool) -> str:
    """An agent as others write them, on the official client; its last reply."""
    openai = pytest.importorskip("openai")
    client = openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0)
    function = {"name": "wikipedia_search", "parameters": {"type": "object", "properties": {"query": {}}}}
    messages: list[Any] = [
        {"role": "system", "content": "You are a research assistant that looks things up."},
        {"role": "user", "content": f"Answer shortly.\n\nQuestion: {QUESTION}"},
    ]
    while True:
        asked: dict[str, Any] = {
            "model": "m",
            "messages": messages,
            "tools": [{"type": "function", "function": function}],
        }
        if stream:
            content, calls = "", {}
            options = {"include_usage": True}
            async for chunk in await client.chat.completions.create(**asked, stream=True, stream_options=options):
                for delta in [choice.delta for choice in chunk.choices]:
                    content += delta.content or ""
                    for piece in delta.tool_calls or ():
                        call = calls.setdefault(piece.index, {"id": piece.id, "name": piece.function.name, "told": ""})
                        call["told"] += piece.function.arguments or ""
            used = [(call["id"], call["name"], call["told"]) for call in calls.values()]
        else:
            message = (await client.chat.completions.create(**asked)).choices[0].message
            content = message.content or ""
            used = [(call.id, call.function.name, call.function.arguments) for call in message.tool_calls or ()]
        if not used:
            await client.close()
            return content
        echo = [{"id": i, "type": "function", "function": {"name": n, "arguments": told}} for i, n, told in used]
        messages.append({"role": "assistant", "content": content, "tool_calls": echo})
        for key, _, told in used:
            messages.append({"role": "tool", "tool_call_id": key, "content": PAGES[json.loads(told)["query"]]})


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_an_agents_calls_become_a_demonstration(stream: bool, tmp_path: Path) -> None:
    async def main() -> None:
        async with recording(tmp_path, *LOOP) as (url, _):
            assert await agent(f"{url}/session/run-1/v1", stream=stream) == "She was born there.\nFinal answer: Berg"

    asyncio.run(main())
    [transcript] = imported("recorded", tmp_path)
    assert spans(transcript) == CHAIN
    assert (transcript.ending, transcript.answer, transcript.team) == (Ending.ANSWERED, "Berg", "recorded")
    assert transcript.usage == Usage(3, 21, 9)
    assert transcript.models == (("research assistant", "m-1"),)
    assert transcript.steps[1] == ToolStep(ToolCall("wiki_search", "Vexon Labs"), PAGES["Vexon Labs"])
    assert filter_runs([Graded(transcript, True)], OPEN)[1].kept == 1
    made = tag_codec().demonstration(transcript.task, to_chain(transcript), profile("mhqa"), instructed=False)
    assert made.transitions_hold
    assert made.text == render(to_chain(transcript))


def test_two_agents_at_once_are_two_attempts(tmp_path: Path) -> None:
    async def main() -> None:
        async with recording(tmp_path / "a", *LOOP) as (one, _), recording(tmp_path / "b", *LOOP) as (other, _):
            await asyncio.gather(
                agent(f"{one}/session/x/v1", stream=True), agent(f"{other}/session/y/v1", stream=False)
            )

    asyncio.run(main())
    (tmp_path / "b" / "y.jsonl").rename(tmp_path / "a" / "y.jsonl")
    runs = imported("recorded", tmp_path / "a")
    assert [(transcript.attempt, spans(transcript)) for transcript in runs] == [(0, CHAIN), (1, CHAIN)]


# Recorded sessions, written by hand.

USER = {"role": "user", "content": f"Question: {QUESTION}"}
SYSTEM = {"role": "system", "content": "You are the lead agent."}


class Session:
    """Calls of a model, a second apart."""

    def __init__(self, folder: Path, name: str = "s", task: str = "") -> None:
        self.folder, self.name, self.task, self.now = folder, name, task, 1000.0

    def call(self, messages: Sequence[Any], reply: Mapping[str, Any] | None, **told: Any) -> list[Any]:
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
        append(self.folder, Record(**{**record, **told}), ())
        return [*messages, reply]

    def loop(self, messages: Sequence[Any], *replies: Mapping[str, Any], result: str = "seen") -> list[Any]:
        """Each tool call has the same result."""
        told = list(messages)
        for reply in replies:
            told = self.call(told, reply)
            told += [
                {"role": "tool", "tool_call_id": call["id"], "content": result} for call in reply.get("tool_calls", ())
            ]
        return told


def test_text_becomes_what_the_profiles_table_needs(tmp_path: Path) -> None:
    session = Session(tmp_path)
    run = {"code": "print(6 * 7)"}
    session.loop([SYSTEM, USER], asks("python", run, "Compute."), asks("python", run, "Odd."), says("So: Berg"))
    [transcript] = imported("recorded", tmp_path, task("code"))
    code = ("code", "```py\nprint(6 * 7)\n```")
    seen = ("observation", "seen")
    plan, reflection, answer = ("plan", "Compute."), ("reflection", "Odd."), ("answer", "So: Berg")
    assert spans(transcript) == [plan, code, seen, reflection, code, seen, answer]
    assert not holds(transcript)  # nobody reflected before the answer
    [transcript] = imported("recorded", tmp_path, task("multi"))
    assert spans(transcript)[3][0] == "reflection"


def test_an_answer_that_a_profile_wants_checked_first_stays_a_violation(tmp_path: Path) -> None:
    Session(tmp_path).loop([USER], asks("google_search", {"q": "Vexon\nLabs"}, "Search."), says("Berg"))
    [transcript] = imported("recorded", tmp_path, task("web"))
    assert spans(transcript) == [
        ("plan", "Search."),
        ("web_search", "Vexon Labs"),
        ("observation", "seen"),
        ("answer", "Berg"),
    ]
    assert not holds(transcript)
    assert holds(imported("recorded", tmp_path, task("multi"))[0])


def test_a_run_without_a_word_before_its_first_tool_gets_no_plan(tmp_path: Path) -> None:
    Session(tmp_path).loop([USER], asks("wiki", {"query": "a"}), says("Berg"))
    [transcript] = imported("recorded", tmp_path)
    assert spans(transcript)[0] == ("wiki_search", "a")
    assert not holds(transcript)


def test_an_agent_that_writes_our_tags_keeps_them(tmp_path: Path) -> None:
    session = Session(tmp_path)
    told = session.call([USER], says("<think> town</think><plan> p</plan><wiki_search> Nora</wiki_search>"))
    told += [{"role": "user", "content": "<observation> Berg</observation>"}]
    session.call(told, says("<reflection> good</reflection><answer> Berg</answer>"))
    [transcript] = imported("recorded", tmp_path)
    assert spans(transcript) == [
        ("think", "town"),
        ("plan", "p"),
        ("wiki_search", "Nora"),
        ("observation", "Berg"),
        ("reflection", "good"),
        ("answer", "Berg"),
    ]
    assert holds(transcript)


def test_an_observation_that_an_agent_wrote_itself_is_refused(tmp_path: Path) -> None:
    text = "<plan> p</plan><wiki_search> a</wiki_search><observation> mine</observation><answer> Berg</answer>"
    Session(tmp_path).call([USER], says(text))
    assert refused("recorded", tmp_path).reason is Reason.OWN_OBSERVATION


def test_a_models_own_thinking_is_thought(tmp_path: Path) -> None:
    session = Session(tmp_path)
    first = {**asks("wiki", {"query": "a"}, "Look."), "reasoning_content": "hm"}
    session.loop([USER], first, says("<think>\nsure\n</think>\n\nBerg"))
    assert spans(imported("recorded", tmp_path)[0]) == [
        ("think", "hm"),
        ("plan", "Look."),
        ("wiki_search", "a"),
        ("observation", "seen"),
        ("think", "sure"),
        ("answer", "Berg"),
    ]


def test_an_agent_that_hands_on_work_has_the_others_steps_in_place_of_the_report(tmp_path: Path) -> None:
    session = Session(tmp_path)
    lead = session.call([SYSTEM, USER], asks("ask_expert", {"request": "Who owns Vexon Labs?"}, "First the owner."))
    expert = {"role": "system", "content": "You are an expert searcher who looks up facts."}
    asked = [expert, {"role": "user", "content": "Your task: Who owns\nVexon Labs?"}]
    session.loop(asked, asks("wiki", {"query": "Vexon Labs"}), says("Nora Lind owns it."))
    lead.append({"role": "tool", "tool_call_id": "c1", "content": "Report: Nora Lind owns it."})
    session.loop(lead, asks("final_answer", {"answer": "Berg"}, "Enough."))
    [transcript] = imported("recorded", tmp_path)
    assert spans(transcript) == [
        ("plan", "First the owner."),
        ("think", "Who owns Vexon Labs?"),
        ("wiki_search", "Vexon Labs"),
        ("observation", "seen"),
        ("think", "Nora Lind owns it."),
        ("think", "Enough."),
        ("answer", "Berg"),
    ]
    agents = [step.agent for step in transcript.steps if not isinstance(step, ToolStep)]
    assert agents == ["lead agent", "expert searcher", "expert searcher", "lead agent"]
    assert transcript.usage == Usage(4, 40, 4)


def test_a_tool_that_asks_a_model_itself_remains_a_tool(tmp_path: Path) -> None:
    session = Session(tmp_path)
    told = session.call([USER], asks("visit_webpage", {"url": "https://a.example/b"}, "Read it."))
    session.call([{"role": "user", "content": "Sum up https://a.example/b: ..."}], says("A page of Berg."))
    told.append({"role": "tool", "tool_call_id": "c1", "content": "A page of Berg."})
    session.call(told, says("Berg"))
    [transcript] = imported("recorded", tmp_path, task("multi"))
    assert spans(transcript) == [
        ("plan", "Read it."),
        ("crawl_page", "https://a.example/b"),
        ("observation", "A page of Berg."),
        ("answer", "Berg"),
    ]
    assert transcript.usage.requests == 3


def test_one_session_with_several_tasks_is_several_runs(tmp_path: Path) -> None:
    session = Session(tmp_path)
    other = {"role": "user", "content": "What is\nthe other question ?"}
    session.loop([USER], asks("wiki", {"query": "a"}, "A."), says("Berg"))
    session.loop([other], asks("wiki", {"query": "b"}, "B."), says("Else"))
    runs = imported("recorded", tmp_path, task(), task(name="t2", question="What is the other question ?"))
    assert [(transcript.task.id, transcript.answer, transcript.steps[0]) for transcript in runs] == [
        ("t1", "Berg", runs[0].steps[0]),
        ("t2", "Else", runs[1].steps[0]),
    ]
    assert [spans(transcript)[1] for transcript in runs] == [("wiki_search", "a"), ("wiki_search", "b")]


@pytest.mark.parametrize(("name", "told"), [("s", "t1"), ("t1", "")], ids=["by its header", "by the session"])
def test_a_run_is_joined_with_its_task_by_id(name: str, told: str, tmp_path: Path) -> None:
    session = Session(tmp_path, name, told)
    session.loop([{"role": "user", "content": "rewritten"}], asks("wiki", {"query": "a"}, "A."), says("Berg"))
    assert imported("recorded", tmp_path, task(name="t0"), task())[0].task.id == "t1"
    assert refused("recorded", tmp_path, task(name="t0")).reason is Reason.NO_TASK


def test_a_call_that_is_made_again_counts_once_but_its_cost_twice(tmp_path: Path) -> None:
    session = Session(tmp_path)
    session.call([USER], None, failure="status 500", status=500, usage=None)
    session.call([USER], asks("wiki", {"query": "lost"}, "Never heard."))
    session.loop([USER], asks("wiki", {"query": "a"}, "A."), says("Berg"))
    [transcript] = imported("recorded", tmp_path)
    assert [span for span in spans(transcript) if span[0] == "wiki_search"] == [("wiki_search", "a")]
    assert transcript.usage == Usage(3, 30, 3)


def test_a_run_that_ends_in_a_failure_is_refused(tmp_path: Path) -> None:
    session = Session(tmp_path)
    told = session.loop([USER], asks("wiki", {"query": "a"}, "A."))
    session.call(told, None, failure="the answer broke off")
    assert refused("recorded", tmp_path).reason is Reason.FAILED


@pytest.mark.parametrize("last", ["cut", "calling"])
def test_a_run_without_an_answer_is_out_of_steps(last: str, tmp_path: Path) -> None:
    session = Session(tmp_path)
    told = session.loop([USER], asks("wiki", {"query": "a"}, "A."))
    if last == "cut":
        session.call(told, says("The answer is Be"), finish="length")
    else:
        session.call(told, asks("wiki", {"query": "b"}))
    [transcript] = imported("recorded", tmp_path)
    assert (transcript.ending, transcript.answer) == (Ending.OUT_OF_STEPS, "")


@pytest.mark.parametrize(
    ("reply", "of", "reason", "detail"),
    [
        (asks("send_mail", {"to": "a"}), "mhqa", Reason.UNKNOWN_TOOL, "send_mail"),
        (asks("wiki", {"page": 1, "size": 2}), "mhqa", Reason.UNKNOWN_ARGUMENT, "wiki"),
        (asks("visit", {"url": "u"}), "mhqa", Reason.NOT_OF_PROFILE, "visit is crawl_page, which profile mhqa lacks"),
    ],
)
def test_a_tool_that_cannot_be_told_refuses_the_run(
    reply: dict[str, Any], of: str, reason: Reason, detail: str, tmp_path: Path
) -> None:
    Session(tmp_path).loop([USER], reply, says("Berg"))
    assert refused("recorded", tmp_path, task(of)) == Refusal(str(tmp_path / "s.jsonl"), reason, detail)


def test_a_call_without_a_result_refuses_the_run(tmp_path: Path) -> None:
    session = Session(tmp_path)
    told = session.call([USER], asks("wiki", {"query": "a"}, "A."))
    session.call([*told, {"role": "assistant", "content": "and"}], says("Berg"))
    assert refused("recorded", tmp_path).reason is Reason.NO_RESULT


def test_results_that_come_as_a_users_message_are_told_apart_or_refused(tmp_path: Path) -> None:
    session = Session(tmp_path)
    told = session.call([USER], asks("wiki", {"query": "a"}, "A."))
    told = session.call([*told, {"role": "user", "content": "Observation:\nseen"}], asks("wiki", {"query": "b"}))
    session.call([*told, {"role": "user", "content": "Observation: more"}], says("Berg"))
    seen = [text for tag, text in spans(imported("recorded", tmp_path)[0]) if tag == "observation"]
    assert seen == ["seen", "more"]

    session = Session(tmp_path / "two")
    session.folder.mkdir()
    both = asks("wiki", {"query": "a"})
    both["tool_calls"] += asks("wiki", {"query": "b"}, key="c2")["tool_calls"]
    told = session.call([USER], both)
    session.call([*told, {"role": "user", "content": "seen\nmore"}], says("Berg"))
    assert refused("recorded", session.folder).reason is Reason.RESULTS_IN_ONE


def test_an_agent_that_acts_by_programs_in_its_text(tmp_path: Path) -> None:
    session = Session(tmp_path)
    told = session.call([USER], says("Thought: Look.\n<code>\nprint(wiki_search('Nora Lind'))\n"))
    logs = "Observation:\nExecution logs:\nNora Lind was born in Berg.\nLast output from code snippet:\nNone"
    told = session.call([*told, {"role": "user", "content": logs}], says("Again.\n```py\n1 / 0\n```"))
    told += [{"role": "user", "content": "Call id: c2\nError:\ndivision by zero"}]
    session.call(told, says("Thought: Done.\nCode:\n```py\nfinal_answer('Berg')\n```"))
    [transcript] = imported("recorded", tmp_path, task("multi"))
    assert spans(transcript) == [
        ("plan", "Look."),
        ("wiki_search", "Nora Lind"),
        ("observation", PAGES["Nora Lind"]),
        ("think", "Again."),
        ("code", "```py\n1 / 0\n```"),
        ("observation", "Error: division by zero"),
        ("reflection", "Done."),
        ("answer", "Berg"),
    ]


def test_a_program_that_was_asked_for_is_an_answer(tmp_path: Path) -> None:
    program = "```py\nanswer = int(input()) + 1\nprint(answer)\n```"
    Session(tmp_path).loop([USER], asks("python", {"code": "print(1)"}, "Try."), says(program))
    assert imported("recorded", tmp_path, task("code"))[0].answer == program


def test_a_line_that_cannot_be_read_refuses_its_session_alone(tmp_path: Path) -> None:
    for name in ("a", "b"):
        Session(tmp_path, name).loop([USER], asks("wiki", {"query": "a"}, "A."), says("Berg"))
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write('{"session": "a", "fail')
    first, second = import_runs("recorded", tmp_path, [task()])
    assert first == Refusal(str(tmp_path / "a.jsonl"), Reason.UNREADABLE, f"{tmp_path / 'a.jsonl'}, line 3")
    assert isinstance(second, Transcript)


LINES = st.text(st.characters(codec="utf-8", exclude_characters="<"), max_size=20)


@settings(deadline=None)
@given(st.lists(st.tuples(LINES, LINES.filter(str.strip)), min_size=1, max_size=5), LINES.filter(str.strip))
def test_whatever_an_agent_says_its_chain_holds_and_nothing_is_lost(
    tmp_path_factory: pytest.TempPathFactory, turns: list[tuple[str, str]], answer: str
) -> None:
    folder = tmp_path_factory.mktemp("runs")
    turns[0] = (turns[0][0].strip() or "plan", turns[0][1])
    replies = [asks("wiki", {"query": query}, text) for text, query in turns]
    answer = answer.replace(":", ".")
    Session(folder).loop([USER], *replies, says(answer), result="seen")
    [transcript] = imported("recorded", folder)
    assert holds(transcript)
    told = [text for tag, text in spans(transcript) if tag in ("plan", "think")]
    assert told == [text.strip() for text, _ in turns if text.strip()]
    assert transcript.answer == answer.strip()


@pytest.mark.parametrize(
    ("system", "name"),
    [
        ("You are the search agent of a team.", "search agent"),
        ("You are a helpful assistant. Answer", "helpful assistant"),
        ("Solve the task", "solve the task"),
        ("", "agent 2"),
    ],
)
def test_an_agents_name_is_in_its_prompt(system: str, name: str) -> None:
    assert agent_name(system, 2) == name


# The table of tools.


def test_a_file_extends_the_table(tmp_path: Path) -> None:
    table = tmp_path / "tools.yaml"
    table.write_text("ask_the_web: web_search\nhire: {tag: wiki_search, argument: job}\nsay: answer\n")
    (tmp_path / "runs").mkdir()
    hired = asks("hire", {"query": "not this", "job": "find Nora"}, "A.")
    Session(tmp_path / "runs").loop([USER], hired, asks("say", {"it": "Berg"}))
    [transcript] = imported("recorded", tmp_path / "runs", table=read_tools(table))
    assert spans(transcript)[1:] == [("wiki_search", "find Nora"), ("observation", "seen"), ("answer", "Berg")]
    (tmp_path / "tools.json").write_text('{"ask_the_web": {"tag": "web_search"}}')
    assert read_tools(tmp_path / "tools.json")["ask_the_web"].tags == ("web_search",)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: send", "'send' is no tool"),
        ("a: {tag: code, arg: x}", "expected a tag"),
        ("- a", "expected a table"),
        ("a: [", "cannot be read"),
    ],
)
def test_a_table_that_cannot_be_is_a_persons_mistake(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "tools.yaml").write_text(text)
    with pytest.raises(UserError, match=told):
        read_tools(tmp_path / "tools.yaml")


def test_the_table_in_the_documents_is_one(tmp_path: Path) -> None:
    shown = (Path(__file__).parents[1] / "docs/recording.md").read_text().split("```yaml\n")[1].split("```")[0]
    (tmp_path / "tools.yaml").write_text(shown)
    table = read_tools(tmp_path / "tools.yaml")
    assert [table[name].tags for name in ("ask_the_web", "librarian", "submit")] == [
        ("web_search",),
        ("wiki_search",),
        ("answer",),
    ]


# Memories of smolagents.


def action(text: str, **told: Any) -> dict[str, Any]:
    """As an agent's memory has it."""
    return {
        "step_number": 1,
        "timing": {"start_time": 0.0},
        "model_input_messages": None,
        "tool_calls": [],
        "error": None,
        "model_output_message": None,
        "model_output": text,
        "code_action": None,
        "observations": None,
        "observations_images": None,
        "action_output": None,
        "token_usage": {"input_tokens": 100, "output_tokens": 10},
        "is_final_answer": False,
    } | told


def acts(text: str, code: str, shown: str = "", last: str = "None", **told: Any) -> dict[str, Any]:
    call = {"id": "call_1", "type": "function", "function": {"name": "python_interpreter", "arguments": code}}
    logs = f"Execution logs:\n{shown}\nLast output from code snippet:\n{last}"
    output = f"Thought: {text}\n<code>\n{code}\n</code>"
    return action(output, tool_calls=[call], code_action=code, observations=logs) | told


def uses(text: str, name: str, arguments: Any, seen: str | None, **told: Any) -> dict[str, Any]:
    call = {"id": "c0", "type": "function", "function": {"name": name, "arguments": arguments}}
    return action(text, tool_calls=[call], observations=seen) | told


ASKED = {"task": QUESTION, "task_images": None}
PLANNED = {
    "model_input_messages": [],
    "plan": "Here are the facts I know and the plan of action that I will follow to solve the task:\n"
    "```\n1. owner\n2. town\n<end_plan>\n```",
    "token_usage": {"input_tokens": 100, "output_tokens": 10},
}
CODE_AGENT = [
    ASKED,
    PLANNED,
    acts("the owner", "print(wiki_search('Vexon Labs'))", PAGES["Vexon Labs"]),
    action("no code", error={"type": "AgentParsingError", "message": "no code found"}),
    acts("her town", "page = wiki_search(query='Nora Lind')\nprint(page)", PAGES["Nora Lind"]),
    acts("done", "final_answer('Berg')", last="Berg", is_final_answer=True, action_output="Berg"),
]


def memory(folder: Path, told: object, name: str = "run.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(told))
    return path


@pytest.mark.parametrize(
    "told",
    [CODE_AGENT, {"output": "Berg", "state": "success", "steps": CODE_AGENT, "token_usage": {"input_tokens": 1}}],
    ids=["steps", "result"],
)
def test_a_code_agents_memory_becomes_tools_where_its_code_only_calls_them(told: object, tmp_path: Path) -> None:
    [transcript] = imported("smolagents", memory(tmp_path, told))
    assert spans(transcript) == [
        ("plan", "1. owner\n2. town"),
        ("think", "the owner"),
        ("wiki_search", "Vexon Labs"),
        ("observation", PAGES["Vexon Labs"]),
        ("think", "her town"),
        ("wiki_search", "Nora Lind"),
        ("observation", PAGES["Nora Lind"]),
        ("think", "done"),
        ("answer", "Berg"),
    ]
    assert holds(transcript)
    assert (transcript.ending, transcript.team, transcript.usage) == (Ending.ANSWERED, "smolagents", Usage(5, 500, 50))


def test_a_code_agents_programs_and_errors_become_code_and_observations(tmp_path: Path) -> None:
    error = {"type": "AgentExecutionError", "message": "division by zero"}
    failed = acts("compute", "print(1)\n1 / 0", error=error) | {"observations": "Execution logs:\n1\n"}
    last = acts("so", "x = 5 * 2\nfinal_answer(x)", last="10", is_final_answer=True, action_output=10)
    [transcript] = imported("smolagents", memory(tmp_path, [ASKED, failed, last]), task("code"))
    assert spans(transcript) == [
        ("plan", "compute"),
        ("code", "```py\nprint(1)\n1 / 0\n```"),
        ("observation", "1\nError: division by zero"),
        ("reflection", "so"),
        ("code", "```py\nx = 5 * 2\nprint(x)\n```"),
        ("observation", "10"),
        ("answer", "10"),
    ]


def test_a_tool_calling_agents_memory(tmp_path: Path) -> None:
    failed = uses("", "wiki_search", {"query": "Nora"}, None)
    failed |= {"model_output_message": {"tool_calls": failed["tool_calls"]}, "tool_calls": []}
    failed["error"] = {"type": "AgentToolExecutionError", "message": "down"}
    steps = [
        ASKED,
        uses("Look.", "wiki_search", {"query": "Vexon Labs"}, "seen"),
        failed,
        uses("", "final_answer", {"answer": "Berg"}, "Berg", is_final_answer=True),
    ]
    [transcript] = imported("smolagents", memory(tmp_path, steps))
    assert spans(transcript)[3:] == [("wiki_search", "Nora"), ("observation", "Error: down"), ("answer", "Berg")]


def test_a_managed_agents_report_is_an_observation(tmp_path: Path) -> None:
    asked = acts("ask", "search_agent(task='Who owns Vexon Labs?')", last="### 1. Task outcome\nNora Lind")
    [transcript] = imported("smolagents", memory(tmp_path, [ASKED, asked, CODE_AGENT[-1]]), task("multi"))
    assert spans(transcript)[1:3] == [
        ("web_search", "Who owns Vexon Labs?"),
        ("observation", "### 1. Task outcome\nNora Lind"),
    ]


def test_an_answer_that_was_forced_is_none(tmp_path: Path) -> None:
    forced = action("", error={"type": "AgentMaxStepsError", "message": "Reached max steps."}, action_output="Berg")
    told = {"output": "Berg", "state": "max_steps_error", "steps": [*CODE_AGENT[:3], forced]}
    [transcript] = imported("smolagents", memory(tmp_path, told))
    assert transcript.ending is Ending.OUT_OF_STEPS


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (acts("", "for q in 'ab':\n    print(wiki_search(q))"), Reason.TOOLS_IN_PROGRAM),
        (acts("", "print(total + 1)"), Reason.NOT_WHOLE),
        (acts("", "send_mail('a')"), Reason.NOT_WHOLE),
        (uses("", "send_mail", {"to": "a"}, "sent"), Reason.UNKNOWN_TOOL),
    ],
)
def test_a_step_that_cannot_be_told_refuses_the_run(step: dict[str, Any], reason: Reason, tmp_path: Path) -> None:
    assert refused("smolagents", memory(tmp_path, [ASKED, step, CODE_AGENT[-1]]), task("multi")).reason is reason


def test_tools_called_together_refuse_the_run(tmp_path: Path) -> None:
    both = uses("", "wiki_search", {"query": "a"}, "seen\nmore\n")
    both["tool_calls"] = both["tool_calls"] * 2
    assert refused("smolagents", memory(tmp_path, [ASKED, both])).reason is Reason.RESULTS_IN_ONE


def test_lines_are_read_one_by_one(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    told = {"task_id": "t2", "steps": [{"task": "reworded"}, *CODE_AGENT[1:]]}
    path.write_text(f"{json.dumps({'steps': CODE_AGENT})}\n{{\n\n{json.dumps(told)}\n")
    first, second, third = import_runs("smolagents", path, [task(), task(name="t2", question="?")])
    assert isinstance(first, Transcript)
    assert second == Refusal(f"{path}, line 2", Reason.UNREADABLE)
    assert isinstance(third, Transcript)
    assert third.task.id == "t2"


PROGRAMS: list[tuple[str, Used | None]] = [
    ("print(search('a'))", Used("search", {"input": "a"})),
    ("r = search(q='a', n=2)\nprint('found:', r)\nr", Used("search", {"q": "a", "n": 2})),
    ("print(sum([1]))", None),
    ("x = (", None),
    ("total = 3\nfinish(total)", None),
    ("finish('a')", Used("finish", {"input": "a"})),
]


@pytest.mark.parametrize(("program", "used"), PROGRAMS)
def test_a_program_is_the_tool_that_it_alone_calls(program: str, used: Used | None) -> None:
    assert used_by(program, {"search", "finish"}, {"finish"}) == used


def test_names_that_a_program_does_not_make_are_free() -> None:
    program = "import re\nfrom os import path as p\ndef f(a):\n    b = a + c\n    return b\nclass D: e = f\n"
    program += "with open(p.x) as g:\n    print([h for h in g if k], D)\n"
    assert free_names(program) == {"c", "k"}


@pytest.mark.parametrize("name", ["final_answer", "wikipedia_search"])
def test_a_function_of_the_programs_own_is_no_tool_whatever_its_name(name: str) -> None:
    program = f"def {name}(n):\n    return n * 2\nprint({name}(21))"
    assert list(pieces_of_program(program, "42", read_tools(None))) == [
        Call("python_interpreter", {"code": program}, "42")
    ]


def test_a_real_agent_of_smolagents(tmp_path: Path) -> None:
    smolagents = pytest.importorskip("smolagents")
    models = pytest.importorskip("smolagents.models")

    class Scripted(smolagents.Model):
        replies = ["1. owner\n<end_plan>", "Look.\n<code>\nprint(wiki_search('Nora Lind'))\n</code>"]  # noqa: RUF012

        def generate(self, messages: Any, **_: Any) -> Any:
            said = self.replies.pop(0) if self.replies else "Done.\n<code>\nfinal_answer('Berg')\n</code>"
            usage = models.TokenUsage(100, 10)
            return models.ChatMessage(role=models.MessageRole.ASSISTANT, content=said, token_usage=usage)

    class Search(smolagents.Tool):
        name, description, output_type = "wiki_search", "Looks up.", "string"
        inputs = {"query": {"type": "string", "description": "what"}}  # noqa: RUF012

        def forward(self, query: str) -> str:
            return PAGES[query]

    made = smolagents.CodeAgent(tools=[Search()], model=Scripted(), planning_interval=9, verbosity_level=0)
    told = made.run(QUESTION, return_full_result=True).dict()
    (tmp_path / "run.json").write_text(json.dumps(told, default=str))
    [transcript] = imported("smolagents", tmp_path)
    assert spans(transcript) == [
        ("plan", "1. owner"),
        ("think", "Look."),
        ("wiki_search", "Nora Lind"),
        ("observation", PAGES["Nora Lind"]),
        ("think", "Done."),
        ("answer", "Berg"),
    ]
    assert transcript.usage == Usage(3, 300, 30)


# Logs of OAgents.


def oagents(steps: Sequence[Mapping[str, Any]], **told: Any) -> dict[str, Any]:
    return {
        "agent_name": "gpt-4.1",
        "question": QUESTION,
        "prediction": "Berg",
        "intermediate_steps": steps,
        "parsing_error": False,
        "iteration_limit_exceeded": False,
        "agent_error": None,
        "task_id": "unknown",
        "token_counts": {"input": 900, "output": 90},
    } | told


def plain(step: dict[str, Any], **told: Any) -> dict[str, Any]:
    """An action as OAgents writes it: without code and counts."""
    gone = ("code_action", "token_usage", "is_final_answer", "timing", "model_output_message")
    return {key: value for key, value in step.items() if key not in gone} | {"step_type": "action", **told}


STEPS = [
    {"step_type": "task", "task": f"You have one question to answer.\n{QUESTION}"},
    {"step_type": "planning", "facts": "Nothing yet.", "plan": "1. owner\n2. town"},
    plain(acts("the owner", "print(wiki_search('Vexon Labs'))", PAGES["Vexon Labs"]), evaluate_thought="On track."),
    plain(acts("her town", "print(wiki_search('Nora Lind'))", PAGES["Nora Lind"])),
    plain(acts("done", "final_answer('The town is Berg')", last="The town is Berg")),
]


def test_oagents_facts_plans_evaluations_and_its_reformulated_answer(tmp_path: Path) -> None:
    path = memory(tmp_path, oagents(STEPS), "run.jsonl")
    [transcript] = imported("oagents", path)
    assert spans(transcript) == [
        ("plan", "Nothing yet.\n\n1. owner\n2. town"),
        ("think", "the owner"),
        ("wiki_search", "Vexon Labs"),
        ("observation", PAGES["Vexon Labs"]),
        ("reflection", "On track."),
        ("think", "her town"),
        ("wiki_search", "Nora Lind"),
        ("observation", PAGES["Nora Lind"]),
        ("think", "done"),
        ("answer", "Berg"),
    ]
    assert holds(transcript)
    assert (transcript.team, transcript.models) == ("oagents", (("agent", "gpt-4.1"),))
    assert (transcript.usage.prompt_tokens, transcript.usage.completion_tokens) == (900, 90)


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ({"agent_error": "timeout", "prediction": None, "intermediate_steps": []}, Reason.FAILED),
        ({"intermediate_steps": ["ActionStep(...)"]}, Reason.UNREADABLE),
        ({"intermediate_steps": [{"step_type": "action"}]}, None),
        ({"intermediate_steps": []}, None),
        ({"intermediate_steps": None}, Reason.UNREADABLE),
        ({"question": "another", "intermediate_steps": []}, Reason.NO_TASK),
    ],
)
def test_what_oagents_could_not_finish(told: dict[str, Any], reason: Reason | None, tmp_path: Path) -> None:
    [result] = import_runs("oagents", memory(tmp_path, oagents(STEPS, **told), "run.jsonl"), [task()])
    assert (result.reason if isinstance(result, Refusal) else None) is reason


def test_an_oagents_run_over_its_limit_is_out_of_steps(tmp_path: Path) -> None:
    [transcript] = imported("oagents", memory(tmp_path, oagents(STEPS, iteration_limit_exceeded=True), "run.jsonl"))
    assert transcript.ending is Ending.OUT_OF_STEPS


# The command.


def test_the_command_writes_transcripts_and_tells_what_it_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    for name in ("a", "b"):
        Session(runs, name).loop([USER], asks("search", {"query": "a"}, "A."), says("Berg"))
    Session(runs, "c").loop([USER], asks("send_mail", {"to": "a"}), says("Berg"))
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text(json.dumps({"id": "t1", "question": QUESTION, "answer": "Berg", "profile": "web"}))
    path = import_command("recorded", runs, str(tasks), tmp_path / "out", profile="mhqa")
    told = capsys.readouterr().out
    assert "imported: answered" in told
    assert "refused: a tool that nobody has mapped" in told
    assert "send_mail" in told
    kept = list(read_transcripts(path.parent))
    assert [(run.transcript.task.profile, run.transcript.attempt, run.correct) for run in kept] == [
        ("mhqa", 0, None),
        ("mhqa", 1, None),
    ]
    assert to_chain(kept[0].transcript)[1] == Span("wiki_search", "a")


@pytest.mark.parametrize(
    ("form", "runs", "of", "told"),
    [
        ("langchain", ".", None, "unknown format 'langchain'"),
        ("recorded", "gone", None, "no such file"),
        ("recorded", ".", "chess", "unknown profile 'chess'"),
        ("smolagents", "tasks.jsonl", None, "none of the 1 runs there could be imported as smolagents"),
    ],
)
def test_a_persons_mistakes(form: str, runs: str, of: str | None, told: str, tmp_path: Path) -> None:
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text(json.dumps({"question": QUESTION, "answer": "Berg"}))
    with pytest.raises(UserError, match=told):
        import_command(form, tmp_path / runs, str(tasks), tmp_path / "out", profile=of)
    assert not (tmp_path / "out").exists()
