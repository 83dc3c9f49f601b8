"""Which call of a session continues which: clocks, branches, repeated requests, questions on the side."""

from collections.abc import Callable
from typing import Any

import pytest

from coa.distill.sources import Reason, Refusal, import_runs
from coa.teams.transcript import Transcript
from coa.usage import Usage
from tests.support.imported_runs import (
    QUESTION,
    SYSTEM,
    USER,
    Session,
    asks,
    imported,
    refused,
    run_of,
    says,
    spans,
    task,
)

SEARCHED = asks("wiki", {"query": "Vexon Labs"}, "Look.")
PLAN = [("plan", "Look."), ("wiki_search", "Vexon Labs")]
QUERIES = ("Vexon Labs", "Nora Lind")


def seen(text: str, key: str = "c1") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": key, "content": text}


def results_in(transcript: Transcript) -> list[str]:
    return [text for tag, text in spans(transcript) if tag == "observation"]


def at_once(*replies: dict[str, Any]) -> dict[str, Any]:
    """One reply with all their calls, and with the text of the first."""
    return {**replies[0], "tool_calls": [call for reply in replies for call in reply["tool_calls"]]}


def at(time: str) -> dict[str, Any]:
    return {"role": "system", "content": f"You are the lead agent. It is {time}."}


CLOCKS = [
    ("10:00", "10:01"),
    ("2026-11-26T09:59:58Z", "2026-11-26T10:00:03Z"),
    ("Thursday, November 26, 11:59 PM", "Friday, November 27, 12:00 AM"),
    ("the 1st call, id 7f3a9c21", "the 2nd call, id a04be6d8"),
]


@pytest.mark.parametrize(
    ("place", "times"), [("system", times) for times in (*CLOCKS, ("morning", "night"))] + [("user", t) for t in CLOCKS]
)
def test_a_clock_in_a_prompt_does_not_split_a_conversation(
    place: str, times: tuple[str, str], session: Session
) -> None:
    prompts = [
        [at(time), USER] if place == "system" else [SYSTEM, {"role": "user", "content": f"{time}\n{QUESTION}"}]
        for time in times
    ]
    session.call(prompts[0], SEARCHED)
    session.call([*prompts[1], SEARCHED, seen("Berg")], says("It is Berg.\nFinal answer: Berg"))
    transcript = run_of(session)
    assert spans(transcript) == [*PLAN, ("observation", "Berg"), ("think", "It is Berg."), ("answer", "Berg")]
    assert transcript.usage == Usage(2, 20, 2)


def test_a_request_that_is_sent_again_a_minute_later_is_the_same_request(session: Session) -> None:
    session.call([at("10:00"), USER], asks("wiki", {"query": "lost"}, "Lost."))
    session.call([at("10:01"), USER], SEARCHED)
    session.call([at("10:02"), USER, SEARCHED, seen("Berg")], says("Berg"))
    transcript = run_of(session)
    assert spans(transcript) == [*PLAN, ("observation", "Berg"), ("answer", "Berg")]
    assert transcript.usage == Usage(3, 30, 3)


def test_a_request_that_was_sent_again_counts_once_whatever_branches_follow(session: Session) -> None:
    session.call([USER], asks("wiki", {"query": "lost"}, "Lost."))
    begun = session.call([USER], SEARCHED)
    for page in ("Berg", "Borg"):
        session.call([*begun, seen(page)], says(page))
    assert [one.usage for one in imported("recorded", session.folder)] == [Usage(3, 30, 3), Usage(1, 10, 1)]


def test_questions_that_differ_in_their_numbers_are_two_conversations(session: Session) -> None:
    asked = [{"role": "user", "content": f"What is 3 + {n} ?"} for n in (4, 5)]
    for one in asked:
        session.call([SYSTEM, one], asks("wiki", {"query": "sums"}, "Look."))
    for one, answer in zip(asked, ("7", "8"), strict=True):
        reply = asks("wiki", {"query": "sums"}, "Look.")
        session.call([SYSTEM, one, reply, seen(f"It is {answer}.")], says(answer))
    tasks = [task(name=f"t{n}", question=f"What is 3 + {n} ?") for n in (4, 5)]
    runs = imported("recorded", session.folder, *tasks)
    assert [(one.task.id, spans(one)[2:]) for one in runs] == [
        ("t4", [("observation", "It is 7."), ("answer", "7")]),
        ("t5", [("observation", "It is 8."), ("answer", "8")]),
    ]


def test_branches_of_one_session_are_runs_of_their_own(session: Session) -> None:
    begun = session.call([USER], SEARCHED)
    session.call([*begun, seen("Berg, says one page")], says("Berg"))
    session.call([*begun, seen("Borg, says another")], says("Borg"))
    one, other = imported("recorded", session.folder)
    assert (one.attempt, other.attempt) == (0, 1)
    assert spans(one) == [*PLAN, ("observation", "Berg, says one page"), ("answer", "Berg")]
    assert spans(other) == [*PLAN, ("observation", "Borg, says another"), ("answer", "Borg")]
    assert one.usage + other.usage == Usage(3, 30, 3)


def test_branches_that_part_at_a_sampled_reply_each_have_their_own(session: Session) -> None:
    first, second = SEARCHED, asks("wiki", {"query": "Nora Lind"}, "Look.")
    begun = [session.call([USER], reply) for reply in (first, second)]
    more = [session.call([*said, seen(f"seen {n}")], asks("wiki", {"query": "Berg"})) for n, said in enumerate(begun)]
    for n, said in enumerate(more):
        session.call([*said, seen("a town")], says(f"Berg {n}"))
    runs = imported("recorded", session.folder)
    assert [spans(one) for one in runs] == [
        [
            ("plan", "Look."),
            ("wiki_search", query),
            ("observation", f"seen {n}"),
            ("wiki_search", "Berg"),
            ("observation", "a town"),
            ("answer", f"Berg {n}"),
        ]
        for n, query in enumerate(QUERIES)
    ]
    assert sum((one.usage for one in runs), Usage()) == Usage(6, 60, 6)


def test_a_task_that_is_played_again_in_one_session_is_another_attempt(session: Session) -> None:
    for page in ("Berg, in the north", "Berg, in the south"):
        session.loop([USER], SEARCHED, says("Berg"), result=page)
    assert [spans(one)[2] for one in imported("recorded", session.folder)] == [
        ("observation", "Berg, in the north"),
        ("observation", "Berg, in the south"),
    ]


def test_a_refused_branch_is_named(session: Session) -> None:
    begun = session.call([USER], SEARCHED)
    session.call([*begun, {"role": "assistant", "content": "and"}], says("Berg"))
    session.call([*begun, seen("x")], asks("mail", {"to": "a"}))
    runs = list(import_runs("recorded", session.folder, [task()]))
    assert [run.where for run in runs if isinstance(run, Refusal)] == [
        f"{session.folder / 's.jsonl'} (branch {n})" for n in (1, 2)
    ]


def test_a_question_on_the_side_is_no_branch(session: Session) -> None:
    begun = session.call([USER], SEARCHED)
    heard = session.call([*begun, seen("Nora Lind")], asks("wiki", {"query": "Nora Lind"}))
    session.call([*begun, seen("Nora Lind"), {"role": "user", "content": "A title, please"}], says("The owner"))
    session.call([*heard, seen("Berg")], says("Berg"))
    transcript = run_of(session)
    assert spans(transcript) == [
        *PLAN,
        ("observation", "Nora Lind"),
        ("wiki_search", "Nora Lind"),
        ("observation", "Berg"),
        ("think", "The owner"),
        ("answer", "Berg"),
    ]
    assert transcript.usage == Usage(4, 40, 4)


@pytest.mark.parametrize("ids", [("c1", "c1"), ("", ""), ("c1", "c2")], ids=["repeated", "missing", "distinct"])
@pytest.mark.parametrize("answered", [True, False], ids=["ids", "none"])
def test_parallel_calls_get_their_own_results(ids: tuple[str, str], answered: bool, session: Session) -> None:
    owner, town = (asks("wiki", {"query": query}, "Look.", key=key) for query, key in zip(QUERIES, ids, strict=True))
    results = [seen(text, key if answered else "") for key, text in zip(ids, ("owned", "born"), strict=True)]
    if ids[0] != ids[1] and answered:
        results.reverse()
    session.call([*session.call([USER], at_once(owner, town)), *results], says("Berg"))
    assert spans(run_of(session)) == [
        *PLAN,
        ("observation", "owned"),
        ("wiki_search", "Nora Lind"),
        ("observation", "born"),
        ("answer", "Berg"),
    ]


@pytest.mark.parametrize("renamed", [False, True], ids=["ids of the results", "ids of both"])
def test_calls_that_get_new_ids_in_each_request_keep_their_results(renamed: bool, session: Session) -> None:
    def calls(*keys: str) -> dict[str, Any]:
        return at_once(*(asks("wiki", {"query": query}, key=key) for query, key in zip(QUERIES, keys, strict=True)))

    session.call([USER], calls("a", "b"))
    for n, reply in enumerate([asks("wiki", {"query": "Berg"}, key="c"), says("Berg")]):
        new = [f"a{n}", f"b{n}"]
        sent = [USER, calls(*(new if renamed else ("a", "b"))), seen("owned", new[0]), seen("born", new[1])]
        if n:
            sent += [asks("wiki", {"query": "Berg"}, key=f"c{n}"), seen("a town", f"c{n}")]
        session.call(sent, reply)
    assert results_in(run_of(session)) == ["owned", "born", "a town"]


def test_results_of_calls_with_one_id_go_by_the_tools_name(session: Session) -> None:
    both = at_once(asks("wiki", {"query": "Vexon Labs"}, key="0"), asks("python", {"code": "print(1)"}, key="0"))
    results = [{**seen("1", "0"), "name": "python"}, {**seen("owned", "0"), "name": "wiki"}]
    session.call([*session.call([USER], both), *results], says("Berg"))
    assert results_in(run_of(session, task("react"))) == ["owned", "1"]


def test_one_result_for_two_calls_of_one_id_refuses_the_run(session: Session) -> None:
    both = at_once(*(asks("wiki", {"query": query}, key="0") for query in QUERIES))
    session.call([*session.call([USER], both), seen("owned", "0")], says("Berg"))
    assert refused("recorded", session.folder).reason is Reason.NO_RESULT


WORK = [SEARCHED, *(asks("wiki", {"query": f"page {n}"}, key=f"k{n}") for n in range(3)), says("Berg")]
WHOLE = [
    *PLAN,
    ("observation", "seen c1"),
    *(span for n in range(3) for span in (("wiki_search", f"page {n}"), ("observation", f"seen k{n}"))),
    ("answer", "Berg"),
]
Messages = list[Any]


def worked(session: Session, trim: Callable[[Messages], Messages]) -> None:
    """Records an agent that trims the messages of each request."""
    sent: Messages = [USER]
    for reply in WORK:
        session.call([at(f"10:0{len(sent)}"), *trim(sent)], reply)
        sent += [reply, *(seen(f"seen {call['id']}", call["id"]) for call in reply.get("tool_calls", ()))]


@pytest.mark.parametrize(
    "trim",
    [
        lambda sent: sent[-2:],
        lambda sent: sent[-3:],
        lambda sent: sent[-4:],
        lambda sent: [*sent[:1], *sent[1:][-2:]],
        lambda sent: [*sent[:3], *sent[3:][-2:]],
        lambda sent: [m if m["role"] != "tool" or m in sent[-2:] else {**m, "content": "[cleared]"} for m in sent],
    ],
    ids=["2", "3", "4", "the question and 2", "the first 3 and 2", "old results cleared"],
)
def test_a_history_that_an_agent_trims_is_one_conversation(
    trim: Callable[[Messages], Messages], session: Session
) -> None:
    worked(session, trim)
    transcript = run_of(session)
    assert spans(transcript) == WHOLE
    assert transcript.usage == Usage(5, 50, 5)


SUMMARY = {"role": "user", "content": "Summary: Vexon Labs was looked up."}


@pytest.mark.parametrize(
    "trim",
    [
        lambda sent: sent[-1:],
        lambda sent: [SUMMARY, *sent[-2:]] if len(sent) > 3 else sent,
        lambda sent: [USER, SUMMARY, *sent[-2:]] if len(sent) > 3 else sent,
        lambda sent: [SUMMARY, *sent[-4:]] if len(sent) > 5 else sent,
    ],
    ids=["1", "a summary", "the question and a summary", "a summary and 4"],
)
def test_a_history_whose_beginning_cannot_be_told_is_left_out(
    trim: Callable[[Messages], Messages], session: Session
) -> None:
    worked(session, trim)
    assert refused("recorded", session.folder).reason is Reason.CUT


def test_a_text_history_that_is_trimmed_is_one_conversation(session: Session) -> None:
    sent: Messages = [USER]
    replies = [REACT.format("Look.", "Vexon Labs"), REACT.format("Her.", "Nora"), "Final Answer: Berg"]
    for reply, result in zip(replies, ("owned", "born", ""), strict=True):
        session.call([SYSTEM, *sent[-2:]], says(reply))
        sent += [says(reply), {"role": "user", "content": f"Observation: {result}"}]
    assert spans(run_of(session)) == [
        *PLAN,
        ("observation", "owned"),
        ("think", "Her."),
        ("wiki_search", "Nora"),
        ("observation", "born"),
        ("answer", "Berg"),
    ]


def test_examples_in_a_prompt_are_no_trimmed_history(session: Session) -> None:
    examples = [{"role": "user", "content": "Her town ?"}, says("Arden"), USER]
    session.loop([SYSTEM, *examples], SEARCHED, says("Berg"))
    assert spans(run_of(session)) == [*PLAN, ("observation", "seen"), ("answer", "Berg")]


def test_a_users_turn_in_the_middle_stays(session: Session) -> None:
    said = session.call([USER], says("Which Vexon Labs?"))
    said = session.call([*said, {"role": "user", "content": "The one in Arden."}], SEARCHED)
    said = session.call([*said, seen("owned"), {"role": "user", "content": "Be short."}], says("Berg"))
    assert spans(run_of(session)) == [
        ("think", "Which Vexon Labs?"),
        ("observation", "The one in Arden."),
        ("plan", "Look."),
        ("wiki_search", "Vexon Labs"),
        ("observation", "owned\n\nBe short."),
        ("answer", "Berg"),
    ]


def test_another_agents_reply_that_comes_as_a_users_turn_is_not_repeated(session: Session) -> None:
    lead = session.call([SYSTEM, USER], says("Critic, what do you say?"))
    critic = {"role": "system", "content": "You are a critic who doubts."}
    session.call([critic, {"role": "user", "content": "Critic, what do you say?"}], says("Look once more."))
    session.call([*lead, {"role": "user", "content": "Critic: Look once more."}], says("Berg"))
    assert spans(run_of(session)) == [
        ("think", "Critic, what do you say?"),
        ("think", "Look once more."),
        ("answer", "Berg"),
    ]


REACT = "Thought: {}\nAction: wikipedia\nAction Input: {}"
WORKED = [
    *PLAN,
    ("observation", "owned"),
    ("think", "Her."),
    ("wiki_search", "Nora"),
    ("observation", "born"),
    ("think", "So."),
    ("answer", "Berg"),
]


def test_an_agent_that_writes_its_calls_as_react_text(session: Session) -> None:
    said = session.call([USER], says(REACT.format("Look.", "Vexon Labs")))
    said = session.call([*said, {"role": "user", "content": "Observation: owned"}], says(REACT.format("Her.", "Nora")))
    session.call([*said, {"role": "user", "content": "Observation: born"}], says("Thought: So.\nFinal Answer: Berg"))
    assert spans(run_of(session)) == WORKED


def test_an_agent_whose_one_message_grows_by_its_work(session: Session) -> None:
    prompt = f"Question: {QUESTION}\nThought:"
    replies = [" Look.\nAction: wiki\nAction Input: Vexon Labs", " Her.\nAction: wiki\nAction Input: Nora"]
    for reply, result in zip(replies, ("owned", "born"), strict=True):
        session.call([{"role": "user", "content": prompt}], says(reply))
        prompt += f"{reply}\nObservation: {result}\nThought:"
    session.call([{"role": "user", "content": prompt}], says(" So.\nFinal Answer: Berg"))
    assert spans(run_of(session)) == WORKED


def test_calls_of_the_first_protocol_for_functions(session: Session) -> None:
    call = {"name": "wiki", "arguments": '{"query": "Vexon Labs"}'}
    said = session.call([USER], {"role": "assistant", "content": "Look.", "function_call": call})
    session.call([*said, {"role": "function", "name": "wiki", "content": "Berg"}], says("Berg"))
    assert spans(run_of(session)) == [*PLAN, ("observation", "Berg"), ("answer", "Berg")]
