"""The limits that an endpoint keeps, and the scripted endpoint that they are tested with."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp

from coa.llm.client import Endpoint, EndpointConfig
from coa.llm.completions import Completion, estimate
from tests.support.asking import ASKED, QUICK
from tests.support.endpoints import EndpointProcess, Script, read_log, request_id, serving, wait_for_log


async def at_once(endpoint: Endpoint, count: int) -> list[Any]:
    return await asyncio.gather(*(endpoint.complete(ASKED, seed=seed) for seed in range(count)))


def test_no_more_requests_are_under_way_than_may_be() -> None:
    async def go() -> int:
        async with serving(Script(together=3)) as server:
            endpoint = Endpoint(EndpointConfig(url=server.url, concurrent=3, **QUICK))
            assert len(await at_once(endpoint, 9)) == 9
            await endpoint.close()
            assert (endpoint.limiter.running, endpoint.limiter.waiting) == (0, 0)
            return server.peak

    assert asyncio.run(go()) == 3


def test_a_time_that_a_server_names_holds_for_all_requests() -> None:
    async def go() -> list[float]:
        async with serving(Script(faults=["1=429:1"], latency_s=0.05)) as server:
            endpoint = Endpoint(EndpointConfig(**{**QUICK, "url": server.url, "concurrent": 1}))
            await at_once(endpoint, 4)
            await endpoint.close()
            finished = server.seen[0].finished
            assert finished is not None
            assert [seen.outcome for seen in server.seen] == ["429", "200", "200", "200", "200"]
            return [seen.arrived - finished for seen in server.seen[1:]]

    assert min(asyncio.run(go())) >= 0.99


def test_a_permit_is_not_held_between_attempts() -> None:
    async def go() -> list[str]:
        async with serving(Script(faults=["1=500"], reply=lambda messages, seed: f"{seed}")) as server:
            config = EndpointConfig(**{**QUICK, "url": server.url, "concurrent": 1})
            endpoint = Endpoint(config)
            resting = asyncio.Event()

            async def rest(_: float) -> None:
                await resting.wait()

            endpoint.http._sleep = rest
            order: list[str] = []

            async def one(seed: int) -> None:
                order.append((await endpoint.complete(ASKED, seed=seed)).text)
                resting.set()

            await asyncio.gather(one(0), one(1))
            await endpoint.close()
            return order

    assert asyncio.run(go()) == ["1", "0"]


def test_tokens_are_put_right_by_what_a_reply_says() -> None:
    assert estimate(ASKED, 100) == 103
    assert estimate(ASKED, None) == 3

    async def go(per_minute: int) -> int:
        async with serving() as server:
            limits = {"tokens_per_minute": per_minute, "max_tokens": 100}
            endpoint = Endpoint(EndpointConfig(url=server.url, **limits, **QUICK))

            async def ask() -> None:
                for _ in range(5):
                    await endpoint.complete(ASKED, seed=7)

            asking = asyncio.create_task(ask())
            while not (asking.done() or endpoint.limiter.waiting):  # noqa: ASYNC110, it would wait for a minute
                await asyncio.sleep(0.01)
            asking.cancel()
            await asyncio.wait([asking])
            await endpoint.close()
            return len(server.seen)

    # Each reserves 103 and takes 12: after n of them a further one needs 12 n + 103.
    assert asyncio.run(go(103 + 12 * 4)) == 5
    assert asyncio.run(go(103 + 12 * 2)) == 3


def test_who_gives_up_gives_its_permit_back() -> None:
    async def go() -> tuple[int, int]:
        async with serving(Script(faults=["1=slow:60"])) as server:
            endpoint = Endpoint(EndpointConfig(**{**QUICK, "url": server.url, "concurrent": 1}))
            slow = asyncio.create_task(endpoint.complete(ASKED, seed=0))
            await server.arrived(1)
            slow.cancel()
            assert (await endpoint.complete(ASKED, seed=1)).text.startswith("seed 1")
            await endpoint.close()
            return endpoint.limiter.running, len(server.seen)

    assert asyncio.run(go()) == (0, 2)


def test_who_waited_for_a_permit_is_sent_before_the_reply_that_freed_it_is_worked_on() -> None:
    async def go() -> list[int]:
        async with serving() as server:
            endpoint = Endpoint(EndpointConfig(url=server.url, **QUICK, concurrent=1))
            sent: list[int] = []

            async def ask_one(seed: int) -> None:
                await endpoint.complete(ASKED, seed=seed)
                sent.append(endpoint.http.counts["attempts"])

            await asyncio.gather(ask_one(1), ask_one(2))
            await endpoint.close()
            return sent

    assert asyncio.run(go()) == [2, 2]


def test_all_permits_of_an_endpoint_are_used() -> None:
    requests = 640

    async def go() -> None:
        async with aiohttp.ClientSession() as session:
            endpoint = Endpoint(EndpointConfig(**QUICK, url=process.url, concurrent=64))
            answers = await at_once(endpoint, requests)
            await endpoint.close()
            assert [answer.text for answer in answers] == [
                f"seed {seed}, 2 messages: Who ?" for seed in range(requests)
            ]
            async with session.get(process.url.replace("/v1", "/stats")) as response:
                counts = {"requests": requests, "distinct": requests, "running": 0, "peak": 64}
                assert await response.json() == {**counts, "outcomes": {"200": requests}}

    with EndpointProcess("--together", "64", "--concurrent", "64", "--over", "refuse") as process:
        asyncio.run(go())


# The scripted endpoint itself.


def test_what_is_above_the_scripted_limit_waits_or_is_refused() -> None:
    async def go(queues: bool) -> dict[str, Any]:
        async with serving(Script(together=6, concurrent=2, queues=queues)) as server:
            endpoint = Endpoint(EndpointConfig(**{**QUICK, "url": server.url, "attempts": 1}))
            await asyncio.gather(*(endpoint.complete(ASKED, seed=seed) for seed in range(6)), return_exceptions=True)
            await endpoint.close()
            return server.stats()

    counts = {"requests": 6, "distinct": 6, "running": 0, "peak": 2}
    assert asyncio.run(go(True)) == {**counts, "outcomes": {"200": 6}}
    assert asyncio.run(go(False)) == {**counts, "outcomes": {"200": 2, "429": 4}}


def test_an_endpoint_that_is_killed_and_started_again_goes_on_and_its_log_tells_all(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"

    async def asking(process: EndpointProcess) -> Sequence[Completion]:
        config = EndpointConfig(**{**QUICK, "url": process.url, "attempts": 1000, "max_pause_s": 0.1, "pause_s": 0.1})
        endpoint = Endpoint(config)
        both = asyncio.gather(*(endpoint.complete(ASKED, seed=seed) for seed in (1, 2)))
        await asyncio.to_thread(wait_for_log, log, 2)
        process.kill()
        await asyncio.to_thread(process.start, "--together", "0")
        completions = await both
        await endpoint.close()
        async with aiohttp.ClientSession() as session, session.get(process.url.replace("/v1", "/log")) as response:
            assert [seen["id"] for seen in await response.json()] == [seen.id for seen in read_log(log)[2:]]
        return completions

    with EndpointProcess("--together", "3", "--concurrent", "4", "--log", str(log)) as process:
        texts = [completion.text for completion in asyncio.run(asking(process))]
    assert texts == ["seed 1, 2 messages: Who ?", "seed 2, 2 messages: Who ?"]
    seen = read_log(log)
    expected = {request_id({"model": "m", "messages": ASKED, "seed": seed, "max_tokens": 4096}) for seed in (1, 2)}
    assert {one.id for one in seen[:2]} == {one.id for one in seen[2:]} == expected
    assert [(one.outcome, one.finished is None) for one in seen] == [("", True)] * 2 + [("200", False)] * 2
    assert len({one.process for one in seen}) == 2
