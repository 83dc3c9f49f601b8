"""`coa doctor`: what a machine has and lacks, each with what to type."""

import resource
import shutil
import socket
import subprocess
import sys
from collections import namedtuple
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster.remote import reach
from cluster.resources import PlacementConfig
from coa.grading.toolset import ToolsConfig
from coa.llm.client import EndpointConfig
from coa.serving.config import ServingConfig
from coa.tools.mcp.config import McpConfig
from coa.tools.sandbox.containment import Containment
from coa.tools.sandbox.sandbox import Kind, SandboxConfig
from coa.tools.web.search import SearchConfig
from jobs.cli import main
from jobs.commands.doctor import command as doctor
from jobs.commands.doctor.parts import PARTS, Finding, Part, State, variables_of
from jobs.recipe.schema import Recipe, TeacherModelConfig

Space = namedtuple("Space", "total used free")


def findings(part: str, **sections: Any) -> list[Finding]:
    """Of the default recipe, with other sections."""
    [check] = (one.check for one in PARTS if one.name == part)
    return list(check(replace(Recipe(), **sections)))


def test_every_part_is_on_one_screen_and_nothing_heavy_is_loaded() -> None:
    heavy = "print(sorted({'ray', 'torch', 'vllm', 'transformers'} & set(sys.modules)))"
    code = f"import sys; from jobs.cli import main; main(['doctor']); {heavy}"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 5
    *lines, loaded = done.stdout.splitlines()
    assert loaded == "[]"
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 24
    assert {part.name for part in PARTS} == {line[:13].strip() for line in lines} - {""}


@pytest.mark.parametrize(("states", "status"), [(("ok", "warn"), 0), (("ok", "missing"), 1)])
def test_the_status_says_whether_all_that_is_needed_is_there(
    states: tuple[str, ...], status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = [Finding(State(state), f"is {state}", "type this") for state in states]
    monkeypatch.setattr(doctor, "PARTS", (Part("engine", lambda _: iter(found)),))
    assert main(["doctor"]) == status
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[:2] == [["engine", "ok", "is", "ok"], [">", "type", "this"]]


def test_a_recipe_that_is_not_there_is_a_mistake() -> None:
    assert main(["doctor", "--recipe", "tinny"]) == 2


def test_keys_that_a_recipe_names_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY_A", "secret")
    monkeypatch.delenv("KEY_B", raising=False)
    monkeypatch.delenv("KEY_C", raising=False)
    tools = ToolsConfig(search=SearchConfig(key_env="KEY_A"), mcp={"s": McpConfig(env=("KEY_C",))})
    models = {"m": TeacherModelConfig(endpoint=EndpointConfig(key_env="KEY_B"))}
    assert findings("keys", tools=tools, models=models) == [
        Finding(State.OK, "KEY_A (tools.search.key_env)"),
        Finding(State.MISSING, "KEY_B (models.m.endpoint.key_env) is not set", "export KEY_B=..."),
        Finding(State.MISSING, "KEY_C (tools.mcp.s.env) is not set", "export KEY_C=..."),
    ]
    assert list(variables_of(Recipe())) == []


def test_a_sandbox_is_warm_cold_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    describe = "coa.tools.sandbox.containment.describe"
    monkeypatch.setattr(describe, lambda: Containment(True, "cgroup v2 in /sys/fs/cgroup", True, True, ""))
    warm, held = findings("sandbox")
    assert warm.what.split(";")[0] == "warm"
    assert held == Finding(State.OK, "cgroup v2 in /sys/fs/cgroup")
    monkeypatch.setattr(describe, lambda: Containment(False, "no cgroup can be made", False, True, "type this"))
    cold, held = findings("sandbox", tools=ToolsConfig(sandbox=SandboxConfig(warm=False)))
    assert (cold.state, cold.what.split(":")[0]) == (State.OK, "cold")
    assert held == Finding(State.WARN, "no cgroup can be made; programs get no sockets", "type this")
    [none] = findings("sandbox", tools=ToolsConfig(sandbox=SandboxConfig(kind=Kind.none)))
    assert (none.state, none.type) == (State.WARN, "tools.sandbox.kind=bubblewrap")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    [missing] = findings("sandbox")
    assert missing.state is State.MISSING
    assert missing.type == "apt-get install bubblewrap util-linux"


def test_gpus_are_needed_where_a_recipe_places_parts_on_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert [one.state for one in findings("GPU")] == [State.OK]
    assert [one.state for one in findings("GPU", placement=PlacementConfig(engine_gpus=1))] == [State.MISSING]
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert [one.state for one in findings("GPU", placement=PlacementConfig(engine_gpus=1))] == [State.OK]
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 'NVIDIA H100, 81559 MiB'\necho 'NVIDIA H100, 81559 MiB'\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    assert findings("GPU") == [Finding(State.OK, "2: NVIDIA H100, 81559 MiB")]


@pytest.mark.parametrize(
    ("part", "free_gib", "state"),
    [
        ("shared memory", 0.5, State.MISSING),
        ("shared memory", 1.5, State.WARN),
        ("shared memory", 3, State.OK),
        ("disk", 0.5, State.MISSING),
        ("disk", 5, State.WARN),
        ("disk", 50, State.OK),
    ],
)
def test_room_is_told_by_what_is_free(
    part: str, free_gib: float, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Space(1 << 40, 0, int(free_gib * (1 << 30))))
    [one] = findings(part)
    assert (one.state, bool(one.type)) == (state, state is not State.OK)


def test_a_cluster_that_does_not_answer_and_a_port_that_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
        assert [one.state for one in findings("Ray")] == [State.MISSING]
        taken.listen()
        monkeypatch.setattr(reach, "ANSWER_S", 0.2)
        [silent] = findings("Ray")
        assert silent.state is State.MISSING
        assert reach.OTHER in silent.what
        monkeypatch.setenv("RAY_ADDRESS", "auto")
        monkeypatch.setattr(reach, "_running_here", lambda: f"127.0.0.1:{port}")
        assert findings("Ray") == [silent]
        monkeypatch.setattr(reach, "_metadata", lambda address: {})
        monkeypatch.setattr(reach, "_require_versions", lambda address, metadata: None)
        assert [one.state for one in findings("Ray")] == [State.OK]
        serve = findings("ports", serving=ServingConfig(port=port))[0]
        assert serve == Finding(State.WARN, f"{port} is taken", f"coa serve ... serving.port={port + 1}")
