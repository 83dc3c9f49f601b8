"""A real pretrained model through the whole loop: SmolLM2-135M-Instruct, 49,152 tokens, tied embeddings, two engines,
and two learner ranks at ZeRO-3. Its sizes are in tests/support/smollm.yaml."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from coa.reporting.metrics import read_metrics
from tests.support.memory import Watched, run_watched
from tests.support.smollm import gguf_file

RECIPE = Path(__file__).parents[1] / "support" / "smollm.yaml"
LIMIT_S = 25 * 60

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        gguf_file() is None, reason="the packages of the model are not installed (scripts/setup_slow.sh)"
    ),
]


@pytest.fixture(scope="module")
def trained(smollm: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Watched]:
    folder = tmp_path_factory.mktemp("pretrained")
    output = folder / "output.txt"
    settings = (f"run_dir={folder / 'run'}", f"model.path={smollm}")
    command = [sys.executable, "-m", "jobs.cli", "train", "--recipe", str(RECIPE), *settings]
    watched = run_watched(command, output=output, limit_s=LIMIT_S)
    assert watched.returncode == 0, output.read_text()[-4000:]
    return folder / "run", watched


def records_of(run: Path, stage: str) -> list[dict[str, Any]]:
    return [record for record in read_metrics(run / "metrics.jsonl") if record["stage"] == stage]


def test_it_is_done_in_time_and_memory(trained: tuple[Path, Watched], record_property: Any) -> None:
    _, watched = trained
    record_property("seconds", round(watched.seconds))
    record_property("gib", round(watched.together, 1))
    print(f"{watched.seconds:.0f} s; {watched.together:.1f} GiB at most together:")
    for name, peaks in watched.peaks.items():
        print(f"  {name}: {', '.join(map(str, peaks[:6]))}")
    assert watched.seconds < LIMIT_S
    assert watched.together <= 17


def test_it_learns_from_demonstrations_as_much_as_reinforcement_needs(trained: tuple[Path, Watched]) -> None:
    run, _ = trained
    losses = [record["loss"] for record in records_of(run, "sft")]
    assert losses[-1] < 0.2 * losses[0]
    solved = json.loads((run / "report.json").read_text())["evaluation"]["sft"]["pass_at_1"]["mean"]
    assert 0.1 <= solved <= 0.9


def test_every_step_of_reinforcement_changes_the_model(trained: tuple[Path, Watched]) -> None:
    run, _ = trained
    records = records_of(run, "rl")
    assert [record["step"] for record in records] == [1, 2, 3]
    for record in records:
        assert record["tokens"] > 0
        assert record["grad_norm"] > 0
        assert record["sync_alarms"] == 0
    digests = [record["weights"] for record in records]
    assert len(set(digests)) == len(digests)


def test_the_exported_model_opens_in_transformers(trained: tuple[Path, Watched]) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    run, _ = trained
    opened: Any = AutoModelForCausalLM.from_pretrained(run / "model", output_loading_info=True)
    model, loading = opened
    assert not loading["missing_keys"]
    assert not loading["unexpected_keys"]
    tokenizer = AutoTokenizer.from_pretrained(run / "model")
    asked = tokenizer("What is 3 * 4 ?", return_tensors="pt")
    assert model(**asked).logits.shape[-1] >= len(tokenizer)
