"""What is handed to vLLM: a CPU's needs, a GPU's defaults, and a recipe's word over both; and what a killed engine
leaves outside of its run's folder."""

import fcntl
import json
import multiprocessing
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from actors.rollout import device
from actors.rollout.config import FIXED_ARGUMENTS, OWN_SETTINGS, EngineConfig, check_arguments
from actors.rollout.device import (
    FOLDER_PREFIX,
    IN_CORE,
    SHARED_MEMORY,
    engine_args,
    environment,
    message_ends,
    preloaded,
    sweep,
)
from actors.weights.host import WORKER
from coa.errors import UserError

COMMON = {
    "enable_prefix_caching": True,
    "scheduling_policy": "priority",
    "logprobs_mode": "processed_logprobs",
    "worker_extension_cls": WORKER,
    "dtype": "float32",
    "max_model_len": 300,
    "max_num_seqs": 128,
    "tensor_parallel_size": 1,
}
GPU = {**COMMON, "max_num_batched_tokens": 8192, "gpu_memory_utilization": 0.85}

ROOT = Path(__file__).parents[3]
ENGINE = """
import multiprocessing
import socket
import sys
from actors.rollout.device import own_place
folder = own_place()
socket.socket(socket.AF_UNIX).bind(str(folder / "rpc"))
lock = multiprocessing.get_context("spawn").Lock()
print(folder.name, flush=True)
sys.stdin.read()
"""


def arguments(config: EngineConfig, *, cpu: bool, max_tokens: int, gpus: float | None = None) -> dict[str, Any]:
    """With a GPU, unless it is said otherwise, where there may be one."""
    return device.arguments(config, cpu=cpu, max_tokens=max_tokens, gpus=float(not cpu) if gpus is None else gpus)


def test_a_cpu_gets_what_it_needs() -> None:
    assert arguments(EngineConfig(), cpu=True, max_tokens=300) == {
        **COMMON,
        "enforce_eager": True,
        "enable_chunked_prefill": False,
        "block_size": 32,
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


@pytest.mark.parametrize("threads", [None, 1, 2])
def test_a_worker_on_a_cpu_runs_in_its_cores_process(threads: int | None) -> None:
    config = EngineConfig(threads=threads)
    assert arguments(config, cpu=True, max_tokens=300)["distributed_executor_backend"] == IN_CORE
    assert environment(config, cpu=True)["OMP_NUM_THREADS"] == str(threads or 1)


@pytest.mark.parametrize("cpu", [True, False])
def test_workers_that_share_a_model_are_processes_below_the_engines_own(cpu: bool) -> None:
    chosen = arguments(EngineConfig(tensor_parallel=2), cpu=cpu, max_tokens=300)
    assert chosen["distributed_executor_backend"] == "mp"


def test_a_gpu_gets_vllms_own_defaults_and_the_prefill_that_is_counted_with() -> None:
    assert arguments(EngineConfig(), cpu=False, max_tokens=40_000) == {**GPU, "max_model_len": 40_000}
    assert environment(EngineConfig(dtype="bfloat16"), cpu=False) == {}


def test_an_engine_without_a_gpu_of_its_own_takes_little_of_one_and_multiplies_as_its_learner_does() -> None:
    """vLLM's build for GPUs has no other device: several such engines, and a desktop, find room on one card."""
    found = arguments(EngineConfig(kv_cache_gib=0.5), cpu=False, max_tokens=300, gpus=0)
    assert found == {**GPU, "gpu_memory_utilization": 0.02, "kv_cache_memory_bytes": 2**29}
    assert environment(EngineConfig(), cpu=False) == {"TRITON_F32_DEFAULT": "ieee"}


def test_what_a_recipe_passes_on_is_given_to_vllm_in_place_of_our_own() -> None:
    config = EngineConfig(arguments={"max_num_batched_tokens": 4096, "seed": 3})
    assert "max_num_batched_tokens" not in arguments(config, cpu=False, max_tokens=300)


def test_each_argument_is_set_by_a_recipes_setting_is_fixed_or_may_be_passed_on() -> None:
    given = set[str]()
    for cpu in (True, False):
        for gpus in (0.0, 1.0):
            config = EngineConfig(sleep_mode=True, tensor_parallel=2, enforce_eager=True, block_size=1)
            given |= arguments(config, cpu=cpu, max_tokens=300, gpus=gpus).keys()
    assert given - OWN_SETTINGS.keys() - FIXED_ARGUMENTS.keys() == {"max_num_batched_tokens", "kv_cache_memory_bytes"}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("dtype", r"engine\.arguments\.dtype has a setting of its own: engine\.dtype"),
        ("logprobs_mode", r"engine\.arguments\.logprobs_mode can't be changed: the learner is trained with"),
        ("atention_backend", r"atention_backend is no argument of vLLM's engine: is attention_backend meant \?"),
    ],
)
def test_what_may_not_be_passed_on_is_one_line(name: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        check_arguments({name: 1})


def test_what_vllm_knows_may_be_passed_on() -> None:
    check_arguments({"attention_backend": "FLASH_ATTN", "max_num_batched_tokens": 4096, "seed": 3})


def test_gpus_that_the_build_can_not_use_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "on_cpu", lambda: True)
    with pytest.raises(UserError, match=r"^placement\.engine_gpus is 0\.5, and the installed vLLM is built for CPUs: "):
        device.start_llm("model", EngineConfig(), max_tokens=10, tag_tokens=frozenset(), gpus=0.5)


def test_sleep_mode_is_asked_of_a_gpu_alone() -> None:
    asleep = EngineConfig(sleep_mode=True)
    assert arguments(asleep, cpu=False, max_tokens=300) == {**GPU, "enable_sleep_mode": True}
    assert arguments(asleep, cpu=True, max_tokens=300) == arguments(EngineConfig(), cpu=True, max_tokens=300)


@pytest.mark.parametrize(
    ("hybrid", "attention_free"),
    [
        pytest.param(True, False, id="states beside attention"),
        pytest.param(False, True, id="states alone"),
        pytest.param(False, False, id="attention alone"),
    ],
)
def test_a_model_that_carries_states_has_no_prefix_cache_on_a_cpu(
    hybrid: bool, attention_free: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm import AsyncEngineArgs

    class Looked(AsyncEngineArgs):
        def create_model_config(self, *_: Any, **__: Any) -> Any:
            return SimpleNamespace(is_hybrid=hybrid, is_attention_free=attention_free)

    def cached(config: EngineConfig, *, cpu: bool) -> bool | None:
        return engine_args({"model": "m", **arguments(config, cpu=cpu, max_tokens=300)}, cpu=cpu).enable_prefix_caching

    monkeypatch.setattr("vllm.AsyncEngineArgs", Looked)
    assert cached(EngineConfig(), cpu=True) is not (hybrid or attention_free)
    assert cached(EngineConfig(chunked_prefill=True), cpu=True) is True
    assert cached(EngineConfig(), cpu=False) is True
    assert cached(EngineConfig(chunked_prefill=False), cpu=False) is True


@pytest.mark.parametrize("cpu", [True, False])
def test_what_a_recipe_sets_holds_on_every_device(cpu: bool) -> None:
    config = EngineConfig(enforce_eager=not cpu, chunked_prefill=cpu, block_size=64, threads=4)
    chosen = arguments(config, cpu=cpu, max_tokens=300)
    assert chosen["enforce_eager"] is not cpu
    assert chosen["enable_chunked_prefill"] is cpu
    assert chosen["block_size"] == 64
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


def test_openmp_in_a_folder_with_blanks_is_preloaded_by_its_name_without_an_error_of_the_loader(tmp_path: Path) -> None:
    import torch

    folder = tmp_path / "größe 1\tlib"
    folder.mkdir()
    there = (Path(torch.__file__).parent / "lib").resolve()
    for library in there.glob("libgomp*"):
        (folder / library.name).symlink_to(library)
    chosen = preloaded(folder, {"LD_LIBRARY_PATH": "/elsewhere"})
    assert chosen["LD_LIBRARY_PATH"] == f"{folder}:/elsewhere"
    maps = "print(open('/proc/self/maps').read())"
    done = subprocess.run([sys.executable, "-c", maps], env=chosen, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert str(there / chosen["LD_PRELOAD"]) in done.stdout
    plain = tmp_path / "plain"
    plain.symlink_to(folder)
    assert preloaded(plain, {}) == {}, "vLLM names what has no blanks"
    assert preloaded(tmp_path / "a b", {}) == {}, "there is none"
    assert preloaded(folder, {"LD_PRELOAD": "/usr/lib/libiomp5.so"}) == {}, "somebody has chosen another one"
    assert preloaded(folder, {"LD_PRELOAD": "libx.so"})["LD_PRELOAD"] == f"libx.so:{chosen['LD_PRELOAD']}"


def engine(folder: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", ENGINE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={"TMPDIR": str(folder), "PATH": "/usr/bin:/bin"},
    )


def test_a_folder_that_another_engine_sweeps_before_it_is_locked_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, swept = fcntl.flock, []

    def after_a_sweep(descriptor: int, kind: int) -> None:
        if not swept:
            swept.extend(tmp_path.iterdir())
            swept[0].rmdir()
        lock(descriptor, kind)

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(device.fcntl, "flock", after_a_sweep)
    process: Any = multiprocessing.current_process()
    monkeypatch.setitem(process._config, "semprefix", "/mp")
    folder = device.own_place()
    assert folder.is_dir()
    assert folder not in swept


def semaphores(name: str) -> list[Path]:
    return list(SHARED_MEMORY.glob(f"sem.{name}-*"))


def test_what_a_killed_engine_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    if not SHARED_MEMORY.is_dir():
        pytest.skip("semaphores are no files here")
    (tmp_path / f"{FOLDER_PREFIX}file").touch()
    with engine(tmp_path) as dead, engine(tmp_path) as alive:
        assert dead.stdout is not None
        assert alive.stdout is not None
        one, two = dead.stdout.readline().strip(), alive.stdout.readline().strip()
        assert (len(semaphores(one)), len(semaphores(two))) == (1, 1)
        subprocess.run(["pkill", "-KILL", "-P", str(dead.pid)], check=False)  # what would tidy up, as Ray does
        dead.kill()
        dead.wait()
        sweep(tmp_path)
        assert not (tmp_path / one).exists()
        assert semaphores(one) == []
        assert (tmp_path / two / "rpc").is_socket()
        assert len(semaphores(two)) == 1
        with pytest.raises(ConnectionRefusedError), socket.socket(socket.AF_UNIX) as client:
            client.connect(str(tmp_path / two / "rpc"))  # bound, and nobody listens
        alive.communicate("")
    sweep(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [f"{FOLDER_PREFIX}file"]
    assert semaphores(two) == []
