"""Servers for benchmarks: `coa serve` and vLLM's own, each in its own processes, and models with random weights."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from actors.rollout.config import EngineConfig
from benchmarks.harness import ROOT

NAME = "bench"
READY_S = 300
SIZES: dict[str, dict[str, Any]] = {
    "tiny": {
        "hidden_size": 128,
        "layers": 4,
        "heads": 4,
        "key_value_heads": 2,
        "head_dim": 32,
        "intermediate_size": 256,
    },
    "small": {  # 38 M parameters
        "hidden_size": 512,
        "layers": 12,
        "heads": 8,
        "key_value_heads": 4,
        "head_dim": 64,
        "intermediate_size": 1536,
    },
}


def make_model(folder: Path, size: str, max_positions: int) -> Path:
    """An untrained policy, with a tokenizer of the tiny world's words."""
    from actors.learner.config import ModelConfig
    from actors.learner.model.load import new_model
    from coa.agent.tokenizer import save_tokenizer, train_tokenizer
    from coa.demo.world import World, WorldConfig

    world = World(WorldConfig())
    tokenizer = train_tokenizer(list(world.wiki_pages.values())[:200], world.lexicon(), vocabulary=2000)
    save_tokenizer(tokenizer, folder)
    sizes = ModelConfig(max_positions=max_positions, **SIZES[size])
    new_model(sizes, tokenizer, seed=0).save_pretrained(folder)
    return folder


def make_smollm(folder: Path) -> Path:
    """Random weights of the sizes of SmolLM2-135M, with its tokenizer (scripts/setup_slow.sh)."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    from tests.support.smollm import gguf_file

    source = gguf_file()
    if source is None:
        raise SystemExit("the packages of SmolLM2 are not installed (scripts/setup_slow.sh)")
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@contextmanager
def coa_server(model: Path, log: Path, settings: Sequence[str]) -> Iterator[str]:
    """The address of `coa serve`."""
    port = _free_port()
    words = ["serve", "--model", str(model), "--out", str(log.parent / "serve")]
    settings = (f"serving.port={port}", f"serving.name={NAME}", *settings)
    with _running([sys.executable, "-m", "jobs.cli", *words, *settings], log, {}, port, "/readyz") as url:
        yield url


@contextmanager
def vllm_server(model: Path, log: Path, config: EngineConfig, max_tokens: int) -> Iterator[str]:
    """The address of vLLM's own server, with what a CPU needs, as our engine has it."""
    from actors.rollout.device import arguments, environment

    port = _free_port()
    chosen = arguments(config, cpu=True, max_tokens=max_tokens, gpus=0)
    del chosen["distributed_executor_backend"]  # a class, which the command line does not take
    words = [*_words(chosen), "--dtype", config.dtype, "--max-model-len", str(max_tokens), "--disable-log-stats"]
    words += ["--max-num-seqs", str(config.max_concurrent), "--generation-config", "vllm"]
    words += ["--model", str(model), "--served-model-name", NAME, "--host", "127.0.0.1", "--port", str(port)]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *words]
    with _running(command, log, environment(config, cpu=True), port, "/health") as url:
        yield url


def _words(chosen: dict[str, object]) -> Iterator[str]:
    for name, value in chosen.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            yield f"--{flag}" if value else f"--no-{flag}"
        else:
            yield from (f"--{flag}", str(value))


@contextmanager
def _running(command: Sequence[str], log: Path, variables: dict[str, str], port: int, path: str) -> Iterator[str]:
    url = f"http://127.0.0.1:{port}"
    _end_as_asked()
    with log.open("w") as out:
        server = subprocess.Popen(
            command, cwd=ROOT, stdout=out, stderr=out, env={**os.environ, **variables}, start_new_session=True
        )
        try:
            _wait(server, f"{url}{path}", log)
            yield url
        finally:
            server.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                server.wait(60)
            with suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)


def _end_as_asked() -> None:
    """Servers end by an interrupt, which children of a shell's background job would ignore; and where this process is
    terminated, they are ended, too."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


def _wait(server: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline and server.poll() is None:
        with suppress(OSError), urllib.request.urlopen(url, timeout=5):
            return
        time.sleep(0.2)
    raise SystemExit(f"{' '.join(server.args[:4])} did not start:\n{log.read_text()[-3000:]}")  # pyright: ignore


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]
