"""The forgiving reading: what is understood all the same, what is told of it, and what is not repairs."""

import asyncio
import time

import pytest
from hypothesis import given, settings

from coa.agent.episode import AgentConfig, run_episode
from coa.agent.grammar import Fault, Span, parse
from coa.agent.lenient import Repair, read
from coa.types import Status
from tests.support.fakes import END, ScriptedPolicy, ScriptedTools, tag_codec, task, texts, tokens_of

QUICK = settings(derandomize=True, max_examples=300, deadline=None, database=None)


@pytest.mark.parametrize(
    ("text", "repairs"),
    [
        ("<plan> a</plan>", ()),
        ("<Plan> a</Plan>", (Repair.CASE,)),
        ("<PLAN> a</plan>", (Repair.CASE,)),
        ("< plan > a</ plan>", (Repair.SPACING,)),
        ("<\tPlan> a< /plan>", (Repair.CASE, Repair.SPACING)),
    ],
)
def test_case_and_spacing_are_forgiven_and_told(text: str, repairs: tuple[Repair, ...]) -> None:
    reading = read(text)
    assert reading.parsed.chain == (Span("plan", "a"),)
    assert reading.parsed.fault is None
    assert reading.repairs == repairs


@pytest.mark.parametrize(
    ("program", "odd"),
    [
        ("```py\nprint(1)\n```", False),
        ("```py\nprint(input())\n```\n```sh\n7\n```", False),
        ("print(1)", False),
        ("```\nprint(1)\n```", False),
        ("```python\nprint(1)\n```", True),
        ("```Python3\nprint(1)\n```", True),
        ("```py\nprint(input())\n```\n```bash\n7\n```", True),
        ("```javascript\n1\n```", False),  # not understood: it runs as it stands
        ("print('```python')", False),
        ("~~~python\nprint(1)\n~~~", True),
        ("````py\nprint('```')\n````", True),
    ],
)
def test_a_fence_of_another_name_is_forgiven_and_told(program: str, odd: bool) -> None:
    reading = read(f"<code> {program}</code>")
    assert reading.parsed.fault is None
    assert reading.repairs == ((Repair.FENCE,) if odd else ())
    assert read(f"<think> {program}</think>").repairs == ()


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("Well. <Plan> a</Plan>", Fault.STRAY_TEXT),
        ("<Plan> a", Fault.STRAY_TEXT),
        ("<plan> a", Fault.UNCLOSED),
        ("<plan> a<Think> b</Think>", Fault.UNCLOSED),
        ("<plan      > a</plan>", Fault.STRAY_TEXT),
        # Letters that are s and i to a careless comparison.
        ("<an\u017fwer> a</an\u017fwer>", Fault.STRAY_TEXT),
        ("<th\u0131nk> a</th\u0131nk>", Fault.STRAY_TEXT),
    ],
)
def test_what_has_another_fault_keeps_its_strict_reading(text: str, fault: Fault) -> None:
    reading = read(text)
    assert reading.parsed == parse(text)
    assert reading.parsed.fault is fault
    assert reading.repairs == ()


@QUICK
@given(text=texts)
def test_what_is_read_strictly_is_never_read_otherwise(text: str) -> None:
    strict, reading = parse(text), read(text)
    if strict.fault is None or not reading.repairs:
        assert reading.parsed == strict


@pytest.mark.parametrize("piece", ["<think>", "< think", "</think", "<   ", "<\\", "< / Think >", "<Answer>"])
def test_a_megabyte_of_unclosed_tags_is_read_in_no_time(piece: str) -> None:
    text = "<plan>" + piece * (1_000_000 // len(piece))
    started = time.process_time()
    assert read(text).parsed.fault is not None
    assert time.process_time() - started < 20, "a quadratic reading takes many minutes"


def test_an_end_of_message_after_a_turn_is_no_text() -> None:
    policy = ScriptedPolicy(tag_codec(), [])
    [end] = tag_codec()._ours(END)
    policy.say([*tokens_of(tag_codec(), "<Plan> a</Plan><wiki_search> b</WIKI_search>"), end])
    policy.say([*tokens_of(tag_codec(), "<answer> c</Answer>"), end, end])
    made = asyncio.run(
        run_episode(
            task(),
            0,
            codec=tag_codec(),
            generate=policy,
            use_tool=ScriptedTools("d"),
            agent=AgentConfig(instructed=False),
        )
    )
    assert (made.status, made.answer) == (Status.ANSWERED, "c")
    # The first stands in the prompt. What was sampled stays, and is learnt from.
    assert made.action_mask[made.token_ids == end].tolist() == [False, True, True, True]


def test_an_episode_goes_on_and_says_what_was_forgiven() -> None:
    policy = ScriptedPolicy(tag_codec(), ["<Plan> a</Plan><wiki_search> b</ wiki_search>", "<answer> c</answer>"])
    episode = run_episode(
        task(), 0, codec=tag_codec(), generate=policy, use_tool=ScriptedTools("d"), agent=AgentConfig(instructed=False)
    )
    made = asyncio.run(episode)
    assert made.status is Status.ANSWERED
    assert made.repairs == ("a tag in capitals", "blanks inside a tag")
    assert made.transitions_hold
