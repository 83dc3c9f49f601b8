"""What a replay compares, and where it begins; that it is equal is shown on a real run (test_replay_of_run.py)."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coa.config import dump, load
from coa.errors import DamagedFile, UserError
from coa.learning.batches import BatchStore
from coa.storage.checkpoints import mend
from coa.types import Sample
from jobs.cli import main
from jobs.recipe.find import find_recipe
from jobs.recipe.schema import Recipe
from jobs.run.console import Console
from jobs.run.run_dir import RunDir
from jobs.stages.reinforcement.replay import Gaps, Plan, differences, plan_replay, recipe_of
from tests.support.checkpoints import STATES, folder_at, write_checkpoints

STEPS = 6


def a_sample(version: int = 0, length: int = 4) -> Sample:
    zeros = np.zeros(length, np.float32)
    mask = np.arange(length) > 1
    return Sample(
        token_ids=np.arange(length, dtype=np.int32),
        loss_mask=mask,
        imitate=zeros,
        reinforce=zeros,
        rollout_logprobs=np.where(mask, np.float32(-0.5), np.float32(0)),
        versions=np.where(mask, version, -1).astype(np.int32),
    )


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """Six steps, with checkpoints at versions 2 and 4."""
    config = load(Recipe, find_recipe("tiny"), ["run_dir=elsewhere"])
    (tmp_path / "config.yaml").write_text(dump(config))
    rows = [{"stage": "rl", "step": step, "time": 0, "loss": 0.1 * step, "weights": "aa"} for step in range(1, 7)]
    held_out = {"stage": "rl", "step": 0, "time": 0, "eval/pass_at_1": 1.0}
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in [held_out, *rows]))
    write_checkpoints(tmp_path / "checkpoints" / "rl", 2, 4)
    found = RunDir(recipe_of(tmp_path), Console(io.StringIO(), io.StringIO()))
    store = BatchStore(found.batches)
    for step in range(1, STEPS + 1):
        store.write(step, [[a_sample(step - 1)], []])
    return found


def at(plan: Plan) -> tuple[int, str | None, int]:
    return plan.start, plan.checkpoint and Path(plan.checkpoint.path).name, plan.last


def test_it_begins_at_the_newest_kept_state_before_the_first_step(run: RunDir) -> None:
    assert at(plan_replay(run, None, None)) == (0, None, 6)
    assert at(plan_replay(run, 2, 3)) == (0, None, 3)
    assert at(plan_replay(run, 3, None)) == (2, "checkpoint_0", 6)
    assert at(plan_replay(run, 6, 6)) == (4, "checkpoint_1", 6)


def test_a_record_that_was_written_anew_names_the_state_to_begin_at(run: RunDir) -> None:
    stage = run.checkpoints / "rl"
    (stage / "checkpoint_1" / STATES[0]).unlink()
    mend(folder_at(stage))
    assert at(plan_replay(run, 6, 6)) == (2, "checkpoint_0", 6)


def test_what_was_not_recorded_is_named(run: RunDir) -> None:
    with pytest.raises(UserError, match="step 7 is not recorded, but a replay of 6:8 begins at version 4"):
        plan_replay(run, 6, 8)
    with pytest.raises(UserError, match=r"^--replay 5:3: the first step is after the last"):
        plan_replay(run, 5, 3)
    for path in run.batches.iterdir():
        path.unlink()
    with pytest.raises(UserError, match="no batches are recorded there"):
        plan_replay(run, None, None)


def test_batches_are_checked_before_anything_starts(run: RunDir, capfd: pytest.CaptureFixture[str]) -> None:
    plan = plan_replay(run, None, None)
    plan.check()
    assert [sample.versions.max() for sample in plan.trajectories] == list(range(STEPS))
    path = run.batches / "rl-00005.arrow"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(DamagedFile, match=r"rl-00005\.arrow was changed"):
        plan_replay(run, None, None).check()
    assert main(["verify", str(run.folder), "--replay"]) == 1
    assert "rl-00005.arrow was changed since it was recorded" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("RUN", "--replay", "5:3"), "--replay 5:3: the first step is after the last"),
        (("RUN", "--replay", "6:8"), "step 7 is not recorded"),
        (("RUN", "--replay", "6"), "6 is no range of steps"),
        (("--replay", "RUN"), "write A:B, and the run's folder before --replay"),
    ],
)
def test_steps_are_checked_as_they_are_typed(
    run: RunDir, words: tuple[str, ...], said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", *(str(run.folder) if word == "RUN" else word for word in words)]) == 2
    assert said in capfd.readouterr().err


def test_a_run_of_another_version_is_named_as_one(run: RunDir, capfd: pytest.CaptureFixture[str]) -> None:
    (run.folder / "config.yaml").write_text("pool: {lost: 3}\n")
    assert main(["verify", str(run.folder), "--replay"]) == 2
    told = capfd.readouterr().err
    assert told.startswith(
        f"coa: {run.folder} was written by another version of coa ({run.folder}/config.yaml: unknown"
    )


def test_a_difference_in_the_last_bit_is_one() -> None:
    record: dict[str, Any] = {"step": 3, "loss": 0.1, "weights": "aa", "entropy": None, "reward": 1.0}
    assert differences(record, {"loss": 0.1, "weights": "aa", "entropy": float("nan"), "unknown": 1}) == []
    found = differences(record, {"loss": float(np.nextafter(0.1, 1)), "weights": "ab", "entropy": float("nan")})
    assert found == ["loss is 0.10000000000000002, not 0.1", "weights is ab, not aa"]


def test_log_probs_are_compared_under_the_version_that_sampled_the_token() -> None:
    gaps = Gaps([a_sample(0), a_sample(3)])
    gaps.take(3, [np.array([9, 9, 9], np.float32), np.array([9, -0.5, -0.75], np.float32)])
    assert (gaps.largest, gaps.tokens, gaps.versions) == (0.25, 2, {3})
    gaps.take(1, [np.array([9, 9, 9], np.float32)] * 2)
    assert (gaps.largest, gaps.tokens) == (0.25, 2)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("verify", "."), "ledger.jsonl: no such file: `coa rl` writes it"),
        (("verify", ".", "--replay"), ". is no run directory: it has no config.yaml"),
    ],
)
def test_a_folder_without_a_run_is_a_mistake(
    words: tuple[str, ...],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    assert capfd.readouterr().err == f"coa: {said}\n"
    assert list(tmp_path.iterdir()) == []


def test_a_ledger_that_does_not_balance_is_status_1(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    lines = [
        {"what": "start", "start": 0, "version": 0, "cursor": [0]},
        {"what": "issue", "group": 0, "task": 0, "version": 0},
        {"what": "issue", "group": 1, "task": 2, "version": 0},
        {"what": "play", "group": 0, "tokens": 70, "calls": 2},
        {"what": "lease", "version": 0, "groups": [0]},
    ]
    (tmp_path / "ledger.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines) + '{"what": "tor')
    assert main(["verify", str(tmp_path)]) == 1
    said = capfd.readouterr().out
    assert said.startswith("issued 2 = trained 0 + dropped 0 + open 2\n")
    assert f"{tmp_path}/ledger.jsonl, line 3: tasks 1 to 1 are skipped: group 1 has task 2" in said
    assert "the ledger does not balance: 1 faults" in said
