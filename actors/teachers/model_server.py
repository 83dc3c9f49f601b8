"""Serves a language model in the cluster: vLLM's own OpenAI server as a child process of one actor.

    actor: ModelServer ══ socket ══ supervisor (coa.llm.supervisor) ── vLLM: API server, engine      log ── in a file
           url() ── http://host:port/v1 ── clients

The server ends with the actor, even if the actor is killed. The actor ends with the server, so that a restart of the
actor restarts both. A restarted server listens at another port, unless the configuration sets the port.
"""

import asyncio
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import aiohttp

from actors.addresses import LOOPBACK, node_address
from actors.handles import Handle, start_restartable
from actors.rollout.device import PATIENT, UNRESERVED
from actors.signs import Signs
from coa.bounds import Above0, AtLeast1, PositiveShare
from coa.builds import vllm_is_for_cpus
from coa.errors import ModelServerDown
from coa.llm import supervisor

VLLM = (sys.executable, "-m", "vllm.entrypoints.openai.api_server")
LAST_LINES, LAST_CHARS = 12, 2000
"""Maximum lines and characters of the log that an error shows."""
LOOK_EVERY_S = 0.2


@dataclass(frozen=True)
class ModelServerConfig:
    """A model that vLLM serves in the cluster."""

    model: str = ""
    """Folder in Hugging Face layout, or name on the hub; empty serves no model."""
    name: str = ""
    """Name of the model in requests; if empty, `model`."""
    dtype: str = "auto"
    """Number type of the weights; auto: the type in which they are stored."""
    max_model_len: AtLeast1 = 4096
    """Maximum number of tokens of a prompt and its reply together."""
    max_concurrent: AtLeast1 = 64
    """Maximum number of requests in a batch."""
    gpus: int = 0
    """Number of GPUs over which the model is split; 0 runs it on the CPU."""
    cpus: float = 1.0
    """Number of CPUs that the server reserves in Ray."""
    threads: int = 1
    """Number of the server's CPU threads, if it runs on the CPU."""
    kv_cache_gib: Above0 = 1.0
    """Size of the KV cache in GiB, if the server runs on the CPU."""
    gpu_memory_utilization: PositiveShare = 0.85
    """Share of each GPU's memory that the server takes for weights and KV cache."""
    enforce_eager: bool = True
    """Whether compilation and CUDA graphs are disabled: the server starts sooner, but is slower on a GPU."""
    host: str | None = None
    """Address at which the server listens. None: loopback in a cluster of one node, otherwise the node's address, which
    other machines of its network can reach."""
    port: int = 0
    """Port at which the server listens; 0: a free port."""
    arguments: list[str] = field(default_factory=list)
    """Further arguments of vLLM's server, such as `[--reasoning-parser, qwen3]`."""
    start_s: Above0 = 900.0
    """Maximum seconds without a sign of progress until the server answers: megabytes that it reads, and news in its
    log."""

    PATHS: ClassVar = ("model",)


class ModelServer:
    """Starts and ends a server; `await server.start()` returns its URL. A plain class; `start_model_server` makes it an
    actor."""

    def __init__(
        self,
        config: ModelServerConfig,
        *,
        program: Sequence[str] = VLLM,
        gone: Callable[[], object] = lambda: os._exit(1),
        address: Callable[[], str] = lambda: LOOPBACK,
    ) -> None:
        """program: the command before vLLM's arguments; gone: called when a server that was up has ended; address:
        returns the host to listen at if the configuration sets none."""
        self._config, self._program, self._gone, self._address = config, tuple(program), gone, address
        self._folder = tempfile.TemporaryDirectory(prefix="model-server-", ignore_cleanup_errors=True)
        self._log = Path(self._folder.name) / "log"
        self._link: asyncio.StreamWriter | None = None
        self._ended: asyncio.Task[str] | None = None
        """Finishes when the server ends, with the server's exit status."""
        self._watch: asyncio.Task[None] | None = None
        self._url = ""
        self.pid = 0
        """Process id of the server, and of its process group."""

    async def start(self) -> str:
        """Starts the server. Returns its URL, /v1 included, once it answers; raises ModelServerDown with its last
        lines."""
        host = self._config.host or self._address()
        with closing(reserve(host, self._config.port)) as held:
            port = held.getsockname()[1]
            ended = await self._launch(
                [*self._program, *arguments_of(self._config, host, port, cpu=vllm_is_for_cpus())]
            )
            await self._answers(f"http://{host}:{port}/health", ended)
        self._url = f"http://{host}:{port}/v1"
        self._watch = asyncio.create_task(self._watch_over(ended))
        return self._url

    def url(self) -> str:
        """The server's URL; empty while the server is not up."""
        return self._url

    async def stop(self) -> None:
        """Ends the server; returns once it has ended."""
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        if self._link is not None and self._ended is not None:
            self._link.write_eof()
            await self._ended
            self._link.close()
            self._link = None
        self._folder.cleanup()
        self._url = ""

    def last_lines(self) -> str:
        """The last lines of the server's log."""
        try:
            text = self._log.read_text(errors="replace")
        except FileNotFoundError:
            return ""
        return "\n".join(text.splitlines()[-LAST_LINES:])[-LAST_CHARS:]

    async def _launch(self, command: Sequence[str]) -> "asyncio.Task[str]":
        self._log.parent.mkdir(exist_ok=True)
        ours, theirs = socket.socketpair()
        with theirs:
            reader, self._link = await asyncio.open_connection(sock=ours)
            self._ended = asyncio.create_task(self._follow(reader))
            starter = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", supervisor.__file__, str(self._log), *command),
                stdin=theirs.fileno(),
                env={**PATIENT, **os.environ, **environment_of(self._config)},
            )
            await starter.wait()  # the supervisor has detached itself
        return self._ended

    async def _follow(self, reader: asyncio.StreamReader) -> str:
        self.pid = int(await reader.readline() or 0)
        return (await reader.readline()).decode().strip() or "unknown"

    async def _answers(self, url: str, ended: "asyncio.Task[str]") -> None:
        signs, seen, limit_s = Signs([self._log]), 0, self._config.start_s
        now = asyncio.get_running_loop().time
        since = now()
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=limit_s)) as session:
            while True:
                await asyncio.wait([ended], timeout=LOOK_EVERY_S)
                if (count := signs.count(self.pid)) > seen:
                    seen, since = count, now()
                if now() - since >= limit_s:
                    raise await self._down(f"did not answer within {limit_s:g} s")
                if ended.done():
                    raise await self._down(f"ended with status {ended.result()} before it answered")
                try:
                    async with session.get(url) as response:
                        if response.status == 200:
                            return
                except (aiohttp.ClientError, TimeoutError):
                    pass  # not there yet

    async def _watch_over(self, ended: "asyncio.Task[str]") -> None:
        await asyncio.wait([ended])
        self._url = ""
        self._gone()

    async def _down(self, how: str) -> ModelServerDown:
        lines = self.last_lines()
        await self.stop()
        return ModelServerDown(f"the server of {self._config.model} {how}; its log ends:\n{lines or '(it is empty)'}")


def arguments_of(config: ModelServerConfig, host: str, port: int, *, cpu: bool = True) -> list[str]:
    """Arguments of vLLM's server. cpu: whether vLLM is built for CPUs. There chunked prefill is disabled, since a
    seeded request with a chunked prefill crashes the engine."""
    options: dict[str, object] = {
        "model": config.model,
        "served-model-name": config.name or config.model,
        "host": host,
        "port": port,
        "dtype": config.dtype,
        "max-model-len": config.max_model_len,
        "max-num-seqs": config.max_concurrent,
    }
    flags = ["--disable-uvicorn-access-log", *(["--enforce-eager"] if config.enforce_eager else [])]
    if config.gpus:
        options |= {"tensor-parallel-size": config.gpus, "gpu-memory-utilization": config.gpu_memory_utilization}
    elif not cpu:  # vLLM's build for GPUs has no other device: it takes as little as possible of the first one
        options |= {"gpu-memory-utilization": UNRESERVED, "kv-cache-memory-bytes": int(config.kv_cache_gib * 2**30)}
    else:
        options["max-num-batched-tokens"] = max(8192, config.max_model_len)
        flags.append("--no-enable-chunked-prefill")
    pairs = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    return [*pairs, *flags, *config.arguments]


def environment_of(config: ModelServerConfig) -> Mapping[str, str]:
    """Environment variables of the server, in addition to the actor's own, which set the visible GPUs."""
    if config.gpus:
        return {}
    variables = {
        "VLLM_CPU_KVCACHE_SPACE": str(max(1, round(config.kv_cache_gib))),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(config.threads),
    }
    # Even with enforce_eager, some samplers are compiled at the first request, which takes seconds.
    return variables | ({"TORCHDYNAMO_DISABLE": "1"} if config.enforce_eager else {})


def reserve(host: str, port: int) -> socket.socket:
    """A socket that reserves a port (for 0, a free port) until the server has bound it: it is bound but never
    listens."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        held.bind((host, port))
    except OSError as error:
        held.close()
        raise ModelServerDown(f"no server can listen at {host}:{port}: {os.strerror(error.errno or 0)}") from error
    return held


def start_model_server(config: ModelServerConfig, **options: object) -> Handle:
    """Creates the actor; its `start` must be called, again after each restart. options: Ray's actor options, such as
    placement."""
    settings = {"num_cpus": config.cpus, "num_gpus": config.gpus, **options}
    return start_restartable(ModelServer, settings, config, address=node_address)
