"""Speeds that a run had are found again from what it recorded."""

from typing import Any

import pytest

from coa.planning.calibration import assumed, fit_decoding, fit_learning, lengths_of, recorded
from coa.planning.clusters import DEVICES
from coa.planning.engine import Speeds, StepTimes
from coa.planning.models import architecture_of, published
from coa.planning.workload import Recorded, RecordedEpisode, Turn


def test_each_size_of_batch_has_the_time_of_its_own_steps() -> None:
    """On a CPU a step's time grows far less than its requests."""
    times = {1: 0.015, 4: 0.026, 64: 0.08, 256: 0.12}
    found = fit_decoding([(requests, 50 * step_s, 50 * requests) for requests, step_s in times.items()])
    assert found.points == tuple((float(requests), pytest.approx(step_s)) for requests, step_s in times.items())
    assert found.of(34) == pytest.approx(0.053)
    assert found.of(320) == pytest.approx(0.12 + 64 * 0.04 / 192)
    assert StepTimes.linear(0.02, 0.003).of(32) == pytest.approx(0.02 + 32 * 0.003)
    assert StepTimes(((2.0, 1.0), (4.0, 4.0))).of(1) == 0.0


def test_sizes_within_a_power_of_two_share_their_seconds_and_rare_ones_are_left_out() -> None:
    # 16 was there for less than a hundredth of the time, in which its steps took less than those of 2.
    found = fit_decoding([(2, 2.0, 200), (8, 2.0, 800), (16, 0.05, 100), (15, 4.0, 1600)])
    steps = 800 / 8 + 1600 / 15
    assert found.points == ((2.0, pytest.approx(0.02)), (pytest.approx(2400 / steps), pytest.approx(6.0 / steps)))


def test_of_one_size_of_batch_all_is_the_requests() -> None:
    assert fit_decoding([(8, 2.0, 400)]).of(3) == pytest.approx(3 * 0.005)
    with pytest.raises(ValueError, match="no token"):
        fit_decoding([(8, 2.0, 0)])


def test_a_step_never_takes_less_for_more_requests() -> None:
    found = fit_decoding([(1, 1.0, 10), (10, 0.5, 100), (40, 3.0, 400)])
    # The first two are one: 20 steps in 1.5 s.
    assert found.points == ((5.5, pytest.approx(0.075)), (40.0, pytest.approx(0.3)))


def test_a_step_of_the_learners_has_a_fixed_part_and_one_for_each_token() -> None:
    assert fit_learning([(100, 1.5), (200, 2.5), (300, 3.5)]) == pytest.approx((0.5, 0.01))
    assert fit_learning([(100, 1.0)]) == (0.0, 0.01), "nothing tells them apart"
    with pytest.raises(ValueError, match="no step"):
        fit_learning([])


def test_steps_of_nearly_as_many_tokens_are_taken_to_cost_by_the_token() -> None:
    """Their seconds differ for other reasons, and a line through them may have any slope."""
    falling = [(1000, 4.0), (1010, 3.0), (1020, 4.4), (1030, 2.9), (1040, 3.2)]
    update_s, token_s = fit_learning(falling)
    mean = 3.5 / 1020
    assert update_s + 1020 * token_s == pytest.approx(3.5)
    assert 0.8 * mean < token_s <= mean
    clear = [(tokens, 2.0 + 0.001 * tokens + noise) for tokens, noise in ((100, 0.01), (1000, -0.01), (2000, 0.01))]
    assert fit_learning(clear) == pytest.approx((2.0, 0.001), rel=0.02)


def test_an_assumed_learner_and_engine_compute_what_the_episodes_have() -> None:
    """A turn of 30 new tokens and 10 sampled ones, and one of 50 and 10: 20 of 100 are the policy's."""
    episode = (Turn(30, 10), Turn(50, 10))
    assert lengths_of([episode, episode]) == (20.0, 100.0, (10 * 35 + 10 * 95) / 20, 50.0)
    assert lengths_of([episode, (Turn(290, 10),)])[1::2] == (200.0, (100 * 50 + 300 * 150) / 400)
    [built] = [one for one in [architecture_of(published("Qwen/Qwen2.5-7B") or {})] if one]
    device = DEVICES["H100"]

    def of(**changed: Any) -> Speeds:
        settings = {"tensor_parallel": 1, "learner_dtype": "bfloat16", "passes": 4, "episodes": [episode], **changed}
        return assumed(built, device, settings.pop("dtype", "bfloat16"), **settings).speeds

    # Queries times keys and weights times values, in 28 layers of 28 heads with 128 elements, after 50 tokens.
    flops = 2 * built.parameters + 4 * 28 * 28 * 128 * 50
    assert of().prefill_s == pytest.approx(flops / (989e12 * 0.5))
    assert of().trained_token_s == pytest.approx(5 * 4 * flops / (989e12 * 0.35))
    assert of(learner_dtype="float32").trained_token_s == pytest.approx(5 * 4 * flops / (67e12 * 0.35))
    computed = 1 - 0.3 * 7 / 8
    assert of(sharing=8).trained_token_s == pytest.approx(computed * of().trained_token_s)
    read = 2 * built.kv_elements * 65 / (3.35e12 * 0.6)
    assert of().steps.points[1][1] - of().steps.points[0][1] == pytest.approx(
        read + (2 * built.parameters + 4 * 28 * 28 * 128 * 65) / (989e12 * 0.5)
    )
    assert of(dtype="float16").steps.points[0] == of().steps.points[0]
    assert of(tensor_parallel=2).pause_s == pytest.approx(of().pause_s / 2)
    assert of().publish_s == of().load_s == 2 * built.parameters / 5e9


GROUPS = [Recorded((RecordedEpisode(30, 10, 2, ("code",)), RecordedEpisode(50, 20, 2, ())), kept=True)]
STEPS = [{"tokens": 100, "seconds": 1.5}, {"eval/pass_at_1": 1.0}, {"tokens": 200, "seconds": 2.5}]


def test_what_an_older_run_did_not_measure_is_told() -> None:
    result = {"seconds": 10.0, "trajectories": 40, "busy": {"engine": 0.9}, "sync_pause_mean_s": 0.25}
    found = recorded(STEPS, result, GROUPS, engines=2, ranks=3, max_requests=64)
    assert found.speeds.steps.of(7) == pytest.approx(7 * 0.9 * 10 * 2 / (40 * 15))
    # Two steps alone don't tell a fixed part from one for each token.
    assert found.speeds.trained_token_s == pytest.approx(2.0 / 150 * 3)
    assert (found.speeds.update_s, found.speeds.pause_s) == (pytest.approx(0.0), 0.25)
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
    assert [found.speeds.steps.of(requests) for requests in (1, 4)] == pytest.approx([0.023, 0.032])
    assert (found.speeds.publish_s, found.speeds.load_s) == (pytest.approx(0.3), pytest.approx(0.5))
    assert not any("did not measure" in sentence for sentence in found.assumptions)


def test_a_resumed_run_published_in_the_batches_since_its_last_start() -> None:
    result = {"decoding": [[1, 1.0, 50]], "batches": 2, "time": {"learner": {"publishing": 0.6}}}
    found = recorded(STEPS * 10, result, GROUPS, engines=1, ranks=1, max_requests=4)
    assert found.speeds.publish_s == pytest.approx(0.3)


def test_a_run_that_sampled_nothing_has_no_speed() -> None:
    with pytest.raises(ValueError, match="no token"):
        recorded(STEPS, {"seconds": 10.0, "trajectories": 0}, [], engines=1, ranks=1, max_requests=64)
