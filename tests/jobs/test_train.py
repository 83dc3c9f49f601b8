"""`coa train` from end to end on a user's file: interrupted, resumed, and what it leaves behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from coa.learning.accounts import fold
from coa.reporting.metrics import read_metrics
from coa.storage.jsonl import read_lines
from jobs.cli import main
from jobs.run.run_dir import storage_of
from tests.project.test_docs import ROOT, blocks
from tests.support.patience import PATIENCE_S

BENCHMARKS = Path(os.environ.get("COA_BENCHMARKS", Path(__file__).parents[3] / "shared" / "benchmarks"))
RUNS, SFT_STEPS, RL_STEPS = 120, 36, 3
SETTINGS = (
    f"distill.runs={RUNS}",
    "teaching.wave=60",
    f"sft.steps={SFT_STEPS}",
    "sft.checkpoint_every=10",
    "sft.batch=8",
    "sft.learner.ranks=1",
    f"rl.steps={RL_STEPS}",
    "rl.group=2",
    "rl.window.groups_per_batch=4",
    "rl.window.max_refills=1",
    "rl.reward.overlong_buffer=1.0",
    # A policy of so few steps is wrong in most groups alike: what differs is the lengths.
    "rl.algorithm_settings.spread=reward",
    "evaluation.samples=2",
)


def coa(*words: str) -> list[str]:
    return [sys.executable, "-m", "jobs.cli", *words]


def records_of(metrics: Path, stage: str) -> list[dict[str, Any]]:
    return [record for record in read_metrics(metrics) if record["stage"] == stage] if metrics.exists() else []


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A run on a file of sums, interrupted in its SFT stage and resumed by the same command."""
    folder = tmp_path_factory.mktemp("train")
    tasks = folder / "sums.jsonl"
    rows = [{"question": f"What is {a} * {b} - 4 ?", "answer": str(a * b - 4)} for a in range(11, 19) for b in (2, 3)]
    tasks.write_text("".join(f"{json.dumps(row | {'profile': 'code'})}\n" for row in rows))
    command = coa("train", "--recipe", "tiny", f"run_dir={folder / 'run'}", f"tasks.path={tasks}", *SETTINGS)
    # As on a machine where nobody has said a word on Ray's tokens.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH_")}
    first = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    metrics = folder / "run" / "metrics.jsonl"
    # A checkpoint is committed some steps after it was written; then there is one to go on after.
    while not any("checkpoint_commit_s" in record for record in records_of(metrics, "sft")):
        assert first.poll() is None, first.communicate()[1]
        time.sleep(0.2)
    first.send_signal(signal.SIGINT)
    _, told = first.communicate(timeout=PATIENCE_S)
    interrupted = time.time()
    checkpoints = storage_of(folder / "run").below("sft").versions()
    second = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    return {
        "folder": folder / "run",
        "first": (first.returncode, told),
        "interrupted": interrupted,
        "checkpoint": max(checkpoints.values()),
        "second": second,
        "command": command,
        "rows": len(rows),
    }


def test_an_interrupted_run_says_so_and_the_same_command_finishes_it(run: dict[str, Any]) -> None:
    assert run["first"] == (130, "interrupted; the same command resumes\n")
    assert run["second"].returncode == 0, run["second"].stderr
    records = records_of(run["folder"] / "metrics.jsonl", "sft")
    assert [record["step"] for record in records] == list(range(1, SFT_STEPS + 1))
    before = [record["step"] for record in records if record["time"] < run["interrupted"]]
    assert before == list(range(1, run["checkpoint"] + 1)), "it went on after its last checkpoint"


def test_the_report_keeps_its_contract(run: dict[str, Any]) -> None:
    report = json.loads((run["folder"] / "report.json").read_text())
    assert report["tools"]["code"]["calls"] > 0
    assert report["tools"]["code"]["failures"] == 0
    assert report["stages"]["distill"]["transcripts"] == RUNS
    assert report["stages"]["distill"]["kept"] + sum(report["stages"]["distill"]["dropped"].values()) == RUNS
    assert report["stages"]["sft"]["steps"] == SFT_STEPS
    assert report["stages"]["rl"]["steps"] == RL_STEPS
    assert report["rl"]["staleness_max"] <= 2
    assert report["rl"]["logprob_max_diff"] < 1e-4
    assert 0 <= report["rl"]["overlap"] <= 1
    assert set(report["rl"]["busy"]) == {"engine", "learner"}
    assert len(report["evaluation"]["tasks_sha256"]) == 64
    held_out = report["evaluation"]["rl"]["greedy"]["n"]
    assert 0 < held_out < run["rows"]
    assert report["cost"]["multi_agent"]["n"] == held_out
    assert report["cost"]["afm"]["n"] == 2 * held_out
    for name in ("sft", "rl"):
        family = report["evaluation"][name]["families"]["sums"]
        assert family["pass_at_1"]["n"] == held_out
        assert set(report["evaluation"][name]["strategies"]["sums"]) >= {"careful", "lazy"}


def test_every_attempt_of_the_run_is_accounted_for(run: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(run["folder"])]) == 0
    report = json.loads((run["folder"] / "report.json").read_text())
    accounts = fold(read_lines(run["folder"] / "ledger.jsonl"))
    [row] = accounts.balance().values()
    dropped = {reason.replace(" ", "_"): n for reason, n in report["rl"]["dropped"].items()}
    assert dict(row) == {
        **({"trained": trained} if (trained := report["stages"]["rl"]["samples"] // 2) else {}),
        **dropped,
    }
    assert capsys.readouterr().out.startswith(f"issued {len(accounts.attempts)} = trained ")


def test_both_models_say_how_they_are_asked(run: dict[str, Any]) -> None:
    tuned, reinforced = (run["folder"] / name / "agent.json" for name in ("checkpoints/sft-model", "model"))
    assert json.loads(tuned.read_text()) == json.loads(reinforced.read_text())
    assert json.loads(tuned.read_text())["limits"]["max_tokens"] == 384


def test_the_run_directory_is_readable(run: dict[str, Any]) -> None:
    folder = run["folder"]
    assert [record["step"] for record in records_of(folder / "metrics.jsonl", "rl")] == [1, 2, 3]
    assert "run_dir" in (folder / "config.yaml").read_text()
    page = (folder / "report.html").read_text()
    assert "</html>" in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    episodes = pq.read_table(folder / "trajectories" / "evaluation-rl.parquet").to_pylist()
    assert {row["group"] for row in episodes} == {"greedy", "sampled"}
    played = pq.read_table(folder / "trajectories" / "rl-00001.parquet").to_pylist()
    assert {"text", "reward", "oldest", "newest"} <= played[0].keys()


def test_a_finished_run_is_shown_again_without_any_work(run: dict[str, Any]) -> None:
    made = [run["folder"] / name for name in ("metrics.jsonl", "model/model.safetensors", "checkpoints/rl.json")]
    before = [(path.read_bytes(), path.stat().st_mtime_ns) for path in made]
    again = subprocess.run(run["command"], capture_output=True, text=True, check=False)
    assert again.returncode == 0
    assert "cost of a success" in again.stdout
    assert [(path.read_bytes(), path.stat().st_mtime_ns) for path in made] == before
    assert again.stderr == "", "nothing is started"


@pytest.mark.skipif(not BENCHMARKS.is_dir(), reason=f"no benchmark files in {BENCHMARKS}; set COA_BENCHMARKS")
def test_the_model_is_evaluated_on_a_benchmark_and_agrees_with_transformers(
    run: dict[str, Any], tmp_path: Path
) -> None:
    """vLLM's greedy turns are the ones that `transformers` generates from the same folder."""
    model, out = run["folder"] / "model", tmp_path / "nq"
    words = coa("evaluate", "--model", str(model), "--tasks", str(BENCHMARKS / "nq.jsonl"), "--rows", "20")
    done = subprocess.run(
        [*words, "--out", str(out), "evaluation.samples=1"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((out / "evaluation.json").read_text())
    assert found["n"] == found["greedy"]["n"] == 20
    assert "pass_at_1" not in found, "its protocol is greedy"
    rows = pq.read_table(out / "episodes.parquet").to_pylist()
    greedy = [row for row in rows if row["group"] == "greedy" and row["turns"] == 1]
    assert len(greedy) > 3
    for row in greedy[:4]:
        assert row["text"] == one_turn(model, row["question"]).strip()


def one_turn(model_dir: Path, question: str) -> str:
    """A greedy turn by `transformers`, the stop included. It ends where a turn of the benchmark's profile does: at a
    call of a tool that the profile has."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from coa.agent.codec import Codec
    from coa.agent.profiles import MHQA

    ends = Codec.load(model_dir).stops(MHQA).token_ids
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    model: Any = AutoModelForCausalLM.from_pretrained(model_dir)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    with torch.no_grad():
        ids = model.generate(**prompt, max_new_tokens=64, eos_token_id=list(ends))
    return tokenizer.decode(ids[0, prompt["input_ids"].shape[1] :])


@pytest.mark.parametrize("index", range(2))
def test_the_documented_python_runs_on_a_run(
    run: dict[str, Any], index: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "demo").symlink_to(run["folder"])
    monkeypatch.chdir(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", blocks(ROOT / "docs" / "python.md", "python")[index]],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
