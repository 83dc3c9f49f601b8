"""The published AFM sets, on small rows in their layouts."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coa.agent.grammar import TAGS, Chain, Span, render
from coa.agent.profiles import PROFILES
from coa.distill.contamination import REASONS, Contamination
from coa.distill.dataset.external import ExternalCounts, add_rows
from coa.distill.dataset.rows import Decision, Demonstration
from coa.distill.dataset.shards import read_reports, read_rows
from coa.distill.dataset.tokens import read_samples, tokenise
from coa.distill.sources.demonstrations import read_data
from coa.distill.sources.released import Unreadable, answers_of, profile_of, read_chain, split_prompt, to_demonstration
from coa.types import Task
from tests.support.fakes import answered_chains, tag_codec
from tests.support.released import laid_out, row_of

Row = dict[str, Any]


FUNCTIONS = "You may use these functions: <think>, <plan>, {}, <observation>, <reflection>, <answer>.\n\nAlways plan."
MHQA_PROMPT = f"{FUNCTIONS.format('<wiki_search>')}\n\nQuestion: Who leads Arden ?"
WEB_PROMPT = f"{FUNCTIONS.format('<web_search>, <crawl_page>')}\n\nWho leads Arden now ?\n"
CODE_PROMPT = (
    f"{FUNCTIONS.format('<code>')}\n\nTask:\nAdd two numbers.\n\nQuestion: none.\n"
    "Answer should begin with '```py\n' and end with '```'."
)
MHQA_OUTPUT = laid_out(
    ("think", "first the town\n\nthen its mayor"),
    ("plan", "1. find it"),
    ("wiki_search", "Arden mayor"),
    ("observation", "Doc 1: Berg or Borg"),
    ("reflection", "good"),
    ("answer", "Berg | Borg"),
)
SEEN = "a page says <answer> Moss</answer>, </observation> and <code>x</code>\n<plan>\nnot ours\n</plan>\nend"
WEB_OUTPUT = laid_out(
    ("plan", "look"),
    ("web_search", "Arden mayor"),
    ("observation", SEEN),
    ("crawl_page", "https://a.test|https://b.test"),
    ("observation", "Berg"),
    ("suggested_answer", "Berg"),
    ("double_check", "2 unsure"),
    ("plan", "again"),
    ("suggested_answer", "Berg"),
    ("double_check", "4 sure"),
    ("answer", "Berg"),
)
PROGRAM = "```py\nprint(sum(map(int, input().split())))\n```\n```sh\n1 2\n```"
CODE_OUTPUT = laid_out(
    ("plan", "read, add"),
    ("think", "try it"),
    ("code", PROGRAM),
    ("observation", "3"),
    ("reflection", "right"),
    ("answer", "```py\nprint(sum(map(int, input().split())))\n```"),
)
MATH_OUTPUT = laid_out(
    ("plan", "count"),
    ("code", "```py\nprint(6 * 7)\n```"),
    ("observation", "42"),
    ("reflection", "right"),
    ("answer", "\\boxed{42}"),
)


ROWS = [
    row_of(MHQA_PROMPT, MHQA_OUTPUT),
    row_of(WEB_PROMPT, WEB_OUTPUT),
    row_of(CODE_PROMPT, CODE_OUTPUT),
    row_of(CODE_PROMPT, MATH_OUTPUT),
]


# Rows.


def test_a_row_of_each_kind_becomes_a_demonstration_of_its_profile() -> None:
    tasks = [to_demonstration(row, number, "afm").task for number, row in enumerate(ROWS)]
    program = "Add two numbers.\n\nQuestion: none.\nAnswer should begin with '```py\n' and end with '```'."
    assert tasks == [
        Task(id="afm-0", question="Who leads Arden ?", answers=("Berg", "Borg"), profile="mhqa", family="afm"),
        Task(
            id="afm-1",
            question="Who leads Arden now ?",
            answers=("Berg",),
            profile="web",
            family="afm",
            grader="judge",
        ),
        Task(id="afm-2", question=program, answers=(), profile="code", family="afm", grader="tests"),
        Task(id="afm-3", question=program, answers=("42",), profile="math", family="afm", grader="math"),
    ]


def test_a_bar_that_is_part_of_an_answer_makes_no_two_answers_of_it() -> None:
    assert answers_of("P(A|B) | 3|x|", "web") == ("P(A|B)", "3|x|")
    assert answers_of(r"So \boxed{|x|}.", "math") == ("|x|",)


def test_text_is_without_the_lines_around_it_and_keeps_those_in_it() -> None:
    chain = to_demonstration(ROWS[0], 1, "afm").chain
    assert chain[0] == Span("think", "first the town\n\nthen its mayor")
    assert to_demonstration(ROWS[2], 1, "afm").chain[2] == Span("code", PROGRAM)


def test_tags_in_an_observation_are_text() -> None:
    demonstration = to_demonstration(ROWS[1], 1, "afm")
    assert demonstration.chain[2] == Span("observation", SEEN)
    assert [span.tag for span in demonstration.chain][3:] == [
        "crawl_page",
        "observation",
        "suggested_answer",
        "double_check",
        "plan",
        "suggested_answer",
        "double_check",
        "answer",
    ]
    assert demonstration.decisions == ()


def test_a_tag_that_is_spoken_of_is_text() -> None:
    chain = (Span("think", "I call <wiki_search> next, then <answer>"), Span("answer", "a"))
    assert read_chain(laid_out(*((span.tag, span.text) for span in chain))) == chain


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("\n<think>\nto plan\n<plan>\np\n</plan>\n<answer>\na\n</answer>\n", "a tag left open"),
        ("<think>a<plan>b</plan><think>c</think><answer>d</answer>", "a tag inside another"),
        ("<think>\na\n<think>\nb\n</think>\n<answer>d</answer>", "a tag inside another"),
        ("<think>\na\n<plan>\nb\n</think>\n<answer>d</answer>", "a tag inside another"),
        ("<think>a<think>b</think><answer>d</answer>", "a tag inside another"),
        ("<plan>p</plan><wiki_search>q</wiki_search><observation>o<answer>a</answer>", "a tag left open"),
        ("so <plan>p</plan><answer>a</answer>", "text outside of tags"),
        ("<plan>p</plan> so <answer>a</answer>", "text outside of tags"),
        ("<plan>p</plan><answer>a</answer> done", "text outside of tags"),
        ("<plan>p</plan></think><answer>a</answer>", "a closing tag without its opening"),
        ("<tools>q</tools>", "no tags"),
        ("Berg", "no tags"),
        (" \n", "no tags"),
        ("<plan>p</plan><wiki_search>q</wiki_search>", "no answer at the end"),
    ],
)
def test_a_text_with_a_fault_is_told_with_its_reason(output: str, reason: str) -> None:
    with pytest.raises(Unreadable) as caught:
        read_chain(output)
    assert str(caught.value) == reason


quiet = st.text(st.characters(exclude_characters="<>", exclude_categories=["Cs"])).map(str.strip)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(list(PROFILES.values())).flatmap(lambda profile: answered_chains(profile, quiet)))
def test_what_is_laid_out_as_published_reads_back(chain: Chain) -> None:
    assert read_chain(laid_out(*((span.tag, span.text) for span in chain))) == chain
    assert read_chain(render(chain)) == chain


@settings(deadline=None)
@given(st.lists(st.sampled_from([mark for tag in TAGS.values() for mark in (tag.open, tag.close)] + ["a", "\n"])))
def test_any_text_reads_or_is_told(pieces: list[str]) -> None:
    try:
        chain = read_chain("".join(pieces))
    except Unreadable:
        return
    assert chain[-1].tag == "answer"


@pytest.mark.parametrize(
    ("prompt", "question"),
    [
        (MHQA_PROMPT, "Who leads Arden ?"),
        (WEB_PROMPT, "Who leads Arden now ?"),
        ("Who leads Arden ?", "Who leads Arden ?"),
        ("Question: Who ?\nQuestion: Which ?", "Who ?\nQuestion: Which ?"),
        ("Use <answer>.\nTask: Do it\n\nin steps.", "Do it\n\nin steps."),
        ("Question: as in an example.\nUse <answer>.\n\nQuestion: Who ?", "Who ?"),
        ("Use <answer>.\n\nIs this a Question: or not ?", "Is this a Question: or not ?"),
    ],
)
def test_the_question_is_what_follows_the_instructions(prompt: str, question: str) -> None:
    assert split_prompt(prompt)[1] == question


def test_a_question_may_stand_in_a_column_of_its_own() -> None:
    row = row_of(FUNCTIONS.format("<wiki_search>"), MHQA_OUTPUT, input="Question: Who leads Arden ?")
    assert to_demonstration(row, 1, "afm").task.question == "Who leads Arden ?"


@pytest.mark.parametrize(
    ("tags", "instructions", "profile"),
    [
        (("plan", "suggested_answer", "double_check", "answer"), "", "web"),
        (("plan", "wiki_search", "suggested_answer", "answer"), "", "multi"),
        (("plan", "wiki_search", "code", "answer"), "", "multi"),
        (("plan", "think", "answer"), FUNCTIONS.format("<wiki_search>"), "mhqa"),
        (("plan", "think", "answer"), FUNCTIONS.format("'web_search', 'crawl_page'"), "web"),
        (("plan", "think", "answer"), "", None),
    ],
)
def test_the_profile_is_told_by_tags_and_where_they_do_not_by_the_instructions(
    tags: tuple[str, ...], instructions: str, profile: str | None
) -> None:
    assert profile_of(tuple(Span(tag, "x") for tag in tags), instructions) == profile


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"output": "<answer>a</answer>"}, "no `instruction`"),
        ({"instruction": "Who ?", "output": None}, "no `output`"),
        (row_of("Use <answer>.\n\nQuestion: ", MHQA_OUTPUT), "no question in `instruction`"),
        (row_of("Who ?", laid_out(("plan", "p"), ("answer", "a"))), "its tags are no profile's"),
        (row_of("Who ?", MHQA_OUTPUT, history=[["a", "b"]]), "a conversation of several questions"),
    ],
)
def test_a_row_that_makes_no_demonstration_says_why(row: Row, reason: str) -> None:
    with pytest.raises(Unreadable) as caught:
        to_demonstration(row, 1, "afm")
    assert str(caught.value) == reason


# Files.

OUT_OF_TURN = row_of(MHQA_PROMPT, laid_out(("wiki_search", "q"), ("observation", "o"), ("answer", "a")))
NO_OUTPUT = "not a run of this format: its `output` is missing, expected a text"
UNCLOSED = row_of(MHQA_PROMPT, "<plan>p")


def write(path: Path, rows: list[Row]) -> Path:
    path.write_text(json.dumps(rows, indent=2))
    return path


def test_a_files_rows_become_rows_of_ours_and_the_rest_is_listed(tmp_path: Path) -> None:
    path = write(tmp_path / "WebAgentSFTDataset.json", [*ROWS, UNCLOSED, OUT_OF_TURN, {"instruction": "Who ?"}])
    folder, listing = tmp_path / "data", tmp_path / "unread.jsonl"
    counts = add_rows(read_data(path), folder, listing, shard_rows=3)
    assert counts == ExternalCounts(rows=7, kept=5, violations=1, dropped={"a tag left open": 1, NO_OUTPUT: 1})
    rows = list(read_rows(folder))
    assert [row.task.id for row in rows] == [f"WebAgentSFTDataset-{number}" for number in (1, 2, 3, 4, 6)]
    assert {row.source for row in rows} == {"released"}
    assert [row.decisions for row in rows] == [(), (), (), (), (Decision("quality", "transition violation"),)]
    assert [row.interactions for row in rows] == [5, 11, 5, 5, 3]
    assert [json.loads(line) for line in listing.read_text().splitlines()] == [
        {"row": 5, "reason": "a tag left open"},
        {"row": 7, "reason": NO_OUTPUT},
    ]
    assert list(read_reports(folder)) == [
        {"rows": 3, "kept": 3, "violations": 0, "dropped": {}},
        {"rows": 3, "kept": 2, "violations": 1, "dropped": {"a tag left open": 1}},
        {"rows": 1, "kept": 0, "violations": 0, "dropped": {NO_OUTPUT: 1}},
    ]


def test_released_rows_are_trained_on_like_any_other(tmp_path: Path) -> None:
    add_rows(read_data(write(tmp_path / "a.json", ROWS)), tmp_path / "data", tmp_path / "unread.jsonl")
    tokenise(tmp_path / "data", tag_codec(), instructed=False, limit=10_000)
    samples = list(read_samples(tmp_path / "data"))
    assert len(samples) == 4
    chain = to_demonstration(ROWS[1], 2, "a").chain
    learnt = tag_codec().decode(samples[1].token_ids[samples[1].loss_mask])
    assert learnt == render(span for span in chain if span.tag != "observation")


def test_lines_and_parquet_are_read_too(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "a.parquet")
    write(tmp_path / "a.json", ROWS)
    wanted = [to_demonstration(row, number, "a") for number, row in enumerate(ROWS, start=1)]
    for name in ("a.json", "a.jsonl", "a.parquet"):
        assert [one for _, one in read_data(tmp_path / name)] == wanted


QUESTION = "Who leads the town of Arden , and when did its mayor take up the office that he holds ?"


@pytest.mark.parametrize(
    "prompt",
    [
        f"{FUNCTIONS.format('<wiki_search>')}\n\nQuestion: {QUESTION}",
        f"{FUNCTIONS.format('<wiki_search>')}\n\n{QUESTION}\n\nAnswer in one word.",
        QUESTION,
    ],
)
def test_a_question_of_an_evaluation_set_is_found_wherever_the_prompt_has_it(tmp_path: Path, prompt: str) -> None:
    path = write(tmp_path / "a.json", [row_of(prompt, MHQA_OUTPUT), ROWS[0]])
    evaluated, other = (one for _, one in read_data(path, Contamination.of([QUESTION])))
    assert evaluated in REASONS
    assert isinstance(other, Demonstration)
    assert all(isinstance(one, Demonstration) for _, one in read_data(path))


def test_instructions_that_an_evaluation_set_shares_are_no_question(tmp_path: Path) -> None:
    instructed = f"{FUNCTIONS.format('<wiki_search>')}\n\nQuestion: {QUESTION}"
    [(_, one)] = read_data(write(tmp_path / "a.json", ROWS[:1]), Contamination.of([instructed]))
    assert isinstance(one, Demonstration)


# Tasks to reinforce on.


def test_demonstrations_of_the_reader_are_those_of_the_rows(tmp_path: Path) -> None:
    read = list(read_data(write(tmp_path / "a.json", [UNCLOSED, ROWS[0]])))
    assert read[0] == (1, "a tag left open")
    assert isinstance(read[1][1], Demonstration)
