"""`coa doctor`: what a machine has and lacks, each with what to type."""

import json
import re
import shutil
import socket
import subprocess
import sys
from collections import namedtuple
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from safetensors.torch import load_file

from actors.learner.config import LoraConfig, ModelConfig
from cluster.remote import reach
from cluster.resources import PlacementConfig
from coa import builds
from coa.config import load
from coa.grading.toolset import ToolsConfig
from coa.llm.client import EndpointConfig
from coa.planning.clusters import device_called
from coa.serving.config import ServingConfig
from coa.tools.mcp.config import McpConfig
from coa.tools.sandbox.containment import Containment
from coa.tools.sandbox.sandbox import Kind, SandboxConfig
from coa.tools.web.search import SearchConfig
from jobs.cli import main
from jobs.commands.doctor import command as doctor
from jobs.commands.doctor import parts
from jobs.commands.doctor.model import model as model_findings
from jobs.commands.doctor.parts import PARTS, Finding, Part, State, variables_of
from jobs.recipe.schema import Recipe, TeacherModelConfig
from tests.support.families import made, tiny_config
from tests.support.tokenizer_kinds import KINDS, LAYOUTS, write

ROOT = Path(__file__).parents[2]
Space = namedtuple("Space", "total used free")


def findings(part: str, **sections: Any) -> list[Finding]:
    """Of the default recipe, with other sections."""
    [check] = (one.check for one in PARTS if one.name == part)
    return list(check(replace(Recipe(), **sections)))


def test_every_part_is_on_one_screen_and_nothing_heavy_is_loaded() -> None:
    heavy = "print(sorted({'ray', 'torch', 'vllm', 'transformers'} & set(sys.modules)))"
    code = f"import sys; from jobs.cli import main; main(['doctor']); {heavy}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
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


def test_a_recipe_is_checked_with_the_overrides_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in (
        (["seed=3"], "coa: seed=3: an override is one of a recipe; name it with --recipe\n"),
        (["--recipe", "tiny", "sead=3"], "coa: sead=3: unknown key sead; the nearest known key is seed\n"),
    ):
        assert (main(["doctor", *words]), capsys.readouterr().err) == (2, said)
    words = ["tools.search.key_env=KEY_NONE", "placement.engine_gpus=1"]
    assert main(["doctor", "--recipe", "tiny", *words]) == 1
    out = capsys.readouterr().out
    assert "KEY_NONE (tools.search.key_env) is not set" in out


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


CARDS = (
    ("NVIDIA GeForce RTX 4090, 24564 MiB", "RTX4090"),
    ("NVIDIA A10G, 23028 MiB", "A10G"),
    ("NVIDIA L4, 23034 MiB", "L4"),
    ("NVIDIA A100-SXM4-40GB, 40960 MiB", "A100-40"),
    ("NVIDIA A100 80GB PCIe, 81920 MiB", "A100-80"),
    ("NVIDIA H100 80GB HBM3, 81559 MiB", "H100"),
    ("NVIDIA H200, 143771 MiB", "H200"),
    ("NVIDIA B200, 183359 MiB", "B200"),
    ("Tesla T4, 15360 MiB", None),
    ("NVIDIA GeForce RTX 4090 Laptop GPU, 16376 MiB", None),
    ("NVIDIA H100 NVL, 95830 MiB", None),
)
"""What nvidia-smi calls cards, and our names of them."""


@pytest.mark.parametrize(("card", "name"), CARDS)
def test_a_card_is_known_by_its_drivers_name(card: str, name: str | None) -> None:
    called, _, memory = card.partition(", ")
    found = device_called(called, int(memory.split()[0]) << 20)
    assert (found.name if found else None) == name


@pytest.mark.parametrize("needed", [True, False])
@pytest.mark.parametrize(
    ("driver", "cuda", "sees", "said", "to_type"),
    [
        ("580.95.05", "13.0", "True", "", ""),
        ("550.54.15", "13.0", "False", "driver 550.54.15 is too old for PyTorch's build for CUDA 13.0", "driver 580"),
        ("550.54.15", "13.0", "True", "", ""),
        ("550.54.15", "12.8", "True", "", ""),
        ("515.1", "12.8", "False", "which needs 525 or newer", "driver 525"),
        ("580.95.05", "", "True", "PyTorch and vLLM: built for CPUs", "make setup"),
        ("580.95.05", "13.0", "False", "PyTorch does not see the GPUs", "torch.cuda.is_available()"),
    ],
)
def test_what_keeps_the_libraries_from_a_gpu_is_told(
    driver: str,
    cuda: str,
    sees: str,
    said: str,
    to_type: str,
    needed: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    for name, text in (("nvidia-smi", f"{CARDS[0][0]}, {driver}"), ("python", sees)):
        (tmp_path / name).write_text(f"#!/bin/sh\necho '{text}'\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    for name in ("torch_is_for_cpus", "vllm_is_for_cpus"):
        monkeypatch.setattr(builds, name, lambda: not cuda)
    monkeypatch.setattr(builds, "torch_cuda", lambda: cuda)
    card, *more = findings("GPU", placement=PlacementConfig(engine_gpus=1 if needed else 0))
    assert card == Finding(State.OK, f"1: {CARDS[0][0]}, driver {driver}")
    assert [one.state for one in more] == [State.MISSING if needed else State.WARN] * bool(said)
    assert all(said in one.what and to_type in one.type for one in more)


def test_the_builds_are_read_from_what_is_installed() -> None:
    import torch

    assert builds.torch_cuda() == (torch.version.cuda or "")
    assert builds.torch_is_for_cpus() is (torch.version.cuda is None)


@pytest.mark.parametrize(
    ("learner", "engine", "said", "advice"),
    [
        (0.01, 0.17, "100.0 times as long as float32 in learners, 5.9 times in engines", ""),
        (0.6, 1.75, "1.7 times as long as float32 in learners, 0.6 times in engines", "engine.dtype=bfloat16"),
        (2.0, 2.0, "0.5 times as long as", "model.dtype=bfloat16 engine.dtype=bfloat16"),
    ],
)
def test_number_types_are_recommended_by_what_this_machine_computes(
    learner: float, engine: float, said: str, advice: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (cpu := tmp_path / "cpuinfo").write_text("flags\t\t: fpu avx512_bf16 sse\n")
    monkeypatch.setattr(parts, "CPU", cpu)
    told = SimpleNamespace(stdout=json.dumps({"512": learner, "4": engine}))
    monkeypatch.setattr(builds, "torch_is_for_cpus", lambda: True)
    monkeypatch.setattr(subprocess, "run", lambda *words, **options: told)
    [found] = findings("numbers")
    assert said in found.what
    assert found.type == advice
    cpu.write_text("flags\t\t: fpu sse\n")
    assert [one.what for one in findings("numbers")] == ["float32: this CPU has no arithmetic in bfloat16"]


def test_the_weights_of_a_large_model_count_as_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    config = load(Recipe, ROOT / "jobs/recipes/code_7b.yaml", ())
    for free_gib, state in ((16, State.MISSING), (60, State.OK)):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free_gib: Space(1 << 40, 0, free << 30))
        [found] = {part.name: part for part in PARTS}["shared memory"].check(config)
        assert found.state is state, found
        assert "3 versions of the weights 4" in found.what


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


@pytest.fixture(scope="module")
def brought(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a tokenizer and a chat template."""
    folder = tmp_path_factory.mktemp("brought")
    write(KINDS["bytes"](), folder, LAYOUTS["chat marks"])
    config = tiny_config("llama")
    config.vocab_size = 500
    made(config, folder)
    return folder


def test_a_model_is_looked_at_and_compared_with_itself(brought: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor", f"model={brought}"])
    said = " ".join(capsys.readouterr().out.split("\nmodel  ", 1)[1].split())
    pattern = (
        r"ok looked at: configuration, weights, tokenizer and chat template \(.*\) "
        r"model ok a tiny copy of it: samples in packed rows: [\d.e-]+ nats from the model's own pass "
        r"model ok the model itself, in float32: samples in packed rows: [\d.e-]+ nats from the model's own pass"
    )
    assert re.fullmatch(pattern, said), said


def test_what_is_wrong_with_a_model_does_not_hide_the_rest(brought: Path, tmp_path: Path) -> None:
    shutil.copytree(brought, tmp_path / "model")
    (tmp_path / "model" / "chat_template.jinja").unlink()
    found = list(model_findings(str(tmp_path / "model"), None))
    assert [one.state for one in found] == [State.MISSING, State.OK, State.OK]
    assert found[0].what.endswith("its tokenizer has no chat template")
    [lost] = model_findings(str(tmp_path / "nowhere"), None)
    assert (lost.state, lost.what) == (State.MISSING, f"model {tmp_path}/nowhere: no model there (no config.json)")


def test_a_model_that_does_not_fit_beside_its_comparison_is_not_loaded(
    brought: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=1))
    *_, last = model_findings(str(brought), None)
    assert last.state is State.WARN
    assert last.what == "the model itself: not compared, since that takes about 0.0 GiB, and 0.0 GiB are free"
    assert last.type == "model.dtype=bfloat16"


def test_a_recipe_says_how_long_episodes_of_a_model_are(brought: Path) -> None:
    [first, *_] = model_findings(str(brought), Recipe())
    assert first.state is State.MISSING
    assert first.what.startswith("agent.limits.max_tokens=32768 is more than the 2048 positions of")


def changed(brought: Path, folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """A copy with another configuration."""
    shutil.copytree(brought, folder)
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_model_that_engines_would_not_serve_is_missing_something(brought: Path, tmp_path: Path) -> None:
    nameless = changed(brought, tmp_path / "nameless", lambda config: config.pop("architectures"))
    assert list(model_findings(str(nameless), None)) == [
        Finding(
            State.MISSING,
            f"model {nameless}: its config.json names no architectures, without which vLLM can't serve it",
        )
    ]


def test_a_model_of_the_hub_that_was_not_fetched_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.recipe.models.is_offline", lambda: False)
    [lost] = model_findings("nobody/nothing", None)
    assert lost == Finding(State.MISSING, "model nobody/nothing is not on this machine")


@pytest.mark.parametrize(("free", "state"), [(1.49, State.WARN), (1.51, State.OK)])
def test_a_model_is_loaded_where_there_is_half_as_much_room_again(
    free: float, state: State, brought: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = sum(tensor.nbytes for tensor in load_file(brought / "model.safetensors").values())
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=int(free * size)))
    *_, last = model_findings(str(brought), None)
    assert last.state is state


def test_a_recipe_says_what_of_a_model_is_trained_and_in_which_numbers(brought: Path) -> None:
    recipe, typed = Recipe(), LoraConfig(rank=2, targets=("q_proj", "kproj"))
    agent = replace(recipe.agent, limits=replace(recipe.agent.limits, max_tokens=1024, max_turn_tokens=512))
    rl = replace(recipe.rl, learner=replace(recipe.rl.learner, lora=typed))
    model = ModelConfig(path="another", dtype="bfloat16")
    looked, copied, itself = model_findings(str(brought), replace(recipe, agent=agent, rl=rl, model=model))
    assert looked.state is State.OK
    assert copied == Finding(
        State.MISSING,
        "learner.lora.targets: kproj not found: LlamaForCausalLM has down_proj, gate_proj, k_proj, lm_head, o_proj, "
        "q_proj, up_proj, v_proj; all-linear takes all but the output projection",
    )
    assert itself.state is State.OK
    assert itself.what.startswith("the model itself, in bfloat16: ")


def test_a_model_without_a_tiny_copy_is_compared_itself(brought: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.learner.policy.parity_of", lambda config, attention: None)
    _, copied, itself = model_findings(str(brought), None)
    assert copied == Finding(State.OK, "no tiny copy of it can be made")
    assert itself.state is State.OK
    assert itself.what.startswith("the model itself, in float32: ")
