"""What counts as kept before: made-up questions, near and far, in a memory of fixed size."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coa.agent.grammar import Chain, Span
from coa.demo.tasks import training_task
from coa.demo.world import World, WorldConfig
from coa.distill.duplicates import (
    ENOUGH,
    EXACT,
    NEAR,
    SAME_CHAIN,
    Bloom,
    BloomSize,
    DuplicateConfig,
    Duplicates,
    bands_and_rows,
    identity,
    minhash,
)
from coa.distill.words import folded, grams, names_and_numbers, numbers_of, pseudo_random, words_of
from coa.errors import UserError

SMALL = DuplicateConfig(documents=1000)
CHAIN = (Span("plan", "p"), Span("answer", "Berg"))


def other(n: int) -> Chain:
    return (Span("plan", f"way {n}"), Span("answer", "Berg"))


def words(start: int, count: int) -> str:
    """Without a name or a number."""
    return " ".join("".join(chr(97 + int(digit)) for digit in str(n)) for n in range(start, start + count))


# Two tasks.


def test_the_same_question_and_answer_under_another_name_is_dropped():
    seen = Duplicates(SMALL)
    assert seen.take("a", "Who owns Vexon Labs ?", "Berg", CHAIN) is None
    assert seen.take("b", "who owns  the vexon labs", "berg.", other(1)) == EXACT
    assert seen.take("b", "Who owns Vexon Labs ?", "Lind", other(1)) is None
    assert seen.take("c", "Who owns Synta Labs ?", "Berg", other(1)) is None


def test_a_long_question_with_a_word_changed_is_a_near_duplicate():
    question = f"Arden {words(0, 200)}"
    seen = Duplicates(SMALL)
    assert seen.take("a", question, "Berg", CHAIN) is None
    assert seen.take("b", question.replace(" bb ", " zz "), "Berg", CHAIN) == NEAR
    assert seen.take("c", f"Arden {words(500, 200)}", "Berg", CHAIN) is None


@pytest.mark.parametrize(("found", "changed"), [("Arden", "Moss"), ("1204", "1205")])
def test_another_name_or_number_makes_another_task_however_long_the_rest(found: str, changed: str):
    question = f"{words(0, 100)} Arden in 1204 {words(100, 100)}"
    seen = Duplicates(SMALL)
    assert seen.take("a", question, "Berg", CHAIN) is None
    assert seen.take("b", question.replace(found, changed), "Berg", CHAIN) is None
    assert seen.take("c", question.replace(" bb ", " zz "), "Lind", CHAIN) is None
    assert seen.take("d", question.replace(" bb ", " zz "), "Berg", CHAIN) == NEAR


def test_an_answer_as_long_as_a_program_does_not_tell_two_questions_apart():
    twenty, more = words(1000, 20), words(1000, 21)
    seen = Duplicates(SMALL)
    assert seen.take("a", "Sort it .", f"{more} x", CHAIN) is None
    assert seen.take("b", "Sort it .", f"{more} y", CHAIN) == EXACT
    assert seen.take("c", "Add it .", twenty, CHAIN) is None
    assert seen.take("d", "Add it .", words(1001, 20), CHAIN) is None


@pytest.mark.parametrize("threshold", [None, 0.0])
def test_without_a_threshold_no_two_tasks_are_compared(threshold: float | None):
    seen = Duplicates(DuplicateConfig(threshold=threshold, documents=10))
    assert seen.take("a", "Who ?", "Berg", CHAIN) is None
    assert seen.take("b", "Who ?", "Berg", CHAIN) is None
    assert seen.take("b", "Who ?", "Berg", CHAIN) == SAME_CHAIN


def test_questions_of_one_template_are_no_near_duplicates():
    world = World(WorldConfig())
    tasks = [training_task(world, seed=0, purpose="distill", index=index) for index in range(1500)]
    different = {(task.question, task.answers[0]): task for task in tasks}
    seen = Duplicates(DuplicateConfig(documents=2000))
    reasons = [seen.take(task.id, task.question, task.answers[0], CHAIN) for task in tasks]
    assert reasons.count(None) == len(different) < len(tasks)
    assert reasons.count(EXACT) == len(tasks) - len(different)


# One task.


def test_a_task_may_be_solved_in_several_ways_but_not_twice_in_one():
    seen = Duplicates(SMALL)
    taken = [seen.take("a", "Who ?", "Berg", other(n)) for n in (0, 1, 2, 1)]
    assert taken == [None, None, None, SAME_CHAIN]


@pytest.mark.parametrize("most", [1, 2, 3])
def test_no_more_solutions_of_a_task_are_taken_than_wanted(most: int):
    seen = Duplicates(DuplicateConfig(solutions_per_task=most, documents=100))
    assert [seen.take("a", "Who ?", "Berg", other(n)) for n in range(4)] == [None] * most + [ENOUGH] * (4 - most)
    assert seen.take("b", "Where ?", "Berg", other(0)) is None


def test_two_chains_do_not_differ_by_the_words_in_which_they_judge():
    def chain(reflection: str, check: str, query: str = "q") -> Chain:
        return (Span("web_search", query), Span("reflection", reflection), Span("double_check", check))

    assert identity(chain("so", "2 old")) == identity(chain("thus", "2 outdated"))
    assert identity(chain("so", "2 old")) != identity(chain("so", "3 old"))
    assert identity(chain("so", "2 old")) != identity(chain("so", "2 old", "other"))


def test_what_was_kept_earlier_is_remembered_whatever_it_resembles():
    seen = Duplicates(DuplicateConfig(solutions_per_task=2, documents=100))
    for n in range(2):
        seen.remember("a", "Who ?", "Berg", other(n))
    assert seen.take("a", "Who ?", "Berg", other(0)) == SAME_CHAIN
    assert seen.take("a", "Who ?", "Berg", other(2)) == ENOUGH
    assert seen.take("b", "Who ?", "Berg", other(2)) == EXACT


# The memory.


def test_a_memory_that_is_full_is_a_mistake_that_a_person_can_mend():
    seen = Duplicates(DuplicateConfig(documents=2))
    for n in range(2):
        assert seen.take(f"t{n}", f"Who is {n} ?", "Berg", CHAIN) is None
    with pytest.raises(UserError, match=r"is full after 2 runs: raise distill\.filters\.duplicates\.documents"):
        seen.take("t2", "Who is 2 ?", "Berg", CHAIN)


def test_a_full_memory_takes_no_more_for_duplicates_than_its_rate_of_errors():
    config = DuplicateConfig(documents=2000, error_rate=0.02)
    seen = Duplicates(config)
    before = seen.nbytes
    reasons = [seen.take(f"t{n}", f"Who is {n} of {n * n} ?", "Berg", CHAIN) for n in range(2000)]
    assert 0 < 2000 - reasons.count(None) < 40
    assert seen.nbytes == before < 2000 * 40


@settings(deadline=None)
@given(st.integers(0, 200), st.integers(1, 8))
def test_a_bloom_filter_finds_all_that_is_in_it(count: int, skipped: int):
    bloom = Bloom(1, BloomSize.of(200, 0.01))
    numbers = pseudo_random(1000)[::skipped][:count]
    for number in numbers:
        bloom.add(np.array([number]))
    assert bloom.holds(numbers).all()


def test_a_bloom_filter_errs_as_often_as_it_is_made_for():
    bloom = Bloom(2, BloomSize.of(5000, 0.01))
    for pair in pseudo_random(10_000).reshape(-1, 2):
        bloom.add(pair)
    found = np.mean([bloom.holds(pair) for pair in pseudo_random(30_000)[10_000:].reshape(-1, 2)])
    assert 0.007 < found < 0.013


def test_filters_side_by_side_do_not_see_each_others_keys():
    bloom = Bloom(2, BloomSize.of(100, 1e-6))
    first, second = pseudo_random(2)
    bloom.add(np.array([first, second]))
    assert bloom.holds(np.array([first, second])).tolist() == [True, True]
    assert bloom.holds(np.array([second, first])).tolist() == [False, False]


# Similarity.


def test_signatures_agree_in_the_share_that_two_sets_overlap():
    numbers = pseudo_random(1500)
    one, two = numbers[:1000], numbers[500:]
    factors, terms = pseudo_random(2000)[:1000] | np.uint64(1), pseudo_random(2000)[1000:]
    agreed = (minhash(one, factors, terms) == minhash(two, factors, terms)).mean()
    assert agreed == pytest.approx(1 / 3, abs=0.06)


@pytest.mark.parametrize(
    ("threshold", "cut"), [(0.9, (7, 18)), (0.8, (12, 10)), (0.5, (32, 4)), (1.0, (1, 128)), (0.001, (128, 1))]
)
def test_bands_are_as_long_as_the_threshold_allows(threshold: float, cut: tuple[int, int]):
    assert bands_and_rows(threshold, 128) == cut


@pytest.mark.parametrize(("changes", "often"), [(1, 0.9), (12, 0.05)])
def test_what_is_nearer_than_the_threshold_is_found_and_what_is_farther_is_not(changes: int, often: float):
    """One word of 120 changed leaves a similarity of 0.95, and 12 words one of about 0.55."""
    found = 0
    for n in range(100):
        seen = Duplicates(DuplicateConfig(documents=10))
        parts = words(1000 * n, 120).split()
        seen.remember("a", " ".join(parts), "", CHAIN)
        for change in range(changes):
            parts[5 + change * 9] = f"z{'z' * change}"
        found += seen.take("b", " ".join(parts), "", CHAIN) == NEAR
    assert found >= 100 * often if changes == 1 else found <= 100 * often


# Words.


def test_words_names_and_numbers_of_a_text():
    assert words_of("Who, in 1204, ruled O'Neil-Town?") == ["who", "in", "1204", "ruled", "o", "neil", "town"]
    assert names_and_numbers("Who, in 1204, ruled the Town x2 ?") == ["who", "1204", "town", "x2"]


def test_grams_know_the_order_of_their_words_and_nothing_else():
    one, two = numbers_of(words_of("a b c a b c")), numbers_of(words_of("c b a"))
    assert len(set(grams(one, 3).tolist())) == 3
    assert grams(one, 3)[0] == grams(one, 3)[3]
    assert not set(grams(one, 3).tolist()) & set(grams(two, 3).tolist())
    assert len(grams(two, 5)) == 1 == len(grams(two, 3))
    assert len(grams(numbers_of([]), 3)) == 0
    assert folded(np.zeros((2, 3), np.uint64)).tolist() == [0, 0]


def test_numbers_are_the_same_in_every_process():
    """A memory that is built again elsewhere must know what the first one knew."""
    program = "from coa.distill.words import *; print(grams(numbers_of(['Arden', 'Berg']), 2)[0])"
    ran = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONHASHSEED": "7"}, capture_output=True, text=True, check=True
    )
    assert int(ran.stdout) == int(grams(numbers_of(["Arden", "Berg"]), 2)[0])
