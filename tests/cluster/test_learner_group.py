"""What ends the learners is raised as what it is."""

import asyncio
import errno
import gc
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError
from ray.train import ControllerError, WorkerGroupError
from ray.train.v2._internal.exceptions import UserExceptionWithTraceback

from actors.learner.buffer import Event, Finished, Started, Stepped
from actors.learner.config import LearnerConfig, ModelConfig, Objective
from actors.learner.loop import LearnJob
from cluster import learner_group
from cluster.learner_group import LearnerGroup, raise_cause, surely
from cluster.resources import PlacementConfig
from coa.errors import DiskFull, OutOfMemory, ReadOnlyDisk, UserError
from coa.storage.checkpoints import open_folder
from coa.storage.keeping import Keeping
from tests.support.reports import a_report

FOLDER = Path("checkpoints")
NO_MEMORY = """Training failed due to controller error:
6 worker(s) were killed due to the node running low on memory. Memory on the node (IP: 192.0.2.2) was 22.1GB / 23.5GB
Refer to the documentation on how to address the out of memory issue: https://docs.ray.io/"""


def test_an_end_for_want_of_memory_says_so_and_how_much_there_was() -> None:
    with pytest.raises(OutOfMemory, match=r"because memory ran out: 22\.1GB / 23\.5GB; --dry-run shows"):
        raise_cause(RuntimeError(NO_MEMORY), FOLDER)


def test_a_mistake_that_a_learner_found_is_raised_as_that() -> None:
    failed = RuntimeError("a rank failed")
    failed.__cause__ = UserError("no such model")
    with pytest.raises(UserError, match="no such model"):
        raise_cause(failed, FOLDER)


def test_a_disk_that_a_learner_or_the_controller_found_full_is_told_of_in_one_line() -> None:
    """A learner's error crosses as Ray Train wraps it, which has neither cause nor text of its own."""
    wrapped = UserExceptionWithTraceback(DiskFull("state: no space left on the disk"), "Traceback ...")
    with pytest.raises(DiskFull, match=r"^state: no space left on the disk$"):
        raise_cause(WorkerGroupError("rank 0 failed", {0: wrapped}), FOLDER)
    with pytest.raises(DiskFull, match=r"^checkpoints: no space left on the disk$"):
        raise_cause(ControllerError(OSError(errno.ENOSPC, "full")), FOLDER)
    with pytest.raises(ReadOnlyDisk, match=r"^checkpoints: the disk has become read-only$"):
        raise_cause(ControllerError(OSError(errno.EROFS, "read-only")), FOLDER)


def test_anything_else_is_raised_as_it_is() -> None:
    with pytest.raises(KeyError):
        raise_cause(KeyError("x"), FOLDER)


def test_a_buffer_that_starts_again_is_asked_again_and_one_that_is_gone_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learner_group, "AGAIN_S", 0.0)
    answers: list[object] = [ActorUnavailableError("it starts", None), ActorUnavailableError("it starts", None), 7]

    async def ask() -> int:
        match answers.pop(0):
            case int() as answer:
                return answer
            case error:
                assert isinstance(error, Exception)
                raise error

    assert asyncio.run(surely(ask)) == 7
    answers.append(ActorDiedError())
    with pytest.raises(ActorDiedError):
        asyncio.run(surely(ask))


@pytest.mark.parametrize("kept", [False, True])
def test_a_step_counts_as_recorded_once_the_next_event_is_asked_for(kept: bool) -> None:
    """And once the run is copied, if the step has a checkpoint."""

    def stepped(version: int) -> Stepped:
        return Stepped(version=version, report=a_report(), weights=None, probes=(), began=0.0, ended=1.0, waited=0.0)

    async def heard() -> None:
        started = Started(version=2, cursor=0, weights=None, probes=(), parity="", shares_prefixes=True, epoch=5)
        told = iter([started, stepped(3), Finished(version=3)])
        recorded: list[tuple[int, int]] = []
        copied: list[int] = []

        async def next_event() -> Event:
            return next(told)

        async def take(version: int, epoch: int) -> None:
            recorded.append((version, epoch))

        learning: Any = object.__new__(LearnerGroup)
        learning._ended = asyncio.get_running_loop().create_future()
        learning._buffer = SimpleNamespace(
            next_event=SimpleNamespace(remote=next_event), recorded=SimpleNamespace(remote=take)
        )
        learning._last = cast(Any, SimpleNamespace(committed=lambda version: None))
        learning._has_checkpoint = cast(Any, lambda version: kept)
        learning._copy = lambda: copied.append(len(recorded))
        seen = []
        async for event in learning.events():
            seen.append((type(event), list(recorded)))
        assert seen == [(Started, []), (Stepped, []), (Finished, [(3, 5)])]
        assert copied == ([0] if kept else []), "before the step counts as recorded"

    asyncio.run(heard())


def test_ranks_that_hang_are_told_of_once_while_an_event_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learner_group, "WATCH_S", 0.001)
    answers: list[object] = ["", "rank 1 hangs", ActorUnavailableError("it starts", None), "rank 1 hangs", "both hang"]
    told: list[str] = []

    async def waited() -> None:
        event: asyncio.Future[Event] = asyncio.get_running_loop().create_future()
        limits: list[float] = []

        async def stalled(limit_s: float) -> object:
            limits.append(limit_s)
            answer = answers.pop(0)
            if not answers:
                event.set_result(Finished(version=3))
            if isinstance(answer, ActorUnavailableError):
                raise answer
            return answer

        async def next_event() -> Event:
            return await event

        learning: Any = object.__new__(LearnerGroup)
        learning._ended = asyncio.get_running_loop().create_future()
        learning._say, learning._limit_s = told.append, 900.0
        learning._buffer = SimpleNamespace(
            next_event=SimpleNamespace(remote=next_event), stalled=SimpleNamespace(remote=stalled)
        )
        assert [found async for found in learning.events()] == [Finished(version=3)]
        assert set(limits) == {learner_group.STALLED_S}

    asyncio.run(waited())
    restart = "; learners restart after collective_s=900 s, or PyTorch's limit"
    assert told == [f"rank 1 hangs{restart}", f"both hang{restart}"]


def test_who_is_interrupted_while_it_waits_for_an_event_hears_nothing_of_the_buffers_end() -> None:
    """asyncio would print it on the terminal, as an exception that was never retrieved."""
    told: list[object] = []

    async def interrupted() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: told.append(context))
        answer: asyncio.Future[object] = loop.create_future()
        learning: Any = object.__new__(LearnerGroup)
        learning._ended = loop.create_future()
        learning._buffer = SimpleNamespace(next_event=SimpleNamespace(remote=lambda: answer))
        waiting = asyncio.ensure_future(anext(learning.events()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        waiting.cancel()
        answer.set_exception(ActorDiedError())
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await asyncio.sleep(0)

    asyncio.run(interrupted())
    gc.collect()
    assert told == []


NOBODY: Any = None


def a_job() -> LearnJob:
    return LearnJob(
        model_dir="",
        model=ModelConfig(),
        learner=LearnerConfig(),
        objective=Objective(),
        steps=1,
        buffer=NOBODY,
        publish=False,
        probe=(),
        probe_tokens=0,
        output="",
        keeping=Keeping(folder=open_folder(FOLDER.absolute()), every=1),
    )


def test_the_learners_process_group_has_the_time_limit_of_the_setting() -> None:
    learning: Any = object.__new__(LearnerGroup)
    learning._name, learning._limit_s, learning._buffer = "sft", 90.0, None
    learning._placement, learning._job = PlacementConfig(), a_job()
    learning._keeping = learning._job.keeping
    learning._folder = learning._keeping.folder.below("sft")
    assert learning._trainer().backend_config.timeout_s == 90
