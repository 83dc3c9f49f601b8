"""The commands of docs/own_tasks.md from a clean folder: a pretrained model learns a file of sums by a quick run of all
stages, and is asked one."""

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.project.test_docs import ROOT, blocks
from tests.support.endpoints import EndpointProcess
from tests.support.smollm import gguf_file

SHOWN_AT = "http://127.0.0.1:8001/v1"
LIMIT_S = 60 * 60
TRAINED, HELD_OUT = 96, 32
SMALLEST, EVALUATED = 64, 16

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(LIMIT_S),
    pytest.mark.skipif(
        gguf_file() is None, reason="the packages of the model are not installed (scripts/setup_slow.sh)"
    ),
]


def write_questions(path: Path) -> None:
    draw, rows = random.Random(0), dict[str, str]()
    while len(rows) < TRAINED + HELD_OUT:
        a, b, c = draw.randrange(11, 99), draw.randrange(11, 99), draw.randrange(11, 99)
        rows[f"What is {a} * {b} + {c} ?"] = str(a * b + c)
    path.write_text("".join(f"{json.dumps({'question': q, 'answer': a})}\n" for q, a in rows.items()))


def test_the_documented_commands_train_a_model_on_own_tasks_and_ask_it(
    smollm: Path, tmp_path: Path, record_property: Any
) -> None:
    write_questions(tmp_path / "questions.jsonl")
    (tmp_path / smollm.name).symlink_to(smollm)
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PS4": "+ $SECONDS s: ",
    }
    with EndpointProcess("--reply", "tests.support.arithmetic_team:reply") as endpoint:
        commands = "".join(blocks(ROOT / "docs" / "own_tasks.md", "bash")).replace(SHOWN_AT, endpoint.url)
        assert commands.count("coa ") == 5
        began = time.monotonic()
        with (tmp_path / "output.txt").open("w") as output:
            ended = subprocess.run(
                ["bash", "-e", "-x", "-c", commands],
                cwd=tmp_path,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
                timeout=LIMIT_S,
            )
        seconds = time.monotonic() - began
    said = (tmp_path / "output.txt").read_text()
    print(said)
    assert ended.returncode == 0, said[-4000:]
    folder = tmp_path / "runs/own_tasks-quick"
    report = json.loads((folder / "report.json").read_text())
    greedy = {name: report["evaluation"][name]["greedy"]["mean"] for name in ("base", "sft", "rl")}
    record_property("seconds", round(seconds))
    record_property("greedy", greedy)
    print(f"{seconds:.0f} s, {greedy}")
    distilled = json.loads((folder / "checkpoints/distill.json").read_text())
    assert TRAINED >= distilled["kept"] >= SMALLEST
    assert [report["stages"][name]["steps"] for name in ("sft", "rl")] == [8, 2]
    assert [report["evaluation"][name]["counted"]["greedy"] for name in greedy] == [EVALUATED] * 3
    assert greedy["base"] < 0.5 < greedy["sft"]
    [path] = tmp_path.glob("runs/evaluate/*/evaluation.json")
    assert json.loads(path.read_text())["against"]["greedy"]["n"] == HELD_OUT
    assert "<answer>" in said, "of the question"
