"""Recorded sessions as transcripts: from a real client's calls on, and written by hand."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coa.agent.grammar import render
from coa.agent.profiles import profile
from coa.distill import filter_runs, to_chain
from coa.distill.sources import Reason, Refusal, import_runs
from coa.distill.sources.replies import agent_name
from coa.teams.transcript import AgentStep, Ending, Graded, ToolStep, Transcript
from coa.tools.base import ToolCall
from coa.usage import Usage
from tests.support.fakes import tag_codec
from tests.support.imported_runs import (
    OPEN,
    PAGES,
    SYSTEM,
    USER,
    Session,
    asks,
    holds,
    imported,
    refused,
    run_of,
    says,
    spans,
    task,
)
from tests.support.recordings import LOOP, agent, recording

pytestmark = pytest.mark.anyio

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


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_an_agents_calls_become_a_demonstration(stream: bool, tmp_path: Path) -> None:
    async with recording(tmp_path, *LOOP) as (url, _):
        assert await agent(f"{url}/session/run-1/v1", stream=stream) == "She was born there.\nFinal answer: Berg"
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


async def test_two_agents_at_once_are_two_attempts(tmp_path: Path) -> None:
    async with recording(tmp_path / "a", *LOOP) as (one, _), recording(tmp_path / "b", *LOOP) as (other, _):
        await asyncio.gather(agent(f"{one}/session/x/v1", stream=True), agent(f"{other}/session/y/v1", stream=False))
    (tmp_path / "b" / "y.jsonl").rename(tmp_path / "a" / "y.jsonl")
    runs = imported("recorded", tmp_path / "a")
    assert [(transcript.attempt, spans(transcript)) for transcript in runs] == [(0, CHAIN), (1, CHAIN)]


def test_text_becomes_what_the_profiles_table_needs(session: Session) -> None:
    run = {"code": "print(6 * 7)"}
    session.loop([SYSTEM, USER], asks("python", run, "Compute."), asks("python", run, "Odd."), says("So: Berg"))
    transcript = run_of(session, task("code"))
    code = ("code", "```py\nprint(6 * 7)\n```")
    seen = ("observation", "seen")
    plan, reflection, answer = ("plan", "Compute."), ("reflection", "Odd."), ("answer", "So: Berg")
    assert spans(transcript) == [plan, code, seen, reflection, code, seen, answer]
    assert not holds(transcript)  # nobody reflected before the answer
    transcript = run_of(session, task("multi"))
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


def test_an_agent_that_writes_our_tags_keeps_them(session: Session) -> None:
    messages = session.call([USER], says("<think> town</think><plan> p</plan><wiki_search> Nora</wiki_search>"))
    messages += [{"role": "user", "content": "<observation> Berg</observation>"}]
    session.call(messages, says("<reflection> good</reflection><answer> Berg</answer>"))
    transcript = run_of(session)
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


def test_a_models_own_thinking_is_thought(session: Session) -> None:
    first = {**asks("wiki", {"query": "a"}, "Look."), "reasoning_content": "hm"}
    session.loop([USER], first, says("<think>\nsure\n</think>\n\nBerg"))
    assert spans(imported("recorded", session.folder)[0]) == [
        ("think", "hm"),
        ("plan", "Look."),
        ("wiki_search", "a"),
        ("observation", "seen"),
        ("think", "sure"),
        ("answer", "Berg"),
    ]


def test_an_agent_that_hands_on_work_has_the_others_steps_in_place_of_the_report(session: Session) -> None:
    lead = session.call([SYSTEM, USER], asks("ask_expert", {"request": "Who owns Vexon Labs?"}, "First the owner."))
    expert = {"role": "system", "content": "You are an expert searcher who looks up facts."}
    asked = [expert, {"role": "user", "content": "Your task: Who owns\nVexon Labs?"}]
    session.loop(asked, asks("wiki", {"query": "Vexon Labs"}), says("Nora Lind owns it."))
    lead.append({"role": "tool", "tool_call_id": "c1", "content": "Report: Nora Lind owns it."})
    session.loop(lead, asks("final_answer", {"answer": "Berg"}, "Enough."))
    transcript = run_of(session)
    assert spans(transcript) == [
        ("plan", "First the owner."),
        ("think", "Who owns Vexon Labs?"),
        ("wiki_search", "Vexon Labs"),
        ("observation", "seen"),
        ("think", "Nora Lind owns it."),
        ("think", "Enough."),
        ("answer", "Berg"),
    ]
    agents = [step.agent for step in transcript.steps if isinstance(step, AgentStep)]
    assert agents == ["lead agent", "expert searcher", "expert searcher", "lead agent"]
    assert transcript.usage == Usage(4, 40, 4)


@pytest.mark.parametrize(
    ("name", "result", "agent"),
    [
        ("transfer_to_fact_finder", '{"assistant": "Fact finder"}', "fact finder"),
        ("escalate", '{"assistant":"Fact finder"}', "fact finder"),
        ("transfer_to_finder", "Successfully transferred to finder", "finder"),
        ("transfer_back_to_finder", "Successfully transferred back to finder", "finder"),
        ("transfer_to_finder", "Transferred to finder, adopting the role of finder immediately.", "finder"),
        ("transfer_to_finder", "Multiple handoffs detected, ignoring this one.", "lead agent"),
    ],
)
def test_a_handoff_is_a_change_of_the_agent_and_no_call(name: str, result: str, agent: str, session: Session) -> None:
    _, *said = session.call([SYSTEM, USER], asks(name, {"reason": "Facts are needed."}, "A search."))
    said += [{"role": "tool", "tool_call_id": "c1", "content": result}]
    system = {"role": "system", "content": "You are an expert who looks up facts."}
    session.loop([system, *said], asks("wiki", {"query": "Vexon Labs"}), says("Berg"))
    transcript = run_of(session)
    assert spans(transcript) == [
        ("plan", "A search."),
        ("think", "Facts are needed."),
        ("wiki_search", "Vexon Labs"),
        ("observation", "seen"),
        ("answer", "Berg"),
    ]
    assert [step.agent for step in transcript.steps if isinstance(step, AgentStep)] == ["lead agent", agent, agent]


def test_a_handoff_may_go_on_in_a_conversation_of_its_own(session: Session) -> None:
    session.call([SYSTEM, USER], asks("transfer_to_expert", {}))
    system = {"role": "system", "content": "You are an expert who looks up facts."}
    session.loop([system, USER], asks("wiki", {"query": "Vexon Labs"}, "Look."), says("Berg"))
    transcript = run_of(session)
    assert spans(transcript)[:2] == [("plan", "Look."), ("wiki_search", "Vexon Labs")]
    assert transcript.usage == Usage(3, 30, 3)


@pytest.mark.parametrize("result", ["done", '{"assistant": "X", "sum": 3}', '["assistant"]'])
def test_a_tool_that_is_named_like_a_handoff_is_a_tool(result: str, tmp_path: Path) -> None:
    Session(tmp_path).loop([USER], asks("transfer_to_savings", {"sum": 3}), says("Berg"), result=result)
    assert refused("recorded", tmp_path).detail == "transfer_to_savings"


def test_a_tool_that_asks_a_model_itself_remains_a_tool(session: Session) -> None:
    messages = session.call([USER], asks("visit_webpage", {"url": "https://a.example/b"}, "Read it."))
    session.call([{"role": "user", "content": "Sum up https://a.example/b: ..."}], says("A page of Berg."))
    messages.append({"role": "tool", "tool_call_id": "c1", "content": "A page of Berg."})
    session.call(messages, says("Berg"))
    transcript = run_of(session, task("multi"))
    assert spans(transcript) == [
        ("plan", "Read it."),
        ("crawl_page", "https://a.example/b"),
        ("observation", "A page of Berg."),
        ("answer", "Berg"),
    ]
    assert transcript.usage.requests == 3


PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}


def test_a_conversation_with_a_picture_is_left_out_and_others_of_its_session_are_not(session: Session) -> None:
    session.loop([USER], asks("wiki", {"query": "a"}, "A."), says("Berg"))
    other = {"role": "user", "content": [{"type": "text", "text": "What is the other question ?"}, PICTURE]}
    session.loop([other], asks("wiki", {"query": "b"}, "B."), says("Else"))
    tasks = [task(), task(name="t2", question="What is the other question ?")]
    one, refusal = import_runs("recorded", session.folder, tasks)
    assert isinstance(one, Transcript)
    assert (one.task.id, one.answer) == ("t1", "Berg")
    assert refusal == Refusal(f"{session.folder / 's.jsonl'} (t2)", Reason.NOT_TEXT, "image_url")


def test_a_picture_that_only_a_tool_shows_its_own_model_is_no_part_of_the_run(session: Session) -> None:
    messages = session.call([USER], asks("visit_webpage", {"url": "https://a.example/b"}, "Read it."))
    shown = {"type": "text", "text": "Describe https://a.example/b"}
    session.call([{"role": "user", "content": [shown, PICTURE]}], says("A page of Berg."))
    messages.append({"role": "tool", "tool_call_id": "c1", "content": "A page of Berg."})
    session.call(messages, says("Berg"))
    assert imported("recorded", session.folder, task("multi"))[0].answer == "Berg"


def test_one_session_with_several_tasks_is_several_runs(session: Session) -> None:
    other = {"role": "user", "content": "What is\nthe other question ?"}
    session.loop([USER], asks("wiki", {"query": "a"}, "A."), says("Berg"))
    session.loop([other], asks("wiki", {"query": "b"}, "B."), says("Else"))
    runs = imported("recorded", session.folder, task(), task(name="t2", question="What is the other question ?"))
    assert [(transcript.task.id, transcript.answer, transcript.steps[0]) for transcript in runs] == [
        ("t1", "Berg", runs[0].steps[0]),
        ("t2", "Else", runs[1].steps[0]),
    ]
    assert [spans(transcript)[1] for transcript in runs] == [("wiki_search", "a"), ("wiki_search", "b")]


@pytest.mark.parametrize(("name", "task_id"), [("s", "t1"), ("t1", "")], ids=["by its header", "by the session"])
def test_a_run_is_joined_with_its_task_by_id(name: str, task_id: str, tmp_path: Path) -> None:
    session = Session(tmp_path, name, task_id)
    session.loop([{"role": "user", "content": "rewritten"}], asks("wiki", {"query": "a"}, "A."), says("Berg"))
    assert imported("recorded", tmp_path, task(name="t0"), task())[0].task.id == "t1"
    assert refused("recorded", tmp_path, task(name="t0")).reason is Reason.NO_TASK


def test_a_call_that_is_made_again_counts_once_but_its_cost_twice(session: Session) -> None:
    session.call([USER], None, failure="status 500", status=500, usage=None)
    session.call([USER], asks("wiki", {"query": "lost"}, "Never heard."))
    session.loop([USER], asks("wiki", {"query": "a"}, "A."), says("Berg"))
    transcript = run_of(session)
    assert [span for span in spans(transcript) if span[0] == "wiki_search"] == [("wiki_search", "a")]
    assert transcript.usage == Usage(3, 30, 3)


def test_a_run_that_ends_in_a_failure_is_refused(session: Session) -> None:
    messages = session.loop([USER], asks("wiki", {"query": "a"}, "A."))
    session.call(messages, None, failure="the answer broke off")
    assert refused("recorded", session.folder).reason is Reason.FAILED


@pytest.mark.parametrize("last", ["cut", "calling"])
def test_a_run_without_an_answer_is_out_of_steps(last: str, session: Session) -> None:
    messages = session.loop([USER], asks("wiki", {"query": "a"}, "A."))
    if last == "cut":
        session.call(messages, says("The answer is Be"), finish="length")
    else:
        session.call(messages, asks("wiki", {"query": "b"}))
    transcript = run_of(session)
    assert (transcript.ending, transcript.answer) == (Ending.OUT_OF_STEPS, "")


@pytest.mark.parametrize(
    ("reply", "of", "reason", "detail"),
    [
        (asks("send_mail", {"to": "a"}), "mhqa", Reason.UNKNOWN_TOOL, "send_mail"),
        *((asks(tag, {"text": "a"}), "mhqa", Reason.UNKNOWN_TOOL, tag) for tag in ("think", "plan", "observation")),
        (asks("wiki", {"page": 1, "size": 2}), "mhqa", Reason.UNKNOWN_ARGUMENT, "wiki"),
        (asks("visit", {"url": "u"}), "mhqa", Reason.NOT_OF_PROFILE, "visit is crawl_page, which profile mhqa lacks"),
    ],
)
def test_a_tool_that_cannot_be_told_refuses_the_run(
    reply: dict[str, Any], of: str, reason: Reason, detail: str, tmp_path: Path
) -> None:
    Session(tmp_path).loop([USER], reply, says("Berg"))
    assert refused("recorded", tmp_path, task(of)) == Refusal(str(tmp_path / "s.jsonl"), reason, detail)


def test_a_call_without_a_result_refuses_the_run(session: Session) -> None:
    messages = session.call([USER], asks("wiki", {"query": "a"}, "A."))
    session.call([*messages, {"role": "assistant", "content": "and"}], says("Berg"))
    assert refused("recorded", session.folder).reason is Reason.NO_RESULT


def test_results_that_come_as_a_users_message_are_told_apart_or_refused(session: Session) -> None:
    messages = session.call([USER], asks("wiki", {"query": "a"}, "A."))
    messages = session.call(
        [*messages, {"role": "user", "content": "Observation:\nseen"}], asks("wiki", {"query": "b"})
    )
    session.call([*messages, {"role": "user", "content": "Observation: more"}], says("Berg"))
    seen = [text for tag, text in spans(imported("recorded", session.folder)[0]) if tag == "observation"]
    assert seen == ["seen", "more"]

    session = Session(session.folder / "two")
    session.folder.mkdir()
    both = asks("wiki", {"query": "a"})
    both["tool_calls"] += asks("wiki", {"query": "b"}, key="c2")["tool_calls"]
    messages = session.call([USER], both)
    session.call([*messages, {"role": "user", "content": "seen\nmore"}], says("Berg"))
    assert refused("recorded", session.folder).reason is Reason.RESULTS_IN_ONE


def test_an_error_that_a_page_tells_of_stays_in_its_observation(session: Session) -> None:
    messages = session.call([USER], asks("wiki", {"query": "a"}, "A."))
    seen = "Observation:\nZeroDivisionError: division by zero, Observation: 3"
    session.call([*messages, {"role": "user", "content": seen}], says("Berg"))
    assert spans(run_of(session))[2] == ("observation", "ZeroDivisionError: division by zero, Observation: 3")


def test_a_silent_agents_first_reasoning_is_its_plan(session: Session) -> None:
    first = {**asks("wiki", {"query": "a"}), "reasoning_content": "The owner, then her town."}
    session.loop([USER], first, {**says("Berg"), "reasoning_content": "Now I know."})
    transcript = run_of(session)
    assert spans(transcript) == [
        ("plan", "The owner, then her town."),
        ("wiki_search", "a"),
        ("observation", "seen"),
        ("think", "Now I know."),
        ("answer", "Berg"),
    ]
    assert holds(transcript)


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("import time\nfinal_answer(time.time_ns())", "another time it gave another"),
        ("final_answer(1 / 0)", "ZeroDivisionError: division by zero"),
    ],
)
def test_an_answer_that_cannot_be_computed_again_refuses_the_run(program: str, reason: str, tmp_path: Path) -> None:
    Session(tmp_path).call([USER], says(f"Compute.\n<code>\n{program}\n</code>"))
    result = refused("recorded", tmp_path, task("code"))
    assert (result.reason, result.detail) == (Reason.NOT_COMPUTED, reason)


def test_an_agent_that_acts_by_programs_in_its_text(session: Session) -> None:
    messages = session.call([USER], says("Thought: Look.\n<code>\nprint(wiki_search('Nora Lind'))\n"))
    logs = "Observation:\nExecution logs:\nNora Lind was born in Berg.\nLast output from code snippet:\nNone"
    messages = session.call([*messages, {"role": "user", "content": logs}], says("Again.\n```py\n1 / 0\n```"))
    messages += [{"role": "user", "content": "Call id: c2\nError:\ndivision by zero"}]
    session.call(messages, says("Thought: Done.\nCode:\n```py\nfinal_answer('Berg')\n```"))
    assert spans(run_of(session, task("multi"))) == [
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


def test_a_line_of_something_else_refuses_its_session_alone(tmp_path: Path) -> None:
    for name in ("a", "b"):
        Session(tmp_path, name).loop([USER], asks("wiki", {"query": "a"}, "A."), says("Berg"))
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write('{"session": "a"}')
    first, second = import_runs("recorded", tmp_path, [task()])
    assert first == Refusal(str(tmp_path / "a.jsonl"), Reason.UNREADABLE, f"{tmp_path / 'a.jsonl'}, line 3")
    assert isinstance(second, Transcript)


def test_a_torn_line_is_left_out_and_told(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    path.write_text('{"session": "s", "mess')
    Session(tmp_path).loop([USER], asks("wiki", {"query": "a"}, "A."), says("Berg"))
    torn, run = import_runs("recorded", tmp_path, [task()])
    assert torn == Refusal(f"{path}, line 1", Reason.TORN)
    assert isinstance(run, Transcript)
    assert (run.answer, len(run.steps)) == ("Berg", 3)


@pytest.mark.parametrize("line", [0, 1])
def test_a_run_that_went_on_from_a_torn_line_is_refused(tmp_path: Path, line: int) -> None:
    Session(tmp_path).loop([USER], asks("wiki", {"query": "a"}, "A."), asks("wiki", {"query": "b"}, "B."), says("Berg"))
    path = tmp_path / "s.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:line], lines[line][:40], *lines[line + 1 :]]))
    assert list(import_runs("recorded", tmp_path, [task()])) == [
        Refusal(f"{path}, line {line + 1}", Reason.TORN),
        Refusal(str(path), Reason.MISSING_CALL),
    ]


def test_a_file_of_torn_lines_alone_is_no_session(tmp_path: Path) -> None:
    (tmp_path / "s.jsonl").write_text('{"session": "s", "mess')
    assert refused("recorded", tmp_path) == Refusal(str(tmp_path / "s.jsonl"), Reason.UNREADABLE)


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
    texts = [text for tag, text in spans(transcript) if tag in ("plan", "think")]
    assert texts == [text.strip() for text, _ in turns if text.strip()]
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


@pytest.mark.parametrize("stopped", ["", "\nObservation:"])
def test_results_that_an_agent_appends_to_the_models_own_words_are_results(stopped: str, tmp_path: Path) -> None:
    session, sent = Session(tmp_path), [SYSTEM, USER]
    for query, page in PAGES.items():
        text = f"Thought: look\nAction: wiki_search\nAction Input: {query}"
        session.call(sent, says(text + stopped))
        sent = [*sent, says(f"{text}\nObservation: {page}")]
    session.call(sent, says("Thought: I now know.\nFinal Answer: Berg"))
    seen = [span for query, page in PAGES.items() for span in (("wiki_search", query), ("observation", page))]
    chain = spans(imported("recorded", tmp_path)[0])
    assert [span for span in chain if span[0] not in ("plan", "think")] == [*seen, ("answer", "Berg")]


@pytest.mark.parametrize(("again", "known"), [("owned", True), ("another text", False)])
def test_a_result_without_a_call_is_not_lost(again: str, known: bool, session: Session) -> None:
    sent = session.loop([SYSTEM, USER], asks("wiki_search", {"query": "Vexon Labs"}), result="owned")
    session.call([*sent, {"role": "tool", "tool_call_id": "other", "content": again}], says("Berg"))
    [result] = import_runs("recorded", session.folder, [task()])
    assert isinstance(result, Transcript) is known
    assert known or getattr(result, "reason", None) is Reason.NO_CALL
