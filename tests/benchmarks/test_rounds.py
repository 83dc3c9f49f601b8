"""What the benchmarks of the loop make of their rounds."""

import pytest

from benchmarks import loop_sync, loop_trl
from benchmarks.loop_trl import Round, of_rounds
from benchmarks.sft_learner import Measured, demo_seconds, figures_of
from benchmarks.speed.rates import over_rounds, whole_rate


def test_rounds_give_medians_and_the_spread_of_ratios() -> None:
    rounds = [
        {"a/ratio": 0.9, "loop": 90.0},
        {"a/ratio": 1.1, "loop": 80.0, "late": 0.3},
        {"a/ratio": 0.95, "loop": 1.0},
    ]
    assert over_rounds(rounds, spread=["a/ratio"]) == {
        "a/ratio": 0.95,
        "loop": 80.0,
        "late": 0.0,
        "a/ratio_min": 0.9,
        "a/ratio_max": 1.1,
    }
    assert over_rounds(rounds[:1], spread=["a/ratio"])["a/ratio_max"] == 0.9


def test_the_whole_rate_counts_every_step_from_the_first_group_on() -> None:
    records = [{"samples": 256, "time": 1010.0}, {"samples": 244, "time": 1012.0}]
    assert whole_rate(records, 20.0) == 25.0


def test_a_speedup_is_over_the_synchronous_loop_of_the_same_round() -> None:
    figures = {"trajectories_s_4": 96.0, "trajectories_s_0": 32.0}
    assert loop_sync.speedup(figures, figures, 4) == {"speedup_4": 3.0}
    assert loop_sync.speedup({"trajectories_s_1": 64.0}, figures, 1) == {"speedup_1": 2.0}
    assert set(loop_sync.IN_TURNS) == set(loop_sync.SMOKE_IN_TURNS) == {0, loop_sync.COMPARED}
    assert not set(loop_sync.ONCE) & set(loop_sync.IN_TURNS)


def test_both_sides_do_the_same_work_and_trl_takes_several_slow_steps() -> None:
    assert (loop_trl.WORKS["0ms"].steps, loop_trl.WORKS["0ms"].groups) == (16, 32)
    assert loop_trl.WORKS["slow"].steps >= 4
    assert [loop_trl.WORKS[name].max_staleness for name in ("0ms", "slow")] == [1, 4]
    assert loop_trl.ROUNDS == 3


def test_rewards_are_compared_by_task_over_rounds() -> None:
    figures = {"ratio_0ms": 2.0, "ratio_slow": 10.0, "loop_0ms": 200.0}
    rounds = [
        Round(figures, ours=[1.0, 0.0, 0.5], trl=[0.5, 0.0, 0.5]),
        Round({**figures, "ratio_0ms": 4.0}, ours=[1.0, 1.0, 0.5], trl=[1.0, 0.5, 1.0]),
    ]
    found = of_rounds(rounds)
    assert (found["ratio_0ms"], found["ratio_0ms_min"], found["ratio_0ms_max"]) == (3.0, 2.0, 4.0)
    assert (found["ratio_slow"], found["loop_0ms"]) == (10.0, 200.0)
    assert found["reward"] == pytest.approx(2.0 / 3)
    assert found["reward_trl"] == pytest.approx(1.75 / 3)
    # By task 0.25, 0.25 and -0.25: mean 1/12, standard deviation 0.2887.
    assert found["reward_difference"] == pytest.approx(1 / 12)
    assert found["reward_difference_low"] == pytest.approx(1 / 12 - 1.959964 / 6)
    assert found["reward_difference_high"] == pytest.approx(1 / 12 + 1.959964 / 6)


def test_fine_tuning_is_held_against_the_bare_loop_on_a_quiet_and_on_a_busy_machine() -> None:
    seconds = {"ours": [2.0, 2.0, 4.0], "bare": [2.0, 1.8, 8.0], "ours_busy": [4.0], "bare_busy": [3.0]}
    assert figures_of(Measured(tokens=800, seconds=seconds)) == {
        "ours_tokens_per_s": 400.0,
        "bare_tokens_per_s": 400.0,
        "ours_busy_tokens_per_s": 200.0,
        "bare_busy_tokens_per_s": pytest.approx(800 / 3),
        "ratio_to_bare": 1.0,
        "ratio_to_bare_busy": 0.75,
    }
    assert figures_of(Measured(800, {**seconds, "trl": [3.0, 3.0, 3.0]}))["ratio_to_trl"] == 1.5


def test_the_demos_fine_tuning_is_read_from_its_report() -> None:
    assert demo_seconds({"stages": {"sft": {"steps": 250, "seconds": 171.5}}}) == 171.5
    for told in ({"stages": {}}, {"stages": {"sft": {"steps": 0, "seconds": 0.0}}}):
        with pytest.raises(SystemExit, match="finished run"):
            demo_seconds(told)
