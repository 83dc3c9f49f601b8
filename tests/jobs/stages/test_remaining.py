"""What the stages of a run still have to compute, and when that is told."""

import io
import re
from pathlib import Path

import pytest

from coa.config import load
from coa.distill.dataset.shards import write_shard
from coa.distill.dataset.tokens import tokenise
from coa.planning.remaining import Lengths, Work
from jobs.recipe.find import find_recipe
from jobs.recipe.schema import Recipe
from jobs.run.console import Console
from jobs.run.run_dir import RunDir
from jobs.stages import remaining as stage
from tests.coa.distill.dataset.test_dataset import row
from tests.support.fakes import tag_codec

LENGTHS = Lengths(prompt=50.0, whole=130.0)
SMALL = "model.path=HuggingFaceTB/SmolLM2-135M-Instruct", "sft.epochs=null", "sft.steps=8", "rl.steps=2"


def recipe(*settings: str) -> Recipe:
    return load(Recipe, find_recipe("own_tasks"), [*SMALL, *settings])


def test_each_stage_has_the_tokens_of_its_attempts_and_batches() -> None:
    found = stage.works(recipe(), LENGTHS, rows=64, tasks=16)
    group = 50 + 4 * 80
    assert found == {
        "evaluation-base": Work(played=16 * 130, starts=True),
        "sft": Work(learnt=3 * 8 * 8 * 130, starts=True),
        "evaluation-sft": Work(played=16 * 130, starts=True),
        "rl": Work(played=2 * 8 * group, learnt=3 * 2 * 8 * group, starts=True),
        "evaluation-rl": Work(played=16 * 130),
    }
    more = recipe("evaluation.base=false", "evaluation.temperature=1", "evaluation.samples=4")
    again = stage.works(more, LENGTHS, rows=64, tasks=16)
    assert list(again) == ["sft", "evaluation-sft", "rl", "evaluation-rl"]
    assert again["evaluation-rl"] == Work(played=16 * (50 + 5 * 80))


def test_what_is_finished_is_left_out_and_nothing_is_told_where_nothing_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, folder = tmp_path / "mine.jsonl", tmp_path / "run"
    path.write_text("".join(f'{{"question": "{n} ?", "answer": "x"}}\n' for n in range(64)))
    write_shard(folder / "data", 0, [row(n) for n in range(9)], {})
    tokenise(folder / "data", tag_codec(), instructed=False, limit=1000)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)

    def told(*settings: str) -> str:
        """The line without its figures."""
        config = recipe(f"run_dir={folder}", f"tasks.path={path}", *settings)
        return re.sub(r" \d+", "", stage.remaining(RunDir(config, Console(io.StringIO(), io.StringIO()))))

    begin = "from here about minutes on this machine"
    assert told().startswith(f"{begin} (evaluation-base, sft, evaluation-sft, rl, evaluation-rl), by GFLOP/s")
    for name in ("evaluation-base", "sft"):
        (folder / "checkpoints").mkdir(exist_ok=True)
        (folder / "checkpoints" / f"{name}.json").write_text('{"steps": 8}')
    assert told().startswith(f"{begin} (evaluation-sft, rl, evaluation-rl)")
    assert told("model.path=somebody/unknown") == told("placement.engine_gpus=1") == ""
    assert told("model.path=null") == told("session.address=10.0.0.1:6379") == ""
