"""Programs of others that ask `coa serve`: real server, small untrained model, both modes.

    bash scripts/setup_slow.sh        installs them

Each has packages of its own, since what they need does not go together with what this project needs. An environment
variable may name another one: SCHEMATHESIS, LM_EVAL, INSPECT.
"""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from jobs.run.agent_file import write_agent
from tests.jobs.test_serve import AGENT, at, serving
from tests.project.test_docs import ROOT, blocks
from tests.support.tiny import make_model, sum_task

LIMIT_S = 1500
"""For one program."""
TASKS = [sum_task(index) for index in range(20)]


def path_of(variable: str, name: str) -> str | None:
    """The program that the environment variable names, or else the one that is installed for these tests."""
    return shutil.which(os.environ.get(variable, ROOT / ".venv" / "programs" / name))


SCHEMATHESIS = path_of("SCHEMATHESIS", "schemathesis/bin/st")
LM_EVAL = path_of("LM_EVAL", "lm-eval/bin/lm_eval")
INSPECT = path_of("INSPECT", "inspect-ai/bin/inspect")
NONE = "{} names no {}, and none is installed (scripts/setup_slow.sh)"
needs_schemathesis = pytest.mark.skipif(SCHEMATHESIS is None, reason=NONE.format("SCHEMATHESIS", "schemathesis"))
needs_lm_eval = pytest.mark.skipif(LM_EVAL is None, reason=NONE.format("LM_EVAL", "lm-eval"))
needs_inspect = pytest.mark.skipif(INSPECT is None, reason=NONE.format("INSPECT", "inspect-ai"))
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the documents have it: `runs/demo/model`, in a folder from which programs are run."""
    folder = make_model(tmp_path_factory.mktemp("strangers") / "runs" / "demo" / "model")
    write_agent(folder, AGENT)
    return folder


@pytest.fixture(scope="module")
def here(model: Path) -> Path:
    """Where `runs/demo/model` is."""
    return model.parents[2]


@pytest.fixture(scope="module")
def url(model: Path) -> Iterator[str]:
    with serving(model, "out") as (address, _):
        yield address


def run(command: Sequence[str], folder: Path, program: str | None = None, **environment: str) -> str:
    """What a command says; its first folder of the PATH is that of `program`."""
    known = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    known |= {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "cache"), **environment}
    if program is not None:
        known["PATH"] = f"{Path(program).absolute().parent}:{known['PATH']}"
    done = subprocess.run(command, cwd=folder, env=known, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stdout[-9000:] + done.stderr[-4000:]
    return done.stdout


def shown(words: str, url: str) -> str:
    """The commands of docs/serving.md that have these words, at this server."""
    [block] = [block for block in blocks(ROOT / "docs" / "serving.md", "bash") if words in block]
    return at(url, block.strip())


# --- schemathesis: nothing that can be asked ends in a 5xx ------------------------------------------------------------

REQUESTS = 2000
ANSWERED = 80
"""At least, of what is asked on each path: the others name responses, models or images that there are none of."""
HOOKS = """\
import schemathesis

@schemathesis.hook
def map_body(context, body):
    'Half of the conversations end as they have to.'
    if isinstance(body, dict) and isinstance(said := body.get("messages"), list) and len(said) % 2:
        return {**body, "messages": [*said, {"role": "user", "content": "How many cups remain ?"}]}
    return body
"""
CHECKS = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance")


@needs_schemathesis
def test_no_request_that_schemathesis_makes_up_fails_or_hangs(url: str, here: Path, record_property: Any) -> None:
    assert SCHEMATHESIS is not None
    words = ["--phases", "coverage,fuzzing", "--checks", ",".join(CHECKS), "--continue-on-failure"]
    words += ["--seed", "0", "--generation-database", "none", "--max-examples", "200", "--request-timeout", "60"]
    words += ["--report-json-path", "found.json", "--no-color"]
    (here / "hooks.py").write_text(HOOKS)
    run([SCHEMATHESIS, "run", f"{url}/openapi.json", *words], here, SCHEMATHESIS_HOOKS="hooks", PYTHONPATH=str(here))
    found = json.loads((here / "found.json").read_text())
    assert found["complete"]
    assert found["test_cases"]["generated"] >= REQUESTS
    record_property("requests", found["test_cases"]["generated"])
    asked = {operation: sum_of(phases) for operation, phases in found["valid_rates"].items()}
    record_property("asked", asked)
    for path in ("chat/completions", "completions", "messages", "responses"):
        count = asked[f"POST /v1/{path}"]
        assert count["accepted"] >= ANSWERED, f"many requests to {path} are meaningful: {count}"
    wait_until_idle(url)


def wait_until_idle(url: str) -> None:
    """Nothing that was asked for runs on."""
    deadline = time.monotonic() + 60
    while httpx.get(f"{url}/v1/load").json() != {"episodes": 0}:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def sum_of(phases: dict[str, dict[str, int]]) -> dict[str, int]:
    return {name: sum(phase[name] for phase in phases.values()) for name in ("accepted", "rejected")}


# --- lm-eval ----------------------------------------------------------------------------------------------------------

FILE = """\
dataset_path: json
dataset_kwargs: {data_files: {test: questions.jsonl}}
test_split: test
doc_to_text: "{{question}}"
"""
GENERATED = """\
task: questions
output_type: generate_until
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["\\n"], max_gen_toks: 64}
metric_list: [{metric: exact_match}]
"""
CHOSEN = """\
task: choices
output_type: multiple_choice
doc_to_choice: ["14", "22", "8 boxes"]
doc_to_target: 1
metric_list: [{metric: acc}]
"""


@pytest.fixture(scope="module")
def questions(here: Path) -> None:
    rows = [{"question": task.question, "answer": task.answers[0]} for task in TASKS]
    (here / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (here / "questions.yaml").write_text(GENERATED + FILE)
    (here / "choices.yaml").write_text(CHOSEN + FILE)


def lm_eval(words: str, url: str, here: Path, folder: str) -> Path:
    """Runs the command of the documents that has these words. The folder of what it kept of each attempt."""
    command = f"{shown(words, url)} --output_path {folder} --log_samples"
    run(["bash", "-c", command], here, LM_EVAL)
    return here / folder


def samples_of(folder: Path, task: str) -> list[Any]:
    [file] = folder.glob(f"**/samples_{task}_*.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()]


@needs_lm_eval
@pytest.mark.usefixtures("questions")
def test_lm_eval_asks_the_agent(url: str, here: Path) -> None:
    samples = samples_of(lm_eval("local-chat-completions", url, here, "agent"), "questions")
    assert len(samples) == len(TASKS)
    assert any(sample["filtered_resps"][0] for sample in samples), "the grammar makes it answer"


@needs_lm_eval
@pytest.mark.usefixtures("questions")
def test_lm_eval_asks_the_model_alone_for_text_and_for_log_likelihoods(url: str, here: Path, model: Path) -> None:
    folder = lm_eval("local-completions", url, here, "plain")
    generated, chosen = samples_of(folder, "questions"), samples_of(folder, "choices")
    assert len(generated) == len(chosen) == len(TASKS)
    assert any(sample["filtered_resps"][0] for sample in generated)
    log_likelihood = measured_by_transformers(model)
    for sample in chosen:
        pairs = [sample["arguments"][f"gen_args_{index}"] for index in range(3)]
        expected = [log_likelihood(pair["arg_0"], pair["arg_1"]) for pair in pairs]
        assert [float(one[0][0]) for one in sample["resps"]] == pytest.approx(expected, abs=0.01)


def measured_by_transformers(model: Path) -> Callable[[str, str], float]:
    """The log-probability of a continuation after a context."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer, policy = AutoTokenizer.from_pretrained(model), cast("Any", AutoModelForCausalLM).from_pretrained(model)

    def measured(context: str, continuation: str) -> float:
        ids, begin = tokenizer(context + continuation)["input_ids"], len(tokenizer(context)["input_ids"])
        with torch.no_grad():
            logprobs = policy(torch.tensor([ids])).logits[0].float().log_softmax(-1)
        return sum(float(logprobs[at - 1, ids[at]]) for at in range(begin, len(ids)))

    return measured


# --- inspect-ai -------------------------------------------------------------------------------------------------------

TASK = """\
from inspect_ai import Task, task
from inspect_ai.dataset import Sample, json_dataset
from inspect_ai.scorer import match
from inspect_ai.solver import generate

@task
def questions():
    rows = json_dataset("questions.jsonl", lambda row: Sample(input=row["question"], target=row["answer"]))
    return Task(dataset=rows, solver=generate(max_tokens=64), scorer=match(numeric=True))
"""


@needs_inspect
@pytest.mark.usefixtures("questions")
def test_inspect_asks_the_agent_and_the_model_alone(url: str, here: Path) -> None:
    (here / "questions.py").write_text(TASK)
    settings = {"INSPECT_LOG_DIR": str(here / "logs"), "INSPECT_LOG_FORMAT": "json", "INSPECT_DISPLAY": "plain"}
    run(["bash", "-e", "-c", shown("inspect eval", url)], here, INSPECT, **settings)
    logs = {
        log["eval"]["model"]: log for log in map(json.loads, (file.read_text() for file in here.glob("logs/*.json")))
    }
    assert set(logs) == {"openai-api/coa/demo", "openai-api/coa/demo:plain"}
    for log in logs.values():
        assert log["status"] == "success"
        assert log["results"]["completed_samples"] == len(TASKS)
        assert any(sample["output"]["completion"] for sample in log["samples"])
        assert log["stats"]["model_usage"][log["eval"]["model"]]["output_tokens"] > 0
    [reasoning, *_] = [
        part
        for part in logs["openai-api/coa/demo"]["samples"][0]["messages"][-1]["content"]
        if part["type"] == "reasoning"
    ]
    assert reasoning["reasoning"].startswith("<"), "the chain"
