"""Replies that hold tool calls and thoughts as text."""

import json

import pytest

from coa.distill.sources.foreign import Answer, Reason, Refused
from coa.distill.sources.messages import ToolUse
from coa.distill.sources.replies import WrittenCalls, answer_pieces, responses_in, split_thinking, written_calls

GLAIVE = """I look. <functioncall> {{"name": "search", "arguments": '{}'}} <|endoftext|>"""
BLOB = '{"action": "search", "action_input": "Vexon Labs"}'
SEARCH = ToolUse("search", "Vexon Labs")
QUERY = ToolUse("search", {"query": "a"})


@pytest.mark.parametrize(
    ("text", "before", "uses"),
    [
        ("Thought: Look.\nAction: search\nAction Input: Vexon Labs", "Look.", (SEARCH,)),
        ("Thought: Look.\nAction: search\nAction Input: Vexon Labs\nObservation:", "Look.", (SEARCH,)),
        ('Action: search\nAction Input: {"query": "a"}', "", (ToolUse("search", '{"query": "a"}'),)),
        ("**Thought:** Look.\n**Action:** `search`\n**Action Input:** Vexon Labs\n", "Look.", (SEARCH,)),
        ("Thought 1: Look.\nAction 1: search[Vexon Labs]", "Look.", (SEARCH,)),
        ("I look.\nAction:\n```json\n" + BLOB + "\n```", "I look.", (SEARCH,)),
        ("Action:\n```\n" + BLOB + "\n```\nObservation", "", (SEARCH,)),
        ("Action: " + json.dumps([{"name": "search", "arguments": {"query": "a"}}] * 2), "", (QUERY, QUERY)),
        (
            '<think>hm</think>Look.\n<tool_call>\n{"name": "search", "arguments": {"query": "a"}}\n</tool_call>',
            "<think>hm</think>Look.",
            (QUERY,),
        ),
        ('<tool_call>{"name": "search", "arguments": {"query": "a"}}</tool_call>\n' * 2, "", (QUERY, QUERY)),
        ('<tool_call>{"name": "search", "parameters": {"query": "a"}}', "", (QUERY,)),
        ("<tool_call>\n{'name': 'search', 'arguments': {'query': 'a'}}\n</tool_call>", "", (QUERY,)),
        (
            "<tool_call>\n" + '{"name": "search", "arguments": {"query": "a"}}\n' * 2 + "</tool_call>",
            "",
            (QUERY, QUERY),
        ),
        (GLAIVE.format('{"query": "a"}'), "I look.", (ToolUse("search", '{"query": "a"}'),)),
        (GLAIVE.format('{"query": "Nora\'s"}'), "I look.", (ToolUse("search", '{"query": "Nora\'s"}'),)),
        (GLAIVE.format('{"query": "Nora\\\'s"}'), "I look.", (ToolUse("search", '{"query": "Nora\'s"}'),)),
        (
            """<functioncall> {"name": "f", "arguments": '{}'} <functioncall> {"name": "g", "arguments": {"a": 1}}""",
            "",
            (ToolUse("f", "{}"), ToolUse("g", {"a": 1})),
        ),
        ('[search(query="a")]', "", (QUERY,)),
        ("I look.\n[search(query='a')]<|eot_id|>", "I look.", (QUERY,)),
        ('<|python_start|>[search(query="a"), search(query="a")]<|python_end|>', "", (QUERY, QUERY)),
        ("<think>hm</think>[now()]", "<think>hm</think>", (ToolUse("now", {}),)),
        ('[search("a", 2)]', "", (ToolUse("search", {"input": "a", "input 2": 2}),)),
        (
            '[Market Trends API(trend_type="A, B", from="us"), v1/get.rates(n=-2.5, all=true, to=None, '
            "rows=[{'a': \"x)]\"}, [1]])]",
            "",
            (
                ToolUse("Market Trends API", {"trend_type": "A, B", "from": "us"}),
                ToolUse("v1/get.rates", {"n": -2.5, "all": True, "to": None, "rows": [{"a": "x)]"}, [1]]}),
            ),
        ),
        ("<tool_call><function=search>\n<parameter=query>\na\n</parameter>\n</function></tool_call>", "", (QUERY,)),
    ],
)
def test_calls_that_are_written_in_a_text_are_calls(text: str, before: str, uses: tuple[ToolUse, ...]) -> None:
    assert written_calls(text) == WrittenCalls(before, uses)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Berg",
        "Thought: I know.\nFinal Answer: Berg",
        "Action: none is needed.",
        "The plan is in\nAction: two\nsteps",
        "<tool_call>soon</tool_call>",
        "Action: [1, 2]",
        "[f(x)]",
        "[1, 2]",
        "[a](b=1)",
        "So:\n[f(x=y) for y in z]",
        '[f("x")] is the list.',
        "<tool_call>{'name': 'f', 'arguments': {1, 2}}</tool_call>",
        "```py\nprint('Action: x')\n```",
    ],
)
def test_other_texts_hold_no_calls(text: str) -> None:
    assert written_calls(text) is None


def test_a_result_that_the_model_wrote_itself_is_refused() -> None:
    with pytest.raises(Refused) as caught:
        written_calls("Action: search\nAction Input: a\nObservation: Berg\nFinal Answer: Berg")
    assert caught.value.reason is Reason.OWN_OBSERVATION


@pytest.mark.parametrize("text", ["[search(query=Vexon Labs)]", '[search(query="a"), then]', '[search(query="a")))]'])
def test_a_list_of_calls_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(Refused) as caught:
        written_calls(f"<think>hm</think>{text}")
    assert (caught.value.reason, caught.value.detail) == (
        Reason.UNREADABLE,
        f"calls are {f'<think>hm</think>{text}'!r}",
    )


def test_a_call_that_cannot_be_read_beside_others_is_refused() -> None:
    with pytest.raises(Refused) as caught:
        written_calls('<tool_call>{"name": "search"}</tool_call><tool_call>{"name": "sea</tool_call>')
    assert (caught.value.reason, caught.value.detail) == (
        Reason.UNREADABLE,
        'a call beside others is \'{"name": "sea\'',
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('Look.\n<tool_call>\n{"name": "sea</tool_call>', Reason.UNREADABLE),
    ],
)
def test_a_call_is_no_answer(text: str, reason: Reason) -> None:
    with pytest.raises(Refused) as caught:
        list(answer_pieces(text))
    assert caught.value.reason is reason


@pytest.mark.parametrize("text", ["[f(x)]", "[1, 2]", "The tag <tool_call> begins a call.", "[a](b=1)"])
def test_what_looks_like_a_call_may_be_an_answer(text: str) -> None:
    assert [piece for piece in answer_pieces(text) if isinstance(piece, Answer)] == [Answer(text)]


def test_the_marks_of_openthoughts_are_no_part_of_an_answer() -> None:
    text = "<|begin_of_thought|>\nhm\n<|end_of_thought|>\n\n<|begin_of_solution|>\n\nBerg\n\n<|end_of_solution|>"
    assert [piece.text.strip() for piece in answer_pieces(text) if isinstance(piece, Answer)] == ["Berg"]


@pytest.mark.parametrize(
    ("text", "thought", "rest"),
    [
        ("Berg", "", "Berg"),
        ("<think>\nhm\n</think>\n\nBerg", "hm", "Berg"),
        ("<Thinking>hm</Thinking> Berg", "hm", "Berg"),
        ("<|begin_of_thought|>\n\nhm\n\n<|end_of_thought|>\n\nBerg", "hm", "Berg"),
        ("hm, her town\n</think>\n\nBerg", "hm, her town", "Berg"),
        ("<think></think>Berg", "", "Berg"),
        ("<think>a</think>Look.\n<think>b</think>Berg", "a\nb", "Look.\nBerg"),
        ("<think>cut off in the mid", "cut off in the mid", ""),
        ("The tag <think> begins a thought.", "", "The tag <think> begins a thought."),
    ],
)
def test_thoughts_are_split_from_the_text(text: str, thought: str, rest: str) -> None:
    assert split_thinking(text) == (thought, rest)


def test_results_in_their_tags_are_told_apart() -> None:
    assert responses_in("<tool_response>\na\n</tool_response>\n<tool_response>b</tool_response>") == ["a", "b"]
    assert responses_in("<tool_response>a</tool_response> and more") == []
