"""What is handed to vLLM: a CPU's needs, a GPU's defaults, and a recipe's word over both."""

import json
from pathlib import Path

import pytest

from actors.rollout.config import EngineConfig
from actors.rollout.device import IN_CORE, arguments, environment, message_ends

GPU = {"max_num_batched_tokens": 8192}


def test_a_cpu_gets_what_it_needs() -> None:
    assert arguments(EngineConfig(), cpu=True, max_tokens=300) == {
        "enforce_eager": True,
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": 8192,
        "kv_cache_memory_bytes": 2**30,
        "distributed_executor_backend": IN_CORE,
    }
    assert arguments(EngineConfig(kv_cache_gib=0.4), cpu=True, max_tokens=300)["kv_cache_memory_bytes"] == 429_496_729
    assert arguments(EngineConfig(), cpu=True, max_tokens=10_000)["max_num_batched_tokens"] == 10_000
    assert environment(EngineConfig(), cpu=True) == {
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "TORCHDYNAMO_DISABLE": "1",
    }


def test_a_worker_that_needs_its_own_threads_has_its_own_process() -> None:
    assert "distributed_executor_backend" not in arguments(EngineConfig(threads=2), cpu=True, max_tokens=300)


@pytest.mark.parametrize("cpu", [True, False])
def test_workers_that_share_a_model_are_processes_below_the_engines_own(cpu: bool) -> None:
    chosen = arguments(EngineConfig(tensor_parallel=2), cpu=cpu, max_tokens=300)
    assert chosen["distributed_executor_backend"] == "mp"


def test_a_gpu_gets_vllms_own_defaults_and_the_prefill_that_is_counted_with() -> None:
    assert arguments(EngineConfig(), cpu=False, max_tokens=40_000) == GPU
    assert environment(EngineConfig(), cpu=False) == {}


def test_sleep_mode_is_asked_of_a_gpu_alone() -> None:
    asleep = EngineConfig(sleep_mode=True)
    assert arguments(asleep, cpu=False, max_tokens=300) == {**GPU, "enable_sleep_mode": True}
    assert arguments(asleep, cpu=True, max_tokens=300) == arguments(EngineConfig(), cpu=True, max_tokens=300)


@pytest.mark.parametrize("cpu", [True, False])
def test_what_a_recipe_sets_holds_on_every_device(cpu: bool) -> None:
    config = EngineConfig(enforce_eager=not cpu, chunked_prefill=cpu, block_size=32, threads=4)
    chosen = arguments(config, cpu=cpu, max_tokens=300)
    assert chosen["enforce_eager"] is not cpu
    assert chosen["enable_chunked_prefill"] is cpu
    assert chosen["block_size"] == 32
    variables = environment(config, cpu=cpu)
    assert variables["OMP_NUM_THREADS"] == "4"
    assert "TORCHDYNAMO_DISABLE" not in variables


def test_a_gpu_without_chunks_has_room_for_a_whole_prompt() -> None:
    chosen = arguments(EngineConfig(chunked_prefill=False), cpu=False, max_tokens=40_000)
    assert chosen["max_num_batched_tokens"] == 40_000


def test_a_message_ends_as_the_models_folder_says_but_not_with_a_tag(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 3}))
    assert message_ends(tmp_path, frozenset()) == [3]
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 5, 7]}))
    assert message_ends(tmp_path, frozenset({5})) == [3, 7]
