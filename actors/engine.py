"""A rollout engine: vLLM's AsyncLLM and the agent loop in one actor, so that a growing context stays in its cache.

play(task) --> episodes --> score --> credit --> (GroupRecord, samples)     both return values, owned by the caller
sync(version, weights) --> pause, load, resume; episodes in flight go on under the new weights
"""

import asyncio
import functools
import itertools
import json
import os
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from actors.weight_transfer import BACKEND, in_shared_memory
from coa.codec import Codec, Stops
from coa.episode import AgentConfig, Completion, Generate
from coa.errors import InfrastructureError, SyncError
from coa.profiles import profile as find_profile
from coa.rewards import RewardConfig
from coa.rollout import EpisodeRecord, FailedGroup, GroupRecord, play, tell, to_learn
from coa.seeds import derive
from coa.staleness import Ticket
from coa.tools.client import CallMany, ToolClient
from coa.types import Floats, Sample, Scored, Task, Tokens
from coa.weights import Weights

EVALUATION = -1
"""The group number of evaluation episodes."""
FIRST = -1
"""Priority of probes: before every episode (smaller is earlier)."""


@dataclass(frozen=True)
class SamplingConfig:
    temperature: float = 1.0
    """0 is greedy decoding."""
    top_p: float = 1.0


class KvOnUpdate(Enum):
    """What becomes of the KV cache of episodes under way when new weights are loaded."""

    recompute = "recompute"
    """A token's log-prob is exactly its version's."""
    keep = "keep"
    """Faster; after an update only the recorded log-prob of a token holds."""


@dataclass(frozen=True)
class EngineConfig:
    dtype: str = "float32"
    max_concurrent: int = 128
    """Requests in a batch of the engine."""
    block_size: int | None = None
    """Tokens of a block of the KV cache; only whole blocks are shared. None takes vLLM's choice, 128 on CPU."""
    kv_cache_gib: float = 1.0
    """On CPU; on a GPU `gpu_memory_utilization` decides."""
    gpu_memory_utilization: float = 0.85
    tensor_parallel: int = 1
    enforce_eager: bool = True
    threads: int = 1
    """CPU threads of the engine."""
    kv_on_update: KvOnUpdate = KvOnUpdate.recompute
    probe_tolerance: float = 1e-4
    """Largest difference of log-probs between learner and engine after a sync."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A sequence with the learner's log-probs of all its tokens but the first, to hold an engine's against."""

    token_ids: Tokens
    logprobs: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncReport:
    version: int
    logprob_diff: float
    pause_s: float
    """For how long no token was generated."""


@dataclass(frozen=True, slots=True)
class BusyReport:
    """Wall-clock spans in which the engine was generating, since it started."""

    spans: tuple[tuple[float, float], ...]


class BusyClock:
    """Notes the spans in which something is under way and nothing holds it up."""

    def __init__(self) -> None:
        self._under_way = 0
        self._paused = False
        self._since: float | None = None
        self._spans: list[tuple[float, float]] = []

    def enter(self) -> None:
        self._under_way += 1
        self._note()

    def leave(self) -> None:
        self._under_way -= 1
        self._note()

    def pause(self, paused: bool) -> None:
        self._paused = paused
        self._note()

    def _note(self) -> None:
        busy = self._under_way > 0 and not self._paused
        if busy and self._since is None:
            self._since = time.time()
        elif not busy and self._since is not None:
            self._spans.append((self._since, time.time()))
            self._since = None

    def report(self) -> BusyReport:
        current = () if self._since is None else ((self._since, time.time()),)
        return BusyReport((*self._spans, *current))


class RolloutEngine:
    """A plain class; on Ray it is an async actor with many calls under way at once."""

    def __init__(
        self,
        model_dir: str,
        *,
        config: EngineConfig,
        agent: AgentConfig,
        reward: RewardConfig,
        call_many: CallMany,
        seed: int,
    ) -> None:
        self._config, self._agent, self._reward, self._seed = config, agent, reward, seed
        self._codec = Codec.load(Path(model_dir))
        self._llm: Any = start_llm(model_dir, config, agent, self._codec.tag_tokens())
        self._tools = ToolClient(call_many)
        self._stops: dict[str, Stops] = {}
        self._requests = itertools.count()
        self._version = 0
        self._syncs = 0
        """How often weights were loaded: part of the cache's salt, since a version may be made twice."""
        self._busy = BusyClock()
        self._syncing = asyncio.Lock()

    async def ready(self, version: int = 0) -> int:
        """Names the weights that the engine was started with, the first time; returns its process id."""
        if self._syncs == 0:
            self._syncs, self._version = 1, version
            await self._llm.update_weight_version(str(version))
        return os.getpid()

    async def version(self) -> int:
        return int(await self._llm.get_weight_version())

    def busy(self) -> BusyReport:
        return self._busy.report()

    async def play(
        self, task: Task, ticket: Ticket, size: int, sampling: SamplingConfig
    ) -> tuple[GroupRecord | FailedGroup, tuple[Sample, ...]]:
        """A group to learn from. Its seeds depend on run seed, task, group, sample and turn, and on nothing else."""
        group = await self._play(task, ticket.group, range(size), sampling)
        if isinstance(group, FailedGroup):
            return group, ()
        record = GroupRecord(group=ticket.group, task=task, episodes=tuple(tell(scored) for scored in group))
        return record, to_learn(group)

    async def evaluate(
        self, task: Task, samples: Sequence[int], sampling: SamplingConfig, agent: AgentConfig | None = None
    ) -> tuple[EpisodeRecord, ...] | FailedGroup:
        """Episodes to look at; no training group has the seeds of group EVALUATION.

        `agent`: how the policy is asked, where not as the engine was started; its budget may not be larger.
        """
        group = await self._play(task, EVALUATION, samples, sampling, agent)
        return group if isinstance(group, FailedGroup) else tuple(tell(scored) for scored in group)

    async def _play(
        self,
        task: Task,
        group: int,
        samples: Sequence[int],
        sampling: SamplingConfig,
        agent: AgentConfig | None = None,
    ) -> list[Scored] | FailedGroup:
        try:
            return await play(
                task,
                samples,
                codec=self._codec,
                generate=[self.speaker(task, sampling, group, sample) for sample in samples],
                use_tool=self._tools,
                agent=agent or self._agent,
                reward=self._reward,
            )
        except InfrastructureError as error:
            return FailedGroup(group=group, where=type(error).__name__, why=str(error))

    def speaker(self, task: Task, sampling: SamplingConfig, group: int, sample: int) -> Generate:
        from vllm.sampling_params import StructuredOutputsParams

        free = turn_params(sampling, self._stops_of(task.profile))
        # A grammar's end is the turn's. With stop tokens, any of them could come there, also another tool's.
        held = turn_params(sampling, Stops((), ()))

        async def speak(prompt: Tokens, *, turn: int, max_tokens: int, constraint: str | None) -> Completion:
            params = (free if constraint is None else held).clone()
            params.max_tokens = max_tokens
            if constraint is not None:
                params.structured_outputs = StructuredOutputsParams(grammar=constraint)
            if sampling.temperature > 0:
                params.seed = derive(self._seed, task.id, group, sample, turn)
            # Older groups first: their deadline comes first.
            return await self._generate(prompt, params, priority=max(group, 0))

        return speak

    def _stops_of(self, name: str) -> Stops:
        if name not in self._stops:
            self._stops[name] = self._codec.stops(find_profile(name))
        return self._stops[name]

    async def _generate(self, prompt: Tokens, params: Any, *, priority: int) -> Completion:
        # The salt keeps blocks computed under older weights out of this request.
        request = {"prompt_token_ids": prompt.tolist(), "cache_salt": str(self._syncs)}
        self._busy.enter()
        try:
            final = await self._ask(request, params, str(next(self._requests)), priority)
        finally:
            self._busy.leave()
        output = final.outputs[0]
        if output.finish_reason not in ("stop", "length"):
            raise InfrastructureError(f"the engine ended a request: {output.finish_reason}")
        ended = output.finish_reason == "stop"
        token_ids = np.asarray(output.token_ids, np.int32)
        if ended and params.structured_outputs is not None:
            token_ids = token_ids[:-1]  # the mark of a message's end is no part of a chain
        versions = np.empty(len(token_ids), np.int32)
        for span in output.weight_versions:
            versions[span.start : span.end] = int(span.version)  # the last span may reach beyond what is kept
        return Completion(
            token_ids=token_ids,
            logprobs=np.asarray(sampled_logprobs(output.logprobs, len(token_ids)), np.float32),
            versions=versions,
            ended=ended,
        )

    async def _ask(self, request: dict[str, Any], params: Any, name: str, priority: int) -> Any:
        """The finished answer to a request. Where vLLM's core process has died, this one ends too: what restarts an
        engine's actor then applies."""
        from vllm.v1.engine.exceptions import EngineDeadError

        final: Any = None
        try:
            async for output in self._llm.generate(request, params, name, priority=priority):
                final = output
        except EngineDeadError:
            os._exit(1)
        return final

    async def sync(self, version: int, weights: Weights, probes: Sequence[Probe]) -> SyncReport:
        """Loads weights and shows that they are the learner's; raises SyncError where they are not.

        Ray hands `weights` over from the object store; episodes under way are paused meanwhile, not ended.
        """
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        async with self._syncing:
            with in_shared_memory(weights) as path:
                async with self._paused() as pause:
                    await self._llm.start_weight_update()
                    await self._llm.update_weights(WeightTransferUpdateRequest(update_info={"path": str(path)}))
                    await self._llm.finish_weight_update(weight_version=str(version))
                    self._version = version
                    self._syncs += 1
            return await self.check(version, probes, pause_s=pause[0])

    async def check(self, version: int, probes: Sequence[Probe], *, pause_s: float = 0.0) -> SyncReport:
        """Compares version and log-probs with the learner's; raises SyncError."""
        if (runs := await self.version()) != version:
            raise SyncError(f"engine runs version {runs}, not {version}")
        differences = await asyncio.gather(*(self._probe(probe) for probe in probes))
        # NaN stays NaN here, and fails the comparison.
        worst = float(np.max(differences, initial=0.0))
        if not worst <= self._config.probe_tolerance:
            raise SyncError(
                f"version {version}: engine and learner log-probs differ by {worst:.2e}, "
                f"more than {self._config.probe_tolerance:.0e}"
            )
        return SyncReport(version=version, logprob_diff=worst, pause_s=pause_s)

    @asynccontextmanager
    async def _paused(self) -> AsyncIterator[list[float]]:
        """No request is worked on within; the seconds are in the list afterwards."""
        seconds = [0.0]
        began = time.monotonic()
        self._busy.pause(True)
        await self._llm.pause_generation(mode="keep", clear_cache=self._config.kv_on_update is KvOnUpdate.recompute)
        try:
            yield seconds
        finally:
            await self._llm.resume_generation()
            self._busy.pause(False)
            seconds[0] = time.monotonic() - began

    async def _probe(self, probe: Probe) -> float:
        return float(np.abs(await self.logprobs(probe.token_ids) - probe.logprobs).max())

    async def logprobs(self, token_ids: Tokens) -> Floats:
        """Log-probs of all tokens but the first. A request with a salt of its own: nothing comes from a cache."""
        from vllm import SamplingParams

        ids = token_ids.tolist()
        params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0, detokenize=False)
        name = f"probe-{next(self._requests)}"
        final = await self._ask({"prompt_token_ids": ids, "cache_salt": name}, params, name, FIRST)
        found = [entry[token].logprob for token, entry in zip(ids[1:], final.prompt_logprobs[1:], strict=True)]
        return np.asarray(found, np.float32)

    def shutdown(self) -> None:
        self._llm.shutdown()


def message_ends(model: Path, tag_tokens: frozenset[int]) -> list[int]:
    """The tokens that end a message, by the model's folder, without tags: a turn's own stops are in its request, and
    a grammar could not hold a token that always ends a request."""
    path = model / "generation_config.json"
    ids = json.loads((path if path.exists() else model / "config.json").read_text()).get("eos_token_id")
    return [one for one in ([ids] if isinstance(ids, int) else ids or []) if one not in tag_tokens]


def turn_params(sampling: SamplingConfig, stops: Stops) -> Any:
    """vLLM's sampling parameters of a turn, but for its seed and its length."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        logprobs=0,
        flat_logprobs=True,
        stop=list(stops.strings) or None,
        stop_token_ids=list(stops.token_ids) or None,
        include_stop_str_in_output=True,
        detokenize=bool(stops.strings),
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def sampled_logprobs(logprobs: Any, count: int) -> list[float]:
    """The sampled token's log-prob at each place of vLLM's flat log-probs."""
    return [logprobs.logprobs[logprobs.start_indices[i]] for i in range(count)]


def start_llm(model_dir: str, config: EngineConfig, agent: AgentConfig, tag_tokens: frozenset[int]) -> Any:
    """AsyncLLM, set up so that a request's tokens don't depend on the requests beside it.

    Chunked prefill is off: on CPU a seeded request whose prefill is cut ends the engine.
    """
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(max(1, round(config.kv_cache_gib))))
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    os.environ["OMP_NUM_THREADS"] = str(config.threads)
    if config.enforce_eager:
        # Some samplers are compiled even so, at the first request, for seconds.
        os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    from vllm import AsyncEngineArgs
    from vllm.config import WeightTransferConfig
    from vllm.v1.engine.async_llm import AsyncLLM

    length = agent.limits.max_tokens
    arguments = functools.partial(
        AsyncEngineArgs,
        model=model_dir,
        dtype=config.dtype,  # pyright: ignore[reportArgumentType]
        max_model_len=length,
        max_num_seqs=config.max_concurrent,
        max_num_batched_tokens=max(8192, length),
        enable_chunked_prefill=False,
        enable_prefix_caching=True,
        enforce_eager=config.enforce_eager,
        block_size=config.block_size,  # pyright: ignore[reportArgumentType]
        tensor_parallel_size=config.tensor_parallel,
        gpu_memory_utilization=config.gpu_memory_utilization,
        scheduling_policy="priority",
        logprobs_mode="processed_logprobs",
        weight_transfer_config=WeightTransferConfig(backend=BACKEND),
        disable_log_stats=True,
    )
    # Of the model folder's defaults only what ends a message is taken: all else is in the requests.
    with tempfile.TemporaryDirectory() as folder:
        ends = {"eos_token_id": message_ends(Path(model_dir), tag_tokens)}
        Path(folder, "generation_config.json").write_text(json.dumps(ends))
        return AsyncLLM.from_engine_args(arguments(generation_config=folder))
