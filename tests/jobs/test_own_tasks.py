"""The commands of docs/own_tasks.md from a clean folder: a pretrained model learns a file of sums, and is asked one."""

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
LIMIT_S = 15 * 60
TRAINED, HELD_OUT = 96, 32

pytestmark = [
    pytest.mark.slow,
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
        assert commands.count("coa ") == 6
        began = time.monotonic()
        with (tmp_path / "output.txt").open("w") as output:
            ended = subprocess.run(
                ["bash", "-e", "-x", "-c", commands],
                cwd=tmp_path,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
                timeout=2 * LIMIT_S,
            )
        seconds = time.monotonic() - began
    said = (tmp_path / "output.txt").read_text()
    print(said)
    assert ended.returncode == 0, said[-4000:]
    [path] = tmp_path.glob("runs/evaluate/*/evaluation.json")
    gain = json.loads(path.read_text())["against"]["greedy"]
    record_property("seconds", round(seconds))
    record_property("gain", gain)
    print(f"{seconds:.0f} s, gain {gain}")
    assert gain["n"] == HELD_OUT
    assert gain["ci95"][0] > 0
    distilled = json.loads((tmp_path / "runs/own_tasks/checkpoints/distill.json").read_text())
    assert (distilled["runs"], distilled["kept"]) == (TRAINED, TRAINED)
    assert "<answer>" in said.splitlines()[-3], "of the question at the end"
    assert seconds < LIMIT_S
