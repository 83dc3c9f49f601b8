"""Reinforcement of a model that was not fine-tuned here."""

import json
from pathlib import Path

import pytest

from tests.support.rl_runs import rl_run
from tests.support.tiny import make_model


@pytest.mark.slow
def test_reinforcement_begins_at_the_recipes_model(tmp_path: Path) -> None:
    base = make_model(tmp_path / "base")
    with rl_run(tmp_path / "run", 2, "sft.steps=0", f"model.path={base}") as run:
        run.finish()
        assert json.loads((run.folder / "checkpoints" / "sft.json").read_text())["steps"] == 0
        assert not (run.folder / "checkpoints" / "sft-model").exists()
        began, ended = (run.folder / name / "agent.json" for name in ("checkpoints/start", "model"))
        assert json.loads(began.read_text()) == json.loads(ended.read_text())
