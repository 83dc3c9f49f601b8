"""Teachers' models that are served in the cluster, whose servers end and come back elsewhere."""

import asyncio
import os
import signal
from types import SimpleNamespace
from typing import Any, cast

import pytest
from ray.exceptions import ActorUnavailableError, RayTaskError

from coa.errors import ModelServerDown
from jobs.teachers import served
from jobs.teachers.served import LOOK_EVERY_S, keep_served
from tests.support.virtual_time import in_virtual_time


class Server:
    """The handle of a server, whose next answers the test says: its URL, "" while it is not up, or an error."""

    def __init__(self, *answers: str | Exception) -> None:
        self._answers = list(answers)
        self.starts = 0
        self.url, self.start = SimpleNamespace(remote=self._url), SimpleNamespace(remote=self._start)

    async def _url(self) -> str:
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def _start(self) -> str:
        self.starts += 1
        return await self._url()


class Model:
    """The handle of a TeacherModel, which notes where it was told to ask."""

    def __init__(self) -> None:
        self.urls: list[str] = []
        self.move = SimpleNamespace(remote=self._move)

    async def _move(self, url: str) -> None:
        self.urls.append(url)


def kept(server: Server, looks: int) -> tuple[list[str], list[str]]:
    """The URLs that the model was told, and the lines that were said."""
    model, said = Model(), list[str]()

    async def go() -> None:
        keeping = asyncio.ensure_future(keep_served("own", cast(Any, server), cast(Any, model), said.append))
        await asyncio.sleep((looks + 0.5) * LOOK_EVERY_S)
        keeping.cancel()
        await asyncio.wait([keeping])
        if not keeping.cancelled():
            keeping.result()

    in_virtual_time(go())
    return model.urls, said


def test_a_server_that_ended_is_started_again_and_the_model_told_its_new_url() -> None:
    gone, broken = ActorUnavailableError("it restarts", None), ModelServerDown("out of memory")
    server = Server("http://a/v1", gone, gone, "", broken, "", "http://b/v1", "http://b/v1")
    urls, said = kept(server, 6)
    assert urls == ["http://a/v1", "http://b/v1", "http://b/v1"]
    assert server.starts == 2
    assert said == ["own: its server is down, and is started again", "own: its server is up again"]


def test_a_server_that_stays_up_is_not_started_again() -> None:
    server = Server("http://a/v1")
    assert kept(server, 5) == (["http://a/v1"] * 5, [])
    assert server.starts == 0


def test_a_defect_is_raised() -> None:
    cause = AttributeError("no such method")
    with pytest.raises(AttributeError):
        kept(Server(RayTaskError("url", "", cause).as_instanceof_cause()), 1)


@pytest.mark.slow
def test_a_server_that_is_killed_comes_back_as_an_actor(ray_session: None, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    from actors.teachers.model_server import ModelServer, ModelServerConfig
    from tests.actors.teachers.test_model_server import SERVES

    monkeypatch.setattr(served, "LOOK_EVERY_S", 0.5)
    make: Any = ray.remote(ModelServer)
    server = make.options(num_cpus=0, max_restarts=-1).remote(ModelServerConfig(model="m"), program=SERVES)
    model = Model()

    def pid_of(self: Any) -> int:
        return self.pid

    async def go() -> None:
        first = await server.start.remote()
        keeping = asyncio.ensure_future(keep_served("own", server, cast(Any, model), lambda _: None))
        os.kill(await server.__ray_call__.remote(pid_of), signal.SIGKILL)
        async with asyncio.timeout(60):
            while not model.urls or model.urls[-1] == first:  # noqa: ASYNC110 - other processes do it
                await asyncio.sleep(0.1)
        assert await server.url.remote() == model.urls[-1]
        keeping.cancel()
        await server.stop.remote()

    asyncio.run(go())
    ray.kill(server)
