"""Wraps vLLM in a few methods; the engine's actor and the episode runner use nothing else of vLLM."""

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from actors.messages import CacheStats
from actors.rollout.clocks import BusyClock, BusyReport, TimeLimits
from actors.rollout.config import EngineConfig, KvOnUpdate, SamplingConfig
from actors.rollout.device import start_llm
from actors.rollout.kv_accounting import EpisodeCache, KvAccounting
from actors.rollout.prefill import PrefillPace, computed_tokens
from actors.rollout.sampling import changed
from actors.rollout.sleep import Sleeper
from actors.rollout.structured_outputs import going_on
from actors.weights.checks.path_check import check_path
from actors.weights.loader import ANSWER_S, WeightLoader
from actors.weights.manifest import Weights
from actors.weights.transport import Published
from coa.agent.codec import Stops
from coa.agent.episode import Ask
from coa.agent.journal import Said
from coa.errors import InfrastructureError
from coa.types import Floats, Tokens

if TYPE_CHECKING:
    import vllm.logprobs
    import vllm.outputs
    import vllm.v1.engine.output_processor
    from vllm.v1.engine.async_llm import AsyncLLM

SLACK = 4
"""Multiple of the expected time after which an answer of the core is late."""
UNMEASURED_S = 300.0
"""Maximum seconds for an answer before a prefill was measured."""
FIRST = -1
"""Priority of log-prob requests: before every episode (smaller is earlier)."""
OnTokens = Callable[[Tokens], None]
"""Callback that takes the tokens of a turn under way as they come."""


class PolicyAdapter:
    """The policy on vLLM: generates turns, computes log-probs, and loads weights.

    If vLLM's core process has died, this process exits too, so that the pool replaces the engine's actor.
    """

    def __init__(
        self,
        model_dir: str,
        config: EngineConfig,
        *,
        max_tokens: int,
        tag_tokens: frozenset[int],
        measured: bool = False,
        gpus: float = 0.0,
    ) -> None:
        """`max_tokens`: maximum length of an episode. `tag_tokens`: ids of the tokens that are tags. `measured`:
        whether vLLM records its metrics in this process's Prometheus registry. `gpus`: reserved for the engine."""
        self._config = config
        self._llm = start_llm(
            model_dir, config, max_tokens=max_tokens, tag_tokens=tag_tokens, measured=measured, gpus=gpus
        )
        self._requests = itertools.count()
        self._model_dir = Path(model_dir)
        self._weights = WeightLoader(
            self._llm,
            clear_cache=config.kv_on_update is KvOnUpdate.recompute,
            workers=config.tensor_parallel,
            on_pause=self._stand_still,
            patience=self.patience_s,
        )
        self._closed = False
        self._loading = asyncio.Lock()
        self._sleeper = Sleeper(self._llm)
        self._busy = BusyClock(lambda: self.tokens)
        self.limits = TimeLimits()
        self.tokens = 0
        """Sampled so far, those of turns under way among them."""
        self._kv = KvAccounting()
        self._prefill = PrefillPace()
        self._count_tokens()

    def _count_tokens(self) -> None:
        processor = self._llm.output_processor
        process = processor.process_outputs

        def count(
            engine_core_outputs: "list[vllm.v1.engine.EngineCoreOutput]", *rest: Any, **named: Any
        ) -> "vllm.v1.engine.output_processor.OutputProcessorOutput":
            self._prefill.stepped(map(computed_tokens, engine_core_outputs))
            for output in engine_core_outputs:
                self.tokens += len(output.new_token_ids)
                # vLLM adds a hyphen and eight characters to the name that a request is given.
                self._kv.step(output.request_id[:-9], output)
            return process(engine_core_outputs, *rest, **named)

        processor.process_outputs = count

    @property
    def llm(self) -> "AsyncLLM":
        """vLLM's AsyncLLM, for the request handlers of vLLM's server."""
        return self._llm

    @property
    def generating(self) -> int:
        """Number of requests under way."""
        return self._busy.under_way

    @property
    def kv_use(self) -> float:
        """Share of the KV cache that the contexts of these requests would fill if no two shared a prefix."""
        cache = self._llm.vllm_config.cache_config
        return self._kv.blocks(cache.block_size) / max(1, cache.num_gpu_blocks or 0)

    @property
    def expected_s(self) -> float:
        """Seconds that the next token may take by the measured pace, for the contexts to compute before it."""
        return self._prefill.seconds(self._kv.waiting, self._largest)

    @property
    def _largest(self) -> int:
        """Maximum tokens that are computed before a token is sampled."""
        config = self._llm.vllm_config
        return max(config.scheduler_config.max_num_batched_tokens, config.model_config.max_model_len)

    def patience_s(self, tokens: int = 0) -> float:
        """Maximum seconds for an answer of the core that may come after what it computes now, and after further
        `tokens` of contexts."""
        expected_s = self._prefill.seconds(min(self._kv.waiting, self._largest) + tokens)
        return max(ANSWER_S, SLACK * expected_s) if self._prefill.is_measured else UNMEASURED_S

    @property
    def cache(self) -> CacheStats:
        """Counters of its KV cache."""
        return self._kv.stats

    @property
    def syncs(self) -> int:
        """How often weights were loaded."""
        return self._weights.syncs

    @property
    def requests(self) -> int:
        """Number of requests in vLLM, including those of its server's handlers."""
        return self._llm.output_processor.get_num_unfinished_requests()

    @property
    def paused(self) -> bool:
        """Whether vLLM has stopped sampling to load new weights."""
        return self._busy.paused

    def busy(self) -> BusyReport:
        return self._busy.report()

    def hold(self, episodes: int) -> None:
        """Sets the number of episodes under way."""
        self._busy.hold(episodes)

    async def version(self) -> int:
        with self._alive():
            return int(await self._llm.get_weight_version())

    async def name_version(self, version: int) -> None:
        """Sets the version of the weights that the engine started with; does nothing after the first load. First checks
        that weights loaded later take effect; raises StaleWeights if they would not."""
        async with self._loading:
            if self._weights.syncs == 0:
                with self._alive():
                    await check_path(self._weights, self._llm, self._model_dir, self.logprobs)
                    await self._llm.update_weight_version(str(version))

    def shutdown(self) -> None:
        self._closed = True
        self._llm.shutdown()

    @contextmanager
    def _alive(self) -> Iterator[None]:
        """Ends this process if the engine has died by itself."""
        from vllm.v1.engine.exceptions import EngineDeadError

        try:
            yield
        except EngineDeadError:
            if self._closed:
                raise
            os._exit(1)

    async def generate(
        self,
        ask: Ask,
        *,
        sampling: "SamplingConfig | vllm.SamplingParams",
        stops: Stops,
        seed: int,
        priority: int,
        on_tokens: OnTokens | None = None,
        stream: bool = False,
        cache: EpisodeCache | None = None,
    ) -> Said:
        """Generates the policy's turn, whose log-probs are NaN for the tokens that it begins with (`Ask.begun`); they
        are taken to be of the version that goes on. Requests of smaller priority are scheduled first. Cancelling this
        call ends the request in vLLM. `cache` is the same for all turns of an episode. `on_tokens` and `stream` are
        those of `actors.rollout.runner.Policy`."""
        cache = cache or EpisodeCache(syncs=self.syncs)
        begun = ask.begun.tolist()
        if len(begun) >= ask.max_tokens:
            versions = ((await self.version(), len(begun)),)
            return Said(token_ids=ask.begun, logprobs=_unknown(begun), versions=versions, ended=False)
        params = _params_of(ask, sampling, stops, seed, stream=stream)
        name = str(next(self._requests))
        unsent: list[int] = []
        salt = cache.key(self._config.kv_on_update, self.syncs)
        request: vllm.TokensPrompt = {"prompt_token_ids": [*ask.prompt.tolist(), *begun], "cache_salt": salt}
        token_ids: list[int] = []
        logprobs: list[float] = []
        output: Any = None
        if not self.requests:
            self._prefill.begin()
        self._busy.enter()
        self._kv.begin(name, len(ask.prompt) + len(begun), cache, None if on_tokens is None or stream else unsent)
        try:
            async for output in self._outputs(request, params, name, priority):
                new = list(output.token_ids)
                token_ids += new
                logprobs += _flat(output.logprobs, len(new))
                if output.finish_reason == "stop" and ask.constraint is not None:
                    # The token that ends a message is not part of the trajectory.
                    new, token_ids, logprobs = new[:-1], token_ids[:-1], logprobs[:-1]
                if on_tokens is not None and stream and new:
                    on_tokens(np.asarray(new, np.int32))
        except asyncio.CancelledError:
            if on_tokens is not None and unsent:
                on_tokens(np.asarray(unsent, np.int32))
            raise
        finally:
            self._busy.leave()
            self._kv.end(name)
        if output.finish_reason not in ("stop", "length"):
            raise InfrastructureError(f"the engine ended a request: {output.finish_reason}")
        return Said(
            token_ids=np.asarray([*begun, *token_ids], np.int32),
            logprobs=np.concatenate([_unknown(begun), np.asarray(logprobs, np.float32)]),
            versions=_runs(output.weight_versions, len(token_ids), len(begun)),
            ended=output.finish_reason == "stop",
        )

    async def logprobs(self, token_ids: Tokens) -> Floats:
        """Log-probs of all tokens but the first, at temperature 1. The request uses no cached prefix, since its cache
        salt is unique."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        ids = token_ids.tolist()
        params = SamplingParams(
            temperature=0.0, max_tokens=1, prompt_logprobs=0, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY
        )
        name = f"probe-{next(self._requests)}"
        if not self.requests:
            self._prefill.begin()
        request: vllm.TokensPrompt = {"prompt_token_ids": ids, "cache_salt": name}
        with self._alive():
            # That log-probs were asked for is more than vLLM's types say.
            answers: list[Any] = [one async for one in self._llm.generate(request, params, name, priority=FIRST)]
        [final] = answers
        found = [entry[token].logprob for token, entry in zip(ids[1:], final.prompt_logprobs[1:], strict=True)]
        return np.asarray(found, np.float32)

    async def _outputs(
        self, request: "vllm.TokensPrompt", params: "vllm.SamplingParams", name: str, priority: int
    ) -> AsyncIterator[Any]:
        with self._alive():
            async for answer in self._llm.generate(request, params, name, priority=priority):
                yield answer.outputs[0]

    async def load(self, version: int, weights: Published | Weights) -> float:
        """Loads weights and checks that they are complete (see `actors.weights.loader` for the steps and errors).

        Returns the seconds in which no token was sampled. Concurrent calls run one after another. Episodes under way
        are paused meanwhile and continue under the new weights. A sleeping engine wakes first.
        """
        async with self._loading:
            with self._alive():
                await self._sleeper.wake()
                return await self._weights.load(version, weights)

    async def sleep(self) -> None:
        """Frees the device's memory until the next `load`, if the engine has a sleep mode. No request may be under way
        or arrive meanwhile."""
        async with self._loading:
            with self._alive():
                await self._sleeper.sleep()

    def _stand_still(self, paused: bool) -> None:
        if paused and self._config.kv_on_update is KvOnUpdate.recompute:
            self._kv.clear()
        self._prefill.begin()
        self._busy.pause(paused)
        self.limits.pause(paused)


def _params_of(
    ask: Ask, sampling: "SamplingConfig | vllm.SamplingParams", stops: Stops, seed: int, *, stream: bool
) -> "vllm.SamplingParams":
    from vllm.sampling_params import StructuredOutputsParams

    if not isinstance(sampling, SamplingConfig):
        return _recorded(sampling, seed)
    if ask.constraint is None:
        params = _turn_params(sampling, stops, stream).clone()
    else:
        # The grammar ends the turn. With stop tokens, any of them could follow the grammar's end, even another tool's.
        params = _turn_params(sampling, Stops((), ()), stream).clone()
        params.structured_outputs = StructuredOutputsParams(grammar=going_on(ask.constraint, ask.begun.tolist()))
    params.max_tokens = ask.max_tokens - len(ask.begun)
    if sampling.temperature > 0:
        params.seed = seed
    return params


def _recorded(asked: "vllm.SamplingParams", seed: int) -> "vllm.SamplingParams":
    """The sampling that a request asks for, with the log-probs of what is sampled."""
    from vllm.sampling_params import RequestOutputKind

    return changed(
        asked,
        logprobs=0,
        flat_logprobs=True,
        prompt_logprobs=None,
        output_kind=RequestOutputKind.FINAL_ONLY,
        detokenize=bool(asked.stop),
        include_stop_str_in_output=True,
        seed=seed if asked.temperature > 0 else None,
    )


@lru_cache(64)
def _turn_params(sampling: SamplingConfig, stops: Stops, stream: bool) -> "vllm.SamplingParams":
    """vLLM's sampling parameters of a turn, without its seed, maximum length and grammar."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        logprobs=0,
        flat_logprobs=True,
        stop=list(stops.strings) or None,
        stop_token_ids=list(stops.token_ids) or None,
        include_stop_str_in_output=True,
        detokenize=bool(stops.strings),
        skip_special_tokens=False,  # a stop string may be a special token
        output_kind=RequestOutputKind.DELTA if stream else RequestOutputKind.FINAL_ONLY,
        skip_clone=True,  # vLLM copies them for each request, deeply otherwise: nobody changes their lists
    )


def _flat(logprobs: "vllm.logprobs.FlatLogprobs", count: int) -> list[float]:
    """The log-prob of the sampled token at each position, from vLLM's flat format."""
    return [logprobs.logprobs[logprobs.start_indices[i]] for i in range(count)]


def _unknown(token_ids: Sequence[int]) -> Floats:
    return np.full(len(token_ids), np.nan, np.float32)


def _runs(spans: "Sequence[vllm.outputs.WeightVersionSpan]", count: int, begun: int = 0) -> tuple[tuple[int, int], ...]:
    """(version, tokens) for each of vLLM's version spans; the last span may reach beyond the tokens that are kept.
    begun: number of tokens before, which are added to the first span."""
    runs = [(int(span.version), min(span.end, count) - span.start) for span in spans]
    if begun:
        runs[0] = (runs[0][0], runs[0][1] + begun)
    return tuple((version, n) for version, n in runs if n > 0)
