"""Speeds that a run had are found again from what it recorded."""

import pytest

from coa.planning.calibration import fit_decoding, fit_learning, recorded
from coa.planning.workload import Recorded, RecordedEpisode


def test_the_cost_of_a_step_and_of_a_request_are_told_apart() -> None:
    found = [(b, 50 * (0.02 + 0.003 * b), 50 * b) for b in (1, 4, 32)]
    assert fit_decoding(found) == pytest.approx((0.02, 0.003))


def test_of_one_size_of_batch_all_is_the_requests() -> None:
    assert fit_decoding([(8, 2.0, 400)]) == (0.0, pytest.approx(0.005))
    with pytest.raises(ValueError, match="no token"):
        fit_decoding([(8, 2.0, 0)])


def test_no_cost_is_below_zero() -> None:
    falling = [(1, 1.0, 10), (10, 0.5, 100)]
    assert min(fit_decoding(falling)) >= 0
    rising = [(1, 0.01, 10), (10, 5.0, 100)]
    assert min(fit_decoding(rising)) >= 0


def test_a_step_of_the_learners_has_a_fixed_part_and_one_for_each_token() -> None:
    assert fit_learning([(100, 1.5), (200, 2.5), (300, 3.5)]) == pytest.approx((0.5, 0.01))
    assert fit_learning([(100, 1.0)]) == (1.0, 0.0)
    assert fit_learning([(100, 3.0), (200, 1.0)])[1] == 0.0
    with pytest.raises(ValueError, match="no step"):
        fit_learning([])


GROUPS = [Recorded((RecordedEpisode(30, 10, 2, ("code",)), RecordedEpisode(50, 20, 2, ())), kept=True)]
STEPS = [{"tokens": 100, "seconds": 1.5}, {"eval/pass_at_1": 1.0}, {"tokens": 200, "seconds": 2.5}]


def test_what_an_older_run_did_not_measure_is_told() -> None:
    result = {"seconds": 10.0, "trajectories": 40, "busy": {"engine": 0.9}, "sync_pause_mean_s": 0.25}
    found = recorded(STEPS, result, GROUPS, engines=2, ranks=3, max_requests=64)
    assert found.speeds.request_s == pytest.approx(0.9 * 10 * 2 / (40 * 15))
    assert found.speeds.trained_token_s == pytest.approx(0.01 * 3)
    assert (found.speeds.update_s, found.speeds.pause_s) == (pytest.approx(0.5), 0.25)
    assert (found.speeds.publish_s, found.speeds.load_s) == (0.0, 0.0)
    assert any("whatever its batch" in sentence for sentence in found.assumptions)
    assert any("did not measure" in sentence for sentence in found.assumptions)


def test_what_a_run_measured_is_taken() -> None:
    result = {
        "seconds": 10.0,
        "trajectories": 40,
        "sync_pause_mean_s": 0.25,
        "sync_mean_s": 0.75,
        "decoding": [[1, 1.15, 50], [9, 1.6, 200]],
        "time": {"learner": {"publishing": 0.6}},
    }
    found = recorded(STEPS, result, GROUPS, engines=1, ranks=1, max_requests=4)  # five of the nine wait
    assert (found.speeds.step_s, found.speeds.request_s) == (pytest.approx(0.02), pytest.approx(0.003))
    assert (found.speeds.publish_s, found.speeds.load_s) == (pytest.approx(0.3), pytest.approx(0.5))
    assert not any("did not measure" in sentence for sentence in found.assumptions)


def test_a_run_that_sampled_nothing_has_no_speed() -> None:
    with pytest.raises(ValueError, match="no token"):
        recorded(STEPS, {"seconds": 10.0, "trajectories": 0}, [], engines=1, ranks=1, max_requests=64)
