"""What a chaos run writes down, from what it goes on, and what it calls wrong."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.chaos.__main__ import FILE, PLAN, verdict_of
from benchmarks.chaos.course import Recovered, Seen
from benchmarks.chaos.findings import Journal, result, shown, table
from benchmarks.chaos.plan import Kind, Part, Strike, draw
from coa.errors import UserError

VERDICT = {
    "pass_at_1": 0.7,
    "faults": [],
    "finished": True,
    "failed_checks": 0,
    "alarms": 0,
    "unprovoked": 0,
    "staleness": 0,
}


def recovered(strike: Strike, seconds: float, *, stepped: bool = True) -> Recovered:
    return Recovered(strike, Seen("p1", Part.core, True), seconds, seconds / 2, stepped)


def filled(path: Path, times: list[float], restarts: int = 0, **changed: Any) -> Journal:
    """A finished chaos run whose recoveries took so long. restarts: of the command, after each strike."""
    journal = Journal(path)
    for strike, seconds in zip(draw(len(times), 1), times, strict=True):
        journal.recovered(recovered(strike, seconds), restarts=restarts, alarms=0, staleness=2, round_=1)
    journal.finished(0, {**VERDICT, "pass_at_1": 0.72})
    journal.finished(1, {**VERDICT, **changed})
    journal.took(100.0)
    return journal


def test_a_journal_goes_on_where_it_was(tmp_path: Path) -> None:
    path, strikes = tmp_path / "chaos.jsonl", draw(10, 3)
    journal = Journal(path)
    journal.recovered(recovered(strikes[0], 31.26), restarts=1, alarms=0, staleness=1, round_=1)
    journal.finished(0, VERDICT)
    journal.took(61.04)
    again = Journal(path)
    assert again.left(strikes) == strikes[1:]
    assert again.hits == journal.hits
    assert again.hits[0].seconds == 31.3
    assert again.rounds == {0: VERDICT}
    assert again.seconds == 61.0


def test_the_table_has_a_row_for_each_kind_and_no_time_of_what_ended_with_its_stage(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "chaos.jsonl")
    for number, (kind, seconds, stepped) in enumerate(
        [(Kind.rank, 40.0, True), (Kind.core, 30.0, True), (Kind.core, 50.0, True), (Kind.core, 999.0, False)]
    ):
        strike = Strike(number, kind, 5.0, 0.5)
        journal.recovered(recovered(strike, seconds, stepped=stepped), restarts=number, alarms=0, staleness=0, round_=1)
    assert table(journal.hits) == [["core", 3, 2, "40", "50", "20", 6], ["rank", 1, 1, "40", "40", "20", 0]]


def test_nothing_is_wrong_with_a_run_that_withstood_all(tmp_path: Path) -> None:
    found = result(draw(3, 0), filled(tmp_path / "chaos.jsonl", [10.0, 20.0, 30.0]), seed=0, staleness=2)
    assert found["wrong"] == []
    assert sorted(time for times in found["times"].values() for time in times) == [10.0, 20.0, 30.0]
    assert (found["kills"], found["pass_at_1"], found["pass_at_1_undisturbed"]) == (3, 0.7, 0.72)


def test_each_thing_that_is_wrong_is_named(tmp_path: Path) -> None:
    def named(number: int, staleness: int = 2, kills: int = 1, **changed: Any) -> str:
        journal = filled(tmp_path / f"{number}.jsonl", [10.0], **changed)
        [only] = result(draw(kills, 1), journal, seed=0, staleness=staleness)["wrong"]
        return only

    assert named(1, kills=2) == "1 of 2 strikes were made"
    assert named(2, finished=False) == "1 rounds did not finish"
    assert named(3, faults=["line 7: group 3 was never issued"]).startswith("the ledger does not balance")
    assert named(4, alarms=2) == "2 syncs left different log-probs in engine and learner"
    assert named(5, failed_checks=1) == "1 checks of weights failed"
    assert named(8, unprovoked=1) == "the driver ended 1 times without a strike"
    assert named(6, staleness=1) == "a trained token was 2 versions old"
    [kind] = [strike.kind for strike in draw(1, 1)]
    assert named(9, restarts=3).endswith(f"after kills of others than the driver: {kind} 3")
    late = filled(tmp_path / "late.jsonl", [10.0])
    late.finished(2, {**VERDICT, "staleness": 3})
    assert result(draw(1, 1), late, seed=0, staleness=2)["wrong"] == ["a trained token was 3 versions old"]
    assert named(7, pass_at_1=0.66) == "pass@1 differs by -0.060 from the undisturbed run's"


def test_a_driver_that_was_killed_has_to_be_started_again_and_idle_victims_are_told(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "chaos.jsonl")
    strikes = (Strike(0, Kind.driver, 5.0, 0.5), Strike(1, Kind.stop_rank, 5.0, 0.5))
    idle = Recovered(strikes[1], Seen("p1", Part.rank, False), 10.0, 5.0, True)
    for found, restarts in ((recovered(strikes[0], 10.0), 1), (idle, 0)):
        journal.recovered(found, restarts=restarts, alarms=0, staleness=0, round_=1)
    journal.finished(0, VERDICT)
    journal.finished(1, VERDICT)
    found = result(strikes, journal, seed=0, staleness=2)
    assert (found["wrong"], found["idle_victims"], shown(found["idle_victims"])) == (
        [],
        {"stop_rank": 1},
        "stop rank 1",
    )


def test_the_undisturbed_round_of_another_chaos_run_counts_if_its_settings_are_the_same(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^--undisturbed \S+: no chaos run with a finished first round$"):
        verdict_of(tmp_path, ["rl.steps=12"])
    filled(tmp_path / FILE, [10.0])
    (tmp_path / PLAN).write_text(json.dumps({"settings": ["rl.steps=12"], "seed": 1}))
    assert verdict_of(tmp_path, ["rl.steps=12"]) == {**VERDICT, "pass_at_1": 0.72}
    with pytest.raises(UserError, match=r"^--undisturbed \S+: a chaos run with other settings$"):
        verdict_of(tmp_path, ["rl.steps=13"])
