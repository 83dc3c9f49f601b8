"""Which responses of a program's calls are trained, and where: each at most once, as it was sampled."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from coa.agent.journal import Said
from coa.agent.programs.tree import Call, Forest, Unused, forest_of, parents_of
from coa.types import ENVIRONMENT

THOROUGH = settings(derandomize=True, max_examples=400, deadline=None, database=None)


def call(number: int, prompt: str, said: str, *, at: tuple[int, int] | None = None, tool: bool = False) -> Call:
    """Each character is a token. at: when it was asked and answered; one call after the other by default."""
    asked, answered = at or (2 * number, 2 * number + 1)
    return Call(
        number=number,
        asked=asked,
        answered=answered,
        prompt=np.array([ord(one) for one in prompt], np.int32),
        said=Said(
            token_ids=np.array([ord(one) for one in said], np.int32),
            logprobs=np.arange(len(said), dtype=np.float32) - 100 * number,
            versions=((number, len(said)),),
            ended=True,
        ),
        text=said,
        messages=(json.dumps({"content": prompt}),),
        tools=("search",) if tool else (),
    )


def prompt_of(one: Call) -> str:
    return "".join(map(chr, one.prompt))


def whole_of(one: Call) -> str:
    return "".join(map(chr, one.whole))


def shown(forest: Forest) -> list[tuple[list[int], list[int]]]:
    return [([one.number for one in path.calls], sorted(path.trained)) for path in forest.paths]


def test_a_conversation_that_goes_on_is_one_path() -> None:
    forest = forest_of([call(0, "u", "a"), call(1, "uat", "b"), call(2, "uatbv", "c")], "c")
    assert (shown(forest), forest.unused) == ([([0, 1, 2], [0, 1, 2])], {})
    token_ids, mask, logprobs, versions = forest.paths[0].arrays()
    assert "".join(map(chr, token_ids)) == "uatbvc"
    assert mask.tolist() == [False, True, False, True, False, True]
    assert logprobs.tolist() == [0, 0, 0, -100, 0, -200]
    assert versions.tolist() == [ENVIRONMENT, 0, ENVIRONMENT, 1, ENVIRONMENT, 2]


def test_a_fork_shares_its_beginning_which_is_trained_once() -> None:
    forest = forest_of([call(0, "u", "a"), call(1, "uab", "c"), call(2, "uad", "e")], "e")
    assert (shown(forest), forest.unused) == ([([0, 1], [0, 1]), ([0, 2], [2])], {})
    _, mask, logprobs, versions = forest.paths[1].arrays()
    assert mask.tolist() == [False, False, False, True]
    assert (logprobs.tolist(), versions.tolist()) == ([0, 0, 0, -200], [ENVIRONMENT] * 3 + [2])


def test_a_compaction_begins_another_path() -> None:
    forest = forest_of([call(0, "u", "a", tool=True), call(1, "us", "b")], "b")
    assert (shown(forest), forest.unused) == ([([0], [0]), ([1], [1])], {})


def test_a_response_to_the_same_prompt_that_nothing_continued_was_a_retry() -> None:
    forest = forest_of([call(0, "u", "a"), call(1, "u", "b"), call(2, "ubt", "c")], "c")
    assert (shown(forest), forest.unused) == ([([1, 2], [1, 2])], {0: Unused.RETRIED})
    later = forest_of([call(0, "u", "a"), call(1, "uat", "c"), call(2, "u", "b")], "c")
    assert (shown(later), later.unused) == ([([0, 1], [0, 1])], {2: Unused.RETRIED})


def test_where_no_response_is_continued_the_last_one_replaces_those_before_it() -> None:
    forest = forest_of([call(0, "u", "x"), call(1, "u", "y"), call(2, "u", "z")], "z")
    assert (shown(forest), forest.unused) == ([([2], [2])], {0: Unused.RETRIED, 1: Unused.RETRIED})


def test_responses_that_were_sampled_at_the_same_time_are_votes() -> None:
    votes = [call(0, "u", "x", at=(0, 5), tool=True), call(1, "u", "x", at=(1, 4), tool=True), call(2, "u", "y")]
    forest = forest_of([votes[0], votes[1], call(2, "u", "y", at=(2, 6))], "x")
    assert (shown(forest), forest.unused) == ([([0], [0]), ([1], [1]), ([2], [2])], {})


def test_of_two_equal_responses_the_one_that_was_answered_last_is_continued() -> None:
    calls = [call(0, "u", "a", at=(0, 5)), call(1, "u", "a", at=(1, 4)), call(2, "uat", "b", at=(6, 7))]
    forest = forest_of(calls, "b")
    assert (shown(forest), forest.unused) == ([([0, 2], [0, 2])], {1: Unused.RETRIED})


def test_a_retry_of_a_retry_leaves_nothing_between_them() -> None:
    """Both calls of a conversation were made twice; nobody continued the first two."""
    twice = [call(0, "u", "a"), call(1, "uat", "b"), call(2, "u", "a"), call(3, "uat", "c"), call(4, "uatcv", "d")]
    forest = forest_of(twice, "d")
    assert (shown(forest), forest.unused) == ([([2, 3, 4], [2, 3, 4])], {0: Unused.RETRIED, 1: Unused.RETRIED})


def test_what_nothing_came_of_is_auxiliary() -> None:
    calls = [call(0, "t", "title"), call(1, "s", "sub"), call(2, "u sub", "a"), call(3, "q", "tool", tool=True)]
    forest = forest_of([*calls, call(4, "w", "end")], "a")
    assert forest.unused == {0: Unused.AUXILIARY}
    assert shown(forest) == [([n], [n]) for n in (1, 2, 3, 4)]
    assert forest_of([*calls, call(4, "w", "end")], "a", auxiliary=True).unused == {}


def test_one_line_of_a_text_is_enough_to_have_come_up_again() -> None:
    first, second = call(0, "s", 'I look.\nIt is "5".\n'), call(1, "t", "\n")
    told = (json.dumps({"content": 'He: It is "5".'}),)
    assert forest_of([first, second, replace(call(2, "u", "a"), messages=told)], "a").unused == {1: Unused.AUXILIARY}
    assert forest_of([first, call(2, "u", "a")], 'He: It is "5".').unused == {}
    before = replace(call(2, "u", "a", at=(0, 9)), messages=told)
    assert forest_of([first, before], "a").unused == {0: Unused.AUXILIARY}, "it was asked before"


def test_a_call_can_not_continue_what_was_not_answered_yet() -> None:
    calls = [call(0, "u", "a", at=(0, 9), tool=True), call(1, "uat", "b", at=(1, 2))]
    assert parents_of(calls) == {0: None, 1: None}


def test_a_constrained_response_is_context_and_not_trained() -> None:
    calls = [call(0, "u", "a"), replace(call(1, "uat", "b"), free=False), call(2, "uatbv", "c")]
    forest = forest_of(calls, "c")
    assert (shown(forest), forest.unused) == ([([0, 1, 2], [0, 2])], {1: Unused.CONSTRAINED})
    assert forest.paths[0].arrays()[1].tolist() == [False, True, False, False, False, True]


def test_where_nothing_is_trained_the_path_of_the_last_call_is_left() -> None:
    calls = [replace(call(number, "uv"[number], "a", tool=True), free=False) for number in range(2)]
    forest = forest_of(calls, "a")
    assert (shown(forest), forest.unused) == ([([1], [])], dict.fromkeys((0, 1), Unused.CONSTRAINED))


def test_no_call_is_no_path() -> None:
    assert forest_of([], "x") == Forest((), {})


TEXTS = st.text("ab", min_size=0, max_size=3)


@st.composite
def episodes(draw: st.DrawFn) -> tuple[list[Call], str]:
    """Calls that begin, continue, fork, repeat and cross each other, with few letters, so that much is alike."""
    calls: list[Call] = []
    clock = 0
    for number in range(draw(st.integers(0, 9))):
        clock += draw(st.integers(1, 2))
        known = [""] + [one for made in calls for one in (prompt_of(made), whole_of(made)) if made.answered < clock]
        prompt = draw(st.sampled_from(known)) + draw(TEXTS) or "u"
        said = draw(st.text("ab", min_size=1, max_size=3))
        takes = draw(st.integers(1, 5))
        calls.append(call(number, prompt, said, at=(clock, clock + takes), tool=draw(st.booleans())))
    return calls, draw(TEXTS)


def brute(calls: Sequence[Call]) -> dict[int, int | None]:
    found: dict[int, int | None] = {}
    for one in calls:
        before = [o for o in calls if o.answered < one.asked and prompt_of(one).startswith(whole_of(o))]
        best = max(before, key=lambda o: (len(o.whole), o.answered, o.number), default=None)
        found[one.number] = None if best is None else best.number
    return found


@THOROUGH
@given(episodes())
def test_a_parent_is_the_longest_beginning(episode: tuple[list[Call], str]) -> None:
    assert parents_of(episode[0]) == brute(episode[0])


@THOROUGH
@given(episodes(), st.booleans(), st.randoms(use_true_random=False))
def test_each_response_is_trained_once_or_for_a_reason_not_at_all(
    episode: tuple[list[Call], str], auxiliary: bool, random: object
) -> None:
    calls, answer = episode
    forest = forest_of(calls, answer, auxiliary=auxiliary)
    trained = Counter(number for path in forest.paths for number in path.trained)
    assert set(trained.values()) <= {1}
    assert sorted([*trained, *forest.unused]) == [one.number for one in calls]
    if calls:
        assert trained, "an episode has something to learn from"
    above = parents_of(calls)
    for path in forest.paths:
        assert path.trained
        numbers = [one.number for one in path.calls]
        assert [above[number] for number in numbers] == [None, *numbers[:-1]]
        assert not forest.unused.keys() & set(numbers)
        token_ids, mask, logprobs, versions = path.arrays()
        assert "".join(map(chr, token_ids)) == whole_of(path.calls[-1])
        for at, (is_trained, logprob, version) in enumerate(zip(mask, logprobs, versions, strict=True)):
            [*owner] = (
                one for one in path.calls if len(one.prompt) <= at < len(one.whole) and one.number in path.trained
            )
            assert len(owner) == is_trained
            if is_trained:
                assert (logprob, version) == (at - len(owner[0].prompt) - 100 * owner[0].number, owner[0].number)
            else:
                assert (logprob, version) == (0, ENVIRONMENT)
    shuffled = list(calls)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert shown(forest_of(shuffled, answer, auxiliary=auxiliary)) == shown(forest)


def test_a_long_conversation_is_one_path() -> None:
    made = [call(number, "u" + "at" * number, "a") for number in range(40)]
    assert shown(forest_of(made, "a")) == [(list(range(40)), list(range(40)))]
