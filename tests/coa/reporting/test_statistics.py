"""Estimates of several samples a task, exact where they can be."""

import random

import pytest

from coa.reporting.statistics import majority_at_k, mean_at_k, paired_difference, pass_at_1, pass_at_k, wilson


def test_mean_at_k_of_tasks_that_are_all_or_nothing_has_as_many_draws_as_tasks() -> None:
    correct = [[1] * 16] * 12 + [[0] * 16] * 18
    estimate = mean_at_k(correct)
    assert (estimate["mean"], estimate["n"]) == (0.4, 30)
    assert estimate["ci95"] == list(wilson(0.4, 30)) == pass_at_1(correct)["ci95"]


def test_mean_at_k_of_tasks_that_are_alike_has_as_many_draws_as_samples() -> None:
    assert mean_at_k([[1, 0, 0, 0]] * 5)["ci95"] == list(wilson(0.25, 20))


def test_mean_at_k_between_the_two_has_the_draws_that_the_spread_shows() -> None:
    """Rates 0, 1/2, 1/2, 1: variance 1/6, so 4 * 0.25 / (1/6) = 6 draws, of the 8 that there are."""
    estimate = mean_at_k([[0, 0], [0, 1], [1, 0], [1, 1]])
    assert estimate["mean"] == 0.5
    assert estimate["ci95"] == pytest.approx(list(wilson(0.5, 6)), abs=1e-12)
    assert estimate["ci95"] == pytest.approx([0.187617, 0.812383], abs=1e-6)


@pytest.mark.parametrize("right", [0, 1])
def test_where_all_is_right_or_wrong_the_tasks_count(right: int) -> None:
    assert mean_at_k([[right] * 16] * 10)["ci95"] == list(wilson(float(right), 10))
    assert mean_at_k([[0, 1]])["ci95"] == list(wilson(0.5, 1))


def test_the_interval_of_mean_at_k_covers_the_truth() -> None:
    """Over 400 made-up evaluations of 30 tasks and 16 samples whose rates are anywhere, about 95 % of them."""
    rng = random.Random(0)
    covered = 0
    for _ in range(400):
        rates = [rng.betavariate(0.5, 0.5) for _ in range(30)]
        low, high = mean_at_k([[int(rng.random() < rate) for _ in range(16)] for rate in rates])["ci95"]
        covered += low <= 0.5 <= high
    assert 0.92 < covered / 400 < 0.98


def test_pass_at_k_is_without_bias() -> None:
    """Of 4 samples 1 is right: 2 of them hold it in 3 of 6 draws."""
    assert pass_at_k([[1, 0, 0, 0]], 2)["mean"] == 0.5
    assert pass_at_k([[1, 0, 0, 0], [0, 0, 0, 0]], 4)["mean"] == 0.5
    assert pass_at_k([[1, 1, 1, 0]], 2)["mean"] == 1.0
    correct = [[1, 0, 0], [1, 1, 0], [0, 0, 0]]
    assert pass_at_k(correct, 1)["mean"] == pytest.approx(mean_at_k(correct)["mean"])
    assert pass_at_k(correct, 3)["ci95"] == pytest.approx(list(wilson(2 / 3, 3)), abs=1e-12)


def test_pass_at_more_samples_than_there_are_is_refused() -> None:
    for correct, k in (([[1, 0], [1]], 2), ([], 1), ([[1]], 0)):
        with pytest.raises(ValueError, match="needs at least one task"):
            pass_at_k(correct, k)
    with pytest.raises(ValueError, match="at least one task"):
        mean_at_k([[1], []])


def test_the_most_frequent_answer_is_elected_and_silence_is_no_answer() -> None:
    votes = [["7", "8", "7"], ["", "", "9"], ["", ""], ["5", "6"]]
    correct = [[1, 0, 1], [0, 0, 1], [0, 0], [0, 1]]
    assert majority_at_k(votes, correct)["mean"] == 0.5


def test_a_paired_difference_has_the_published_interval() -> None:
    """Airways that are hyper-responsive before and after: 1 and 1, 7 and 12 of 21 (Fagerland, Lydersen and Laake, 2014,
    Newcombe's square-and-add interval)."""
    before, after = [1] + [1] + [0] * 7 + [0] * 12, [1] + [0] + [1] * 7 + [0] * 12
    found = paired_difference(before, after)
    assert (found["mean"], found["n"]) == (pytest.approx(-6 / 21), 21)
    assert found["ci95"] == pytest.approx([-0.507, -0.026], abs=5e-4)
    mirrored = paired_difference(after, before)["ci95"]
    assert mirrored == pytest.approx([-high for high in reversed(found["ci95"])])


def test_a_paired_difference_is_of_the_same_tasks() -> None:
    assert paired_difference([1.0, 0.5, 0.0, 1.0], [0.0, 0.5, 0.0, 0.5])["mean"] == 0.375
    with pytest.raises(ValueError, match="1 and 2 rates"):
        paired_difference([1.0], [1.0, 0.0])


def test_no_interval_reaches_beyond_what_is_possible_or_leaves_its_estimate_out() -> None:
    rng = random.Random(0)
    for _ in range(3000):
        n, k = rng.choice((1, 2, 5, 54, 400)), rng.choice((1, 4))
        sure, likely = rng.random() < 0.3, rng.choice((0.01, 0.5, 0.99))

        def rate(one: float, sure: bool = sure, likely: float = likely, k: int = k) -> float:
            return one if sure else sum(rng.random() < likely for _ in range(k)) / k

        a, b = ([rate(one) for _ in range(n)] for one in (1.0, 0.0))
        found = paired_difference(a, b, k)
        low, high = found["ci95"]
        assert -1 <= low <= found["mean"] <= high <= 1
        assert low < high, "however alike the tasks are, others may differ"
        for rates in (a, b):
            estimate = mean_at_k([[round(rate * k) >= m for m in range(1, k + 1)] for rate in rates])
            low, high = estimate["ci95"]
            assert 0 <= low <= estimate["mean"] <= high <= 1


def test_the_interval_of_a_difference_covers_the_truth_near_the_border_too() -> None:
    rng = random.Random(1)
    for likely, unlikely, n in ((0.99, 0.02, 30), (0.9, 0.73, 60), (0.5, 0.45, 100)):
        inside = 0
        for _ in range(500):
            a, b = ([float(rng.random() < rate) for _ in range(n)] for rate in (likely, unlikely))
            low, high = paired_difference(a, b)["ci95"]
            inside += low <= likely - unlikely <= high
        assert inside / 500 > 0.92
