from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coa.reporting.boundary import SinkBoundary
from coa.reporting.metrics import MetricsLog, before, measured, read_metrics
from coa.reporting.statistics import Cost, cost_per_success, pass_at_1, token_reduction, wilson


def steps(path: Path) -> list[tuple[str, int]]:
    return [(record["stage"], record["step"]) for record in read_metrics(path)]


def test_a_record_holds_stage_step_time_and_values(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricsLog(path) as log:
        log.write("sft", 0, loss=np.float32(0.5), lengths=np.array([1, 2]), note="x")
        [record] = read_metrics(path)
    assert record["time"] > 1.7e9
    assert {**record, "time": 0} == {"stage": "sft", "step": 0, "time": 0, "loss": 0.5, "lengths": [1, 2], "note": "x"}


def test_a_resumed_stage_drops_what_it_will_do_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricsLog(path) as log:
        for step in range(3):
            log.write("sft", step)
        for step in range(3):
            log.write("rl", step)
    with MetricsLog(path, resume={"rl": 1}) as log:
        log.write("rl", 1, again=True)
    assert steps(path) == [("sft", 0), ("sft", 1), ("sft", 2), ("rl", 0), ("rl", 1)]
    assert read_metrics(path)[-1]["again"]


def test_a_line_that_a_crash_cut_off_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"stage": "rl", "step": 0}\n{"stage": "rl", "st')
    with MetricsLog(path) as log:
        log.write("rl", 1)
    assert steps(path) == [("rl", 0), ("rl", 1)]


def test_only_named_stages_lose_records() -> None:
    records = [{"stage": "sft", "step": 5}, {"stage": "rl", "step": 5}]
    assert before(records, {"rl": 5}) == [{"stage": "sft", "step": 5}]
    assert before(records, {"rl": 6}) == records


def test_pass_at_1_is_the_mean_over_tasks() -> None:
    estimate = pass_at_1([[1, 1, 0, 0], [1, 1], [0]])
    assert estimate["mean"] == 0.5
    assert estimate["n"] == 3
    assert estimate["ci95"] == pytest.approx([0.12533, 0.87467], abs=1e-5)


def test_the_interval_stays_within_0_and_1() -> None:
    assert wilson(0.0, 10) == pytest.approx((0.0, 0.27753), abs=1e-5)
    assert wilson(1.0, 10) == pytest.approx((0.72247, 1.0), abs=1e-5)
    assert wilson(0.43, 100) == pytest.approx((0.33742, 0.52784), abs=2e-4)


def test_an_estimate_of_nothing_is_refused() -> None:
    for correct in ([], [[1], []]):
        with pytest.raises(ValueError, match="at least one task"):
            pass_at_1(correct)


def test_a_success_pays_for_the_failures() -> None:
    cost = cost_per_success([100, 300, 200], [1, 3, 2], [True, False, True])
    assert cost == {"tokens_per_success": 300.0, "tool_calls_per_success": 3.0, "successes": 2, "n": 3}
    assert cost_per_success([5], [0], [False])["tokens_per_success"] is None


def test_token_reduction_is_a_share() -> None:
    def cost(tokens: float | None) -> Cost:
        return Cost(tokens_per_success=tokens, tool_calls_per_success=1, successes=1, n=1)

    assert token_reduction(cost(1000), cost(154)) == pytest.approx(0.846)
    assert token_reduction(cost(None), cost(154)) is None


class Kept:
    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []

    def emit(self, record: dict[str, Any]) -> None:
        self.records.append(record)

    def close(self) -> None:
        raise AssertionError("a sink outlives the log of a stage")


def test_sinks_get_the_records_of_the_file_as_plain_values(tmp_path: Path) -> None:
    sink = Kept()
    with MetricsLog(tmp_path / "metrics.jsonl", sinks=[sink]) as log:
        log.write("rl", 1, loss=np.float32(0.5), lengths=[np.int64(3)])
    assert sink.records == read_metrics(tmp_path / "metrics.jsonl")
    assert list(measured(sink.records[0])) == [("loss", 0.5)]


class Broken(Kept):
    """A sink that fails from its second record on."""

    def emit(self, record: dict[str, Any]) -> None:
        super().emit(record)
        if len(self.records) > 1:
            raise UnicodeEncodeError("ascii", "größe", 2, 4, "ordinal not in range(128)")

    def __str__(self) -> str:
        return "gauges"


def test_a_sink_that_fails_is_said_once_and_left_out_by_all_stages(tmp_path: Path) -> None:
    path, said, broken, kept = tmp_path / "metrics.jsonl", [], Broken(), Kept()
    boundary = SinkBoundary(said.append)
    for stage in ("sft", "rl"):
        with MetricsLog(path, sinks=[broken, kept], boundary=boundary) as log:
            for step in (1, 2, 3):
                log.write(stage, step)
    assert steps(path) == [(stage, step) for stage in ("sft", "rl") for step in (1, 2, 3)]
    assert kept.records == read_metrics(path)
    assert len(broken.records) == 2
    [line] = said
    assert line.startswith("gauges failed and is left out from now on; the run continues (UnicodeEncodeError: 'ascii'")


def test_a_user_who_interrupts_is_no_failure_of_a_sink() -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        SinkBoundary().attempt("gauges", interrupted)


def test_half_a_surrogate_pair_in_a_name_reaches_no_sink(tmp_path: Path) -> None:
    sink = Kept()
    with MetricsLog(tmp_path / "metrics.jsonl", sinks=[sink]) as log:
        log.write("rl", 1, **{"reward/x\ud83d": 1.0})
    assert list(measured(sink.records[0])) == [("reward/x?", 1.0)]
