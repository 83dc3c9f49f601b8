"""Programs of agents that act by code: the tools that one calls, and what each of them returned."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coa.distill.sources import read_tools
from coa.distill.sources.foreign import Answer, Call, Computed, Piece, Reason, Refused
from coa.distill.sources.frames import Seen, read_seen, shown_by
from coa.distill.sources.programs import fill, free_names, pieces_of_program

TABLE = read_tools(None)


def logs(printed: str, last: str = "None") -> Seen:
    return Seen(f"Execution logs:\n{printed}Last output from code snippet:\n{last}")


def pieces(program: str, seen: Seen | None) -> list[Piece]:
    return list(pieces_of_program(program, seen, TABLE))


def search(query: str, result: str | None) -> Call:
    return Call("wiki_search", {"input": query}, result)


BOTH = [search("a", "of\na"), search("b", "of b")]
PROGRAMS: Sequence[tuple[str, Seen | None, Sequence[Piece]]] = [
    ("print(wiki_search('a'))", logs("of\na\n"), [search("a", "of\na")]),
    ("r = wiki_search('a')", logs("", "of\na"), [search("a", "of\na")]),
    ("r = wiki_search('a')\nprint('found:', r)\nr", logs("found: of\na\n", "of\na"), [search("a", "of\na")]),
    ("r = wiki_search('a')\nprint(r)", Seen("other frames: of a"), [search("a", "other frames: of a")]),
    ("a = wiki_search('a')\nb = wiki_search('b')\nprint(a, '|', b)", logs("of\na | of b\n"), BOTH),
    ("q = 'a'\nprint(f'{q}: {wiki_search(q)}')\nprint('b:', wiki_search('b'), end='')",
     logs("a: of\na\nb: of b\n"), BOTH),
    ("for q in ['a', 'b']:\n    print(f'{q}: {wiki_search(q)}')", logs("a: of\na\nb: of b\n"), BOTH),
    ("for q in ('a', 'b'):\n    r = wiki_search(q)\n    r", logs("", "of b"), [search("a", None), search("b", "of b")]),
    ("for q in ['Berg', 'a']:\n    final_answer(q)\n    print(wiki_search(q))", None, [Answer("Berg")]),
    ("n = -3\nprint(n, None, wiki_search(['a', 'b'], n=n))", logs("-3 None of a\n"),
     [Call("wiki_search", {"input": ["a", "b"], "n": -3}, "of a")]),
    ("print(wiki_search('a'))\nfinal_answer('Berg')", logs("of\na\n", "Berg"), [search("a", "of\na"), Answer("Berg")]),
    ("town = 'Berg'\nfinal_answer(f'{town} !')", None, [Answer("Berg !")]),
    ("finish = 3\nfinal_answer(answer=finish)", logs("", "3"), [Answer("3")]),
    ("final_answer(2 * 3)", None, [Computed("final_answer(2 * 3)", frozenset({"final_answer"}))]),
    ("print(1 + 1)", logs("2\n"), [Call("python_interpreter", {"code": "print(1 + 1)"}, "2")]),
    ("x = (", Seen("", "never closed"), [Call("python_interpreter", {"code": "x = ("}, "Error: never closed")]),
    ("print(wiki_search('a'))", None, [search("a", None)]),
    ("print(wiki_search('a'))", Seen("Execution logs:\n", "down"), [search("a", "Error: down")]),
]  # fmt: skip


@pytest.mark.parametrize(("program", "seen", "expected"), PROGRAMS)
def test_a_program_that_calls_tools_is_these_calls_with_their_results(
    program: str, seen: Seen | None, expected: Sequence[Piece]
) -> None:
    assert pieces(program, seen) == expected


@pytest.mark.parametrize(
    ("program", "seen", "reason"),
    [
        ("print(wiki_search('a'))\nprint(wiki_search('b'))", logs("of\na\nof b\n"), Reason.RESULTS_IN_ONE),
        ("a = wiki_search('a')\nb = wiki_search('b')\nprint(f'{a}{b}')", logs("of aof b\n"), Reason.RESULTS_IN_ONE),
        ("print(wiki_search('a'))\nprint(wiki_search('b'))", Seen("Execution logs:\nof a", "down"),
         Reason.RESULTS_IN_ONE),
        ("a = wiki_search('a')\nb = wiki_search('b')\nprint(a + b)", logs("of aof b\n"), Reason.TOOLS_IN_PROGRAM),
        ("a, b = wiki_search('a'), wiki_search('b')\nprint(a)", Seen("", "down"), Reason.TOOLS_IN_PROGRAM),
        ("rs = {q: wiki_search(q) for q in ('a', 'b')}\nfor q, r in rs.items():\n  print('#' + q, r)",
         logs("#a of\na\n#b of b\n"), Reason.TOOLS_IN_PROGRAM),
        ("import re\nout = []\nfor q in ['a', 'b']:\n  out.append(wiki_search(q))\nprint(('=' * 3).join(out))",
         logs("of\na===of b\n"), Reason.TOOLS_IN_PROGRAM),
        ("for q in ('a', 'b', 'c'):\n  print(wiki_search(q))", Seen("Execution logs:\nof a", "down"),
         Reason.RESULTS_IN_ONE),
        ("for q in ['\\0' '0' '\\0']:\n  print(q, wiki_search('a'))", logs("of a\n"), Reason.TOOLS_IN_PROGRAM),
        ("\n".join(f"{' ' * n}for q in {[*range(20)]}:" for n in range(4)) + "\n    wiki_search('a')", logs(""),
         Reason.TOOLS_IN_PROGRAM),
        ("print(wiki_search(wiki_search('a')))", logs("of a\n"), Reason.TOOLS_IN_PROGRAM),
        ("print(wiki_search('a')[:5])", logs("of a\n"), Reason.TOOLS_IN_PROGRAM),
        ("rs = {q: wiki_search(q) for q in 'a b'.split()}", logs(""), Reason.TOOLS_IN_PROGRAM),
        ("while True:\n    print(wiki_search('a'))", logs("of a\n"), Reason.TOOLS_IN_PROGRAM),
        ("for n in range(10 ** 9):\n    print(wiki_search('a'))", logs("of a\n"), Reason.TOOLS_IN_PROGRAM),
        ("print('x' * 999999999, wiki_search('a'))", logs("of a\n"), Reason.TOOLS_IN_PROGRAM),
        ("a = 'x'\n" + "a = f'{a}{a}'\n" * 40 + "print(a, wiki_search('a'))", logs("of a\n"), Reason.TOOLS_IN_PROGRAM),
        ("print('\\0' '0' '\\0', wiki_search('a'))", logs("of a\n"), Reason.TOOLS_IN_PROGRAM),
        ("print({'a', 'b'}, wiki_search('a'))", logs("of a\n"), Reason.TOOLS_IN_PROGRAM),
        ("q = {'query': 'a'}\nprint(wiki_search(**q))", logs("of a\n"), Reason.TOOLS_IN_PROGRAM),
        ("print(total + 1)", logs("2\n"), Reason.NOT_WHOLE),
        ("r = wiki_search('a')\nfinal_answer('Berg')", None, Reason.NO_RESULT),
        ("final_answer(wiki_search('a'))", None, Reason.NO_RESULT),
    ],
)  # fmt: skip
def test_a_program_that_does_more_with_a_result_or_hides_it_is_refused(
    program: str, seen: Seen | None, reason: Reason
) -> None:
    with pytest.raises(Refused) as refused:
        pieces(program, seen)
    assert refused.value.reason is reason


TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)


@given(st.lists(st.tuples(st.sampled_from(["--", "\n", ": ", "a"]), TEXTS), min_size=1, max_size=4))
def test_what_is_found_in_a_frame_is_what_was_put_there(parts: list[tuple[str, str]]) -> None:
    frame = [part for n, (mark, _) in enumerate(parts) for part in (mark, n)] + ["."]
    found = fill(frame, "".join(f"{mark}{text}" for mark, text in parts) + ".")
    assert found is None or found == {n: text.strip() for n, (_, text) in enumerate(parts)}


def test_a_frame_that_fits_in_two_ways_tells_nothing() -> None:
    assert fill(["<", 0, "|", 1, ">"], "<a|b>") == {0: "a", 1: "b"}
    assert fill(["<", 0, "|", 1, ">"], "<a|b|c>") is None
    assert fill([0, "|", 0], "a|a") == {0: "a"}
    assert fill([0, "|", 0], "a|b") is None
    assert fill(["\n", 0, "\n", 1, "."], "\n\n0\n.") is None
    assert fill(["no hole"], " no hole\n") == {}


def test_results_with_the_heading_of_smolagents_search_tools_are_told_apart() -> None:
    one, other = "## Search Results\n\n[a](b)\nc", "## Search Results\n\n[d](e)"
    assert fill([0, "\n", 1], f"{one}\n{other}") == {0: one, 1: other}


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("Observation:\nExecution logs:\n1", Seen("Execution logs:\n1")),
        ("Observation: ZeroDivisionError: x, Observation: y", Seen("ZeroDivisionError: x, Observation: y")),
        ("Error:\ndown\nNow let's retry: take care not to repeat previous errors! If ...", Seen("", "down")),
        ("Call id: c1\nError:\nException: Error: down", Seen("", "Exception: Error: down")),
        ("Observation:\n1\nCall id: c1\nError:\ndown\nNow let's retry: take care not to repeat previous errors!",
         Seen("1", "down")),
        ("seen", Seen("seen")),
    ],
)  # fmt: skip
def test_marks_go_at_the_start_of_what_was_seen_alone(text: str, seen: Seen) -> None:
    assert read_seen(text) == seen


def test_an_interpreters_headings_are_no_output() -> None:
    assert shown_by("Execution logs:\n1\nLast output from code snippet:\nNone") == "1"
    assert shown_by("Execution logs:\n1\nLast output from code snippet:\n2") == "1\n2"
    assert shown_by("Execution logs:\n1\n") == "1"


def test_names_that_a_program_does_not_make_are_free() -> None:
    program = "import re\nfrom os import path as p\ndef f(a):\n    b = a + c\n    return b\nclass D: e = f\n"
    program += "with open(p.x) as g:\n    print([h for h in g if k], D)\n"
    assert free_names(program) == {"c", "k"}


@pytest.mark.parametrize("name", ["final_answer", "wikipedia_search"])
def test_a_function_of_the_programs_own_is_no_tool_whatever_its_name(name: str) -> None:
    program = f"def {name}(n):\n    return n * 2\nprint({name}(21))"
    assert pieces(program, Seen("42")) == [Call("python_interpreter", {"code": program}, "42")]
