"""What a recipe asks of GPUs and of the libraries that use them: refused in one line, before anything is started."""

import re
from collections import namedtuple
from pathlib import Path

import pytest

from actors.learner.config import LearnerConfig
from actors.learner.deepspeed_settings import deepspeed_config
from coa.config import load
from coa.errors import UserError
from coa.planning.memory import VERSIONS_IN_MEMORY
from jobs.recipe import devices, machine
from jobs.recipe.findings import Service
from jobs.recipe.schema import Recipe
from jobs.recipe.services import unasked

Space = namedtuple("Space", "total used free")
ROOT = Path(__file__).parents[3]
RECIPES = sorted((ROOT / "jobs/recipes").glob("*.yaml"))


def recipe(*overrides: str, name: str | None = None) -> Recipe:
    return load(Recipe, ROOT / f"jobs/recipes/{name}.yaml" if name else None, overrides)


@pytest.mark.parametrize("path", RECIPES, ids=[path.stem for path in RECIPES])
def test_every_recipe_passes(path: Path) -> None:
    config = load(Recipe, path, ())
    devices.check_gpus(config)
    devices.check_learners(config)


@pytest.mark.parametrize(
    ("gpus", "split", "fine"), [(0, 1, True), (0, 2, True), (0.5, 1, True), (2, 2, True), (2, 1, False), (1, 2, False)]
)
def test_an_engine_has_as_many_gpus_as_its_model_is_split_over(gpus: float, split: int, fine: bool) -> None:
    config = recipe(f"placement.engine_gpus={gpus}", f"engine.tensor_parallel={split}", "session.address=10.0.0.1:6379")
    if fine:
        devices.check_gpus(config)
        return
    with pytest.raises(UserError, match=rf"engine_gpus is {gpus:g} and engine\.tensor_parallel is {split}: .* same"):
        devices.check_gpus(config)


@pytest.mark.parametrize("key", ["engine", "learner", "scorer"])
def test_a_gpu_that_is_there_and_that_the_build_can_not_use(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = recipe(f"placement.{key}_gpus=1")
    for there, for_cpus, refused in ((1.0, True, True), (1.0, False, False), (0.0, True, False)):
        monkeypatch.setattr(devices, "this_node", lambda _, there=there: {"CPU": 1.0, "GPU": there})
        for name in ("torch_is_for_cpus", "vllm_is_for_cpus"):
            monkeypatch.setattr(devices, name, lambda for_cpus=for_cpus: for_cpus)
        if refused:
            with pytest.raises(UserError, match=rf"placement\.{key}_gpus is 1, and the installed \w+ is built for"):
                devices.check_gpus(config)
        else:
            devices.check_gpus(config)


def test_adapters_want_their_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "find_spec", lambda _: None)
    devices.check_learners(recipe())
    with pytest.raises(UserError, match=r"sft\.learner\.lora\.rank is 4, .* pip install -e '\.\[lora\]'"):
        devices.check_learners(recipe("sft.learner.lora.rank=4"))


def test_the_image_has_what_the_recipes_for_gpus_need() -> None:
    needed = {"gpu"} | {"lora" for path in RECIPES if load(Recipe, path, ()).rl.learner.lora.rank}
    [extras] = re.findall(r"--editable '\.\[([\w,]+)\]'", (ROOT / "Dockerfile").read_text())
    assert needed == {"gpu", "lora"} <= set(extras.split(","))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("{zero_optimization: {stage: 2}}", "zero_optimization.stage is set by other settings of rl.learner"),
        ("{zero_optimization: {reduce_bucket_size: 5}}", "reduce_bucket_size is set by other settings"),
        ("{bf16: {enabled: false}}", "bf16.enabled is set by other settings"),
        ("{bf16: {check_grad_overflow: false}}", "bf16.check_grad_overflow is set by other settings"),
        ("{zero_optimization: {compute_grad_norm: false}}", "compute_grad_norm is set by other settings"),
        ("{optimizer: {type: Adam}}", "optimizer.type would not be used"),
        ("{gradient_clipping: 2}", "gradient_clipping is set by other settings"),
        ("{zero_optimization: {overlap_comm: true}}", "overlap_comm needs rl.learner.zero_stage of 2 or 3"),
    ],
)
def test_deepspeeds_settings_that_the_learner_determines_are_refused(given: str, said: str) -> None:
    config = recipe(f"rl.learner.deepspeed={given}", "model.dtype=bfloat16")
    with pytest.raises(UserError, match=re.escape(said)):
        devices.check_learners(config)


def test_other_settings_of_deepspeed_are_passed_on() -> None:
    given = "{zero_optimization: {overlap_comm: false, zero_hpz_partition_size: 8}, wall_clock_breakdown: true}"
    config = recipe(f"rl.learner.deepspeed={given}", "rl.learner.zero_stage=3")
    devices.check_learners(config)
    settings = deepspeed_config(config.rl.learner, "float32", gpu=True)
    assert settings["wall_clock_breakdown"] is True
    zero = settings["zero_optimization"]
    assert (zero["overlap_comm"], zero["zero_hpz_partition_size"], zero["stage"]) == (False, 8, 3)


def test_what_stage_1_does_anyway_may_be_said() -> None:
    devices.check_learners(recipe("rl.learner.deepspeed={zero_optimization: {overlap_comm: false}}"))


@pytest.mark.parametrize(
    ("stage", "gpu", "overlaps"), [(1, True, False), (2, True, True), (3, True, True), (3, False, False)]
)
def test_communication_overlaps_where_deepspeed_can(stage: int, gpu: bool, overlaps: bool) -> None:
    settings = deepspeed_config(LearnerConfig(zero_stage=stage), "float32", gpu=gpu)
    assert settings["zero_optimization"]["overlap_comm"] is overlaps


@pytest.mark.parametrize(
    ("where", "address", "warned"),
    [
        ("m at http://127.0.0.1:8001/v1", "10.0.0.1:6379", True),
        ("http://localhost:8000/retrieve", "10.0.0.1:6379", True),
        ("m at http://[::1]:8001/v1", "10.0.0.1:6379", True),
        ("m at http://10.0.0.2:8001/v1", "10.0.0.1:6379", False),
        ("m at http://127.0.0.1:8001/v1", "", False),
    ],
)
def test_a_service_at_a_loopback_address_is_not_on_other_nodes(
    where: str, address: str, warned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    config = recipe(*([f"session.address={address}"] if address else []))

    async def ask() -> None: ...

    [found] = unasked(config, [Service("judge", where, None, ask)])
    assert bool(found.caution) is warned
    assert not found.looked


@pytest.mark.parametrize(("total", "free", "said"), [(16, 16, "refused"), (64, 16, "caution"), (64, 60, "")])
def test_versions_of_a_7b_model_need_their_shared_memory(
    total: int, free: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    config = recipe(name="code_7b")
    built = machine.architecture(config.model)
    assert built is not None
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: Space(total << 30, 0, free << 30))
    if said == "refused":
        with pytest.raises(UserError, match=rf"{VERSIONS_IN_MEMORY} versions of the weights .* remount,size=\d\dG"):
            machine._in_shared_memory(built, "bfloat16")
        return
    found = machine._in_shared_memory(built, "bfloat16")
    assert found.caution.partition(":")[0] == said
