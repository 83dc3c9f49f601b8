"""One language model for all roles: failures are values, mistakes are raised, limits hold over all who ask."""

import asyncio
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from actors.language_model import LanguageModel, LanguageModelStats, start_language_model
from actors.teacher_model import TeacherModel
from coa.errors import ContextTooLong, EmptyCompletion, EndpointDown, RequestRefused, UserError
from coa.models.completion import Completion
from coa.models.endpoint import EndpointConfig
from coa.seeds import derive
from coa.usage import Usage
from tests.endpoints import EndpointProcess, Script, echo, serving, tokens_of

ASKED = [{"role": "user", "content": "Who ?"}]
QUICK: dict[str, Any] = {"name": "m", "pause_s": 0.001, "max_pause_s": 0.01, "attempts": 2}


def played(count: int, *faults: str, latency_s: float = 0.0, **config: Any) -> tuple[list[Any], LanguageModelStats]:
    """Calls one after the other, or at once where there is latency; and what was counted."""

    async def go() -> tuple[list[Any], LanguageModelStats]:
        async with serving(Script(faults=faults, latency_s=latency_s)) as server:
            model = LanguageModel(EndpointConfig(**{**QUICK, "url": server.url, **config}))
            try:
                if latency_s:
                    return list(await asyncio.gather(*(model.complete(ASKED, n) for n in range(count)))), model.stats()
                return [await model.complete(ASKED, n, {"stop": ["."]}) for n in range(count)], model.stats()
            finally:
                await model.close()

    return asyncio.run(go())


def test_what_is_down_is_a_value_and_is_counted_by_its_type() -> None:
    answers, stats = played(6, "2-3=500", "4-5=empty", "6=context", "7=half")
    whole = [Completion(f"seed {n}, 1 messages: Who ?", "stop", Usage(1 + (n == 4), 2, 7)) for n in (0, 4, 5)]
    first, down, empty, too_long, *rest = answers
    assert [first, *rest] == whole
    assert [type(one) for one in (down, empty, too_long)] == [EndpointDown, EmptyCompletion, ContextTooLong]
    assert stats == LanguageModelStats(
        calls=6,
        failures={"EndpointDown": 1, "EmptyCompletion": 1, "ContextTooLong": 1},
        usage=Usage(9, 2 * 5, 7 * 4 + tokens_of(echo(ASKED, derive(2, "empty", 1)))),
        retries={"status 500": 1, "empty": 1, "cut": 1},
        running=0,
        waiting=0,
    )


def test_a_mistake_is_raised_at_every_call_and_told_before_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="status 404"):
        played(1, "*=404")
    monkeypatch.delenv("TEST_MODEL_KEY", raising=False)
    model = LanguageModel(EndpointConfig(key_env="TEST_MODEL_KEY"))
    assert model.mistake() == "the environment variable TEST_MODEL_KEY is not set; it is to hold a service's key"
    with pytest.raises(UserError, match="TEST_MODEL_KEY is not set"):
        asyncio.run(model.complete(ASKED))
    assert LanguageModel(EndpointConfig()).mistake() == ""


def test_a_teacher_that_answered_before_a_restart_may_refuse_whatever_is_left(tmp_path: Path) -> None:
    async def go() -> list[Any]:
        async with serving(Script(faults=["2-9=400"])) as server:
            answers: list[Any] = []
            for seeds in ([0], [0, 1, 2, 3]):
                model = TeacherModel(EndpointConfig(**QUICK, url=server.url), tmp_path)
                answers += [await model.complete(ASKED, seed) for seed in seeds]
                await model._model.close()
            return answers

    first, kept, *refused = asyncio.run(go())
    assert isinstance(first, Completion)
    assert kept == first
    assert [type(one) for one in refused] == [RequestRefused] * 3


def test_what_a_request_took_before_it_was_answered_is_told_with_its_answer(tmp_path: Path) -> None:
    async def go() -> list[Any]:
        async with serving(Script(faults=["1-2=empty", "3-4=500"])) as server:
            answers: list[Any] = []
            for _ in range(4):  # each a process of its own
                model = TeacherModel(EndpointConfig(**QUICK, url=server.url), tmp_path)
                answers.append(await model.complete(ASKED, 0))
                await model._model.close()
            return answers

    empty, down, whole, kept = asyncio.run(go())
    assert [type(empty), type(down)] == [EmptyCompletion, EndpointDown]
    in_vain = empty.usage
    assert (in_vain.requests, in_vain.prompt_tokens) == (2, 4)
    assert down.usage == in_vain + Usage(2)
    assert whole.usage == kept.usage == in_vain + Usage(2) + Usage(1, 2, 7)


def test_who_waits_and_who_is_served_is_told() -> None:
    async def go() -> LanguageModelStats:
        async with serving(Script(latency_s=0.1)) as server:
            model = LanguageModel(EndpointConfig(**QUICK, url=server.url, concurrent=2))
            calls = [asyncio.create_task(model.complete(ASKED, seed)) for seed in range(5)]
            await server.arrived(1)
            stats = model.stats()
            await asyncio.gather(*calls)
            await model.close()
            return stats

    stats = asyncio.run(go())
    assert (stats.calls, stats.running, stats.waiting) == (5, 2, 3)


def test_all_places_of_an_endpoint_are_used_at_little_cost() -> None:
    requests = 640

    async def go() -> float:
        async with aiohttp.ClientSession() as session:
            model = LanguageModel(EndpointConfig(**QUICK, url=process.url, concurrent=64))
            used = time.process_time()
            answers = await asyncio.gather(*(model.complete(ASKED, seed) for seed in range(requests)))
            cpu_s = time.process_time() - used
            await model.close()
            texts = [answer.text if isinstance(answer, Completion) else answer for answer in answers]
            assert texts == [f"seed {seed}, 1 messages: Who ?" for seed in range(requests)]
            async with session.get(process.url.replace("/v1", "/stats")) as told:
                counts = {"requests": requests, "distinct": requests, "running": 0, "peak": 64}
                assert await told.json() == {**counts, "outcomes": {"200": requests}}
            return cpu_s / requests

    with EndpointProcess("--latency", "0.2", "--concurrent", "64", "--over", "refuse") as process:
        assert asyncio.run(go()) < 0.005


def test_on_ray_all_who_ask_share_the_limits(ray_session: None) -> None:
    import ray

    async def go() -> tuple[list[Any], Any, Any]:
        async with serving(Script(latency_s=0.05, faults=["5-6=500"])) as server:
            model = start_language_model(EndpointConfig(**QUICK, url=server.url, concurrent=3))

            @ray.remote(num_cpus=0)
            class Role:
                async def ask(self, seed: int) -> Any:
                    return await model.complete.remote(ASKED, seed)

            roles: list[Any] = [Role.remote() for _ in range(2)]
            answers = await asyncio.gather(*(roles[seed % 2].ask.remote(seed) for seed in range(12)))
            stats = await model.stats.remote()
            wrong = start_language_model(EndpointConfig(key_env="NO_SUCH_KEY"))
            assert "NO_SUCH_KEY" in await wrong.mistake.remote()
            with pytest.raises(UserError):
                await wrong.complete.remote(ASKED)
            for actor in (*roles, model, wrong):
                ray.kill(actor)
            return answers, server, stats

    answers, server, stats = asyncio.run(go())
    assert server.peak == 3
    assert stats.calls == 12
    assert all(isinstance(answer, Completion | EndpointDown) for answer in answers)
    assert stats.usage.requests == len(server.seen) >= 13
