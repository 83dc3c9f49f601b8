from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from coa.learning.window import WindowConfig
from coa.planning.bottleneck import Batch, Gain, advice, bottleneck, changes, gains, mean_batch, measured_part
from coa.planning.engine import Speeds, StepTimes
from coa.planning.side_by_side import Case
from coa.planning.simulation import Forecast, LoopShape, simulate
from coa.planning.workload import Assumed, Latency

SHAPE = LoopShape(WindowConfig(1, 4, 0), engines=1, ranks=1, steps=12, max_requests=16, places=32)
WORK = Assumed(group=2, max_turns=1, max_tokens=100, max_observation=0, latency=Latency(0.0, 0.0), kept=1.0)


def speeds(request_s: float = 0.0, **seconds: float) -> Speeds:
    free = dict.fromkeys((field.name for field in fields(Speeds) if field.name != "steps"), 0.0)
    return Speeds(steps=StepTimes.linear(0.0, request_s), **{**free, **seconds})


def best(of: Speeds) -> str:
    base = simulate(SHAPE, of, WORK, warm=2)
    return advice(gains(SHAPE, of, WORK, base, warm=2))


def test_the_half_that_is_busy_all_along_is_named() -> None:
    said = bottleneck({"generating": 0.95, "syncing": 0.05}, {"learning": 0.4, "waiting_for_samples": 0.6}).sentence
    assert said == (
        "Engines are the bottleneck: engines generated 95% of the time, learners learnt 40% and waited 60% for samples."
    )
    said = bottleneck({"generating": 0.5, "waiting_for_weights": 0.5}, {"learning": 0.99}).sentence
    assert said.startswith("Learners are the bottleneck")
    assert "waited 50% for weights" in said


def test_engines_that_generate_for_few_requests_are_told_from_full_ones() -> None:
    """Requests beyond what an engine takes at once wait in its queue."""
    batch = mean_batch([(1, 30.0, 900), (32, 10.0, 3000)], most=16)
    assert batch == Batch(4.75, 16)
    assert mean_batch([], 16) is None
    said = bottleneck({"generating": 0.95}, {"learning": 0.4, "waiting_for_samples": 0.6}, batch).sentence
    assert "engines generated 95% of the time (4.8 of 16 requests at once), learners learnt 40%" in said
    assert "empty" not in said
    said = bottleneck({"generating": 0.95}, {"learning": 0.4, "waiting_for_samples": 0.6}, Batch(3.0, 128)).sentence
    assert said.endswith("; most places of a batch are empty, so tools or a small window may slow them as much.")


def test_what_both_halves_wait_for_is_named() -> None:
    learner = {"learning": 0.3, "waiting_for_samples": 0.7}
    assert bottleneck({"generating": 0.3, "waiting_for_tools": 0.7}, learner).sentence.startswith(
        "Tools are the bottleneck"
    )
    both = bottleneck(
        {"generating": 0.4, "waiting_for_weights": 0.6}, {"learning": 0.4, "waiting_for_samples": 0.6}
    ).sentence
    assert both.startswith("The staleness window is the bottleneck")
    moved = bottleneck({"generating": 0.3, "syncing": 0.6}, {"learning": 0.3, "publishing": 0.5}).sentence
    assert moved.startswith("Moving weights is the bottleneck")


def test_halves_that_take_turns_do_not_wait_for_the_window() -> None:
    engine = {"generating": 0.7, "waiting_for_weights": 0.3}
    learner = {"learning": 0.25, "waiting_for_samples": 0.75}
    said = bottleneck(engine, learner, takes_turns=True).sentence
    assert said == (
        "Engines have the longer turn on the GPUs that both share: engines generated 70% of the time, learners learnt "
        "25%."
    )
    idle = bottleneck({**engine, "generating": 0.2, "waiting_for_tools": 0.5}, learner, takes_turns=True)
    assert idle.part == "tools"


def test_a_wait_that_explains_little_of_the_idle_time_is_not_named() -> None:
    said = bottleneck(
        {"generating": 0.7, "waiting_for_tools": 0.1}, {"learning": 0.3, "waiting_for_samples": 0.7}
    ).sentence
    assert said.startswith("Engines are the slower half, though not always busy")
    engine = {"generating": 0.8, "waiting_for_tools": 0.05, "waiting_for_weights": 0.1, "syncing": 0.05}
    said = bottleneck(engine, {"learning": 0.3, "waiting_for_samples": 0.65, "publishing": 0.05}).sentence
    assert said.startswith("Engines are the slower half")


def test_engines_that_are_not_there_and_checkpoints_are_named() -> None:
    learner = {"learning": 0.4, "waiting_for_samples": 0.6}
    said = bottleneck({"generating": 0.6, "not_serving": 0.4}, learner).sentence
    assert said.startswith("Starts and failures are the bottleneck: engines did not serve 40% of the time")
    said = bottleneck({"generating": 0.4, "waiting_for_weights": 0.6}, {"learning": 0.5, "saving": 0.5}).sentence
    assert said.startswith("Checkpoints are the bottleneck: learners wrote them 50% of the time")


def test_the_setting_that_moves_most_is_the_slower_half_s() -> None:
    assert "placement.engines=2 (now 1): +" in best(speeds(request_s=0.01, update_s=0.01))
    assert "rl.learner.ranks=2 (now 1): +" in best(speeds(request_s=0.0001, trained_token_s=0.1))


def test_where_nothing_helps_nothing_is_recommended() -> None:
    assert best(speeds(update_s=1.0)) == "By simulation, no single setting would speed training up by 3 % or more."
    assert advice([]).startswith("By simulation, no single setting")


def test_a_gain_within_the_simulation_s_error_is_not_recommended() -> None:
    change = next(changes(SHAPE))
    assert advice([Gain(change, 1.0, gain=0.05, error=0.06)]) == (
        "By simulation, no single setting would surely speed training up: "
        "the largest gain, 5% by placement.engines, is within the standard error of 6%."
    )
    found = [Gain(change, 1.0, gain=0.05, error=0.06), Gain(change, 1.0, gain=0.04, error=0.01)]
    assert advice(found) == "By simulation: placement.engines=2 (now 1): +4% trajectories a second."


def test_what_more_gpus_would_give_is_told_with_their_number_and_beside_what_costs_none() -> None:
    shape = replace(SHAPE, engine_gpus=8.0, rank_gpus=1.0)
    of = speeds(0.01, update_s=0.5)
    found = {gain.change.setting: gain.more for gain in gains(shape, of, WORK, simulate(shape, of, WORK))}
    assert found["placement.engines"] == 8
    assert found["rl.learner.ranks"] == 1
    assert found["rl.window.max_staleness"] == 0
    engines, _, staleness, *_ = changes(shape)
    said = advice([Gain(engines, 1.0, 0.5, 0.0, 8.0), Gain(staleness, 1.0, 0.1, 0.0)])
    assert said == (
        "By simulation: placement.engines=2 (now 1): +50% trajectories a second, with 8 more GPUs; with the same GPUs, "
        "rl.window.max_staleness=2 (now 1): +10% trajectories a second."
    )
    shape = replace(SHAPE, engine_cpus=1.0, rank_cpus=0.5)
    needs = {gain.change.setting: gain.needs for gain in gains(shape, of, WORK, simulate(shape, of, WORK))}
    assert needs["placement.engines"] == "1 more CPU"
    assert needs["rl.learner.ranks"] == "0.5 more CPUs"
    assert needs["rl.window.max_staleness"] == ""
    said = advice([Gain(engines, 1.0, 0.5, 0.0, 1.0, "CPU"), Gain(staleness, 1.0, 0.1, 0.0, 0.0, "CPU")])
    assert "+50% trajectories a second, with 1 more CPU; with the same CPUs, rl.window" in said


def test_a_batch_that_is_as_large_as_the_cache_is_not_made_larger() -> None:
    assert "engine.max_concurrent" in [change.setting for change in changes(SHAPE)]
    assert "engine.max_concurrent" not in [change.setting for change in changes(replace(SHAPE, cache=1000.0))]


def test_what_a_recipe_can_not_have_is_not_advised() -> None:
    def settings(**changed: Any) -> set[str]:
        return {change.setting for change in changes(replace(SHAPE, **changed))}

    every = settings(engine_gpus=1.0, rank_gpus=1.0)
    assert every == {"placement.engines", "rl.learner.ranks", "rl.window.max_staleness", "engine.max_concurrent"}
    assert every - settings(engine_gpus=0.5, rank_gpus=1.0) == {"placement.engines"}
    assert every - settings(engine_gpus=1.0, rank_gpus=0.5) == {"rl.learner.ranks"}
    assert every - settings(elastic=True, engine_gpus=1.0) == {"placement.engines"}
    assert every - settings(takes_turns=True) == {"rl.window.max_staleness"}
    assert every - settings(window=WindowConfig(0, 4, spares=2)) == {"rl.window.max_staleness"}


def test_a_simulation_is_as_long_as_its_budget() -> None:
    for steps in (1, 500):
        asked = replace(SHAPE, steps=steps)
        found = [measured_part(asked, *of) for of in ((10, 2, 200), (1000, 20, 200), (1, 1, 10**6))]
        assert [(shape.steps, warm) for shape, warm in found] == [(14, 6), (14, 6), (206, 6)]


def test_more_staleness_is_measured_in_its_own_steady_state() -> None:
    """Its window takes longer to fill; as many versions are measured."""
    shape, warm = measured_part(SHAPE, episodes=8, turns=1, budget=200)
    found: dict[int, set[tuple[int, int]]] = {}

    def noted(cases: Sequence[Case]) -> list[Forecast]:
        for case in cases:
            found.setdefault(case.shape.window.max_staleness, set()).add((case.warm, case.shape.steps - case.warm))
        return [base for _ in cases]

    base = simulate(shape, speeds(0.01), WORK, warm=warm)
    gains(shape, speeds(0.01), WORK, base, warm=warm, play=noted)
    assert found == {1: {(6, 19)}, 2: {(8, 19)}}
