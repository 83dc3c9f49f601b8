"""Functions of episodes as forks of a process that has imported what they need."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from actors.gateway import process
from actors.gateway.functions import GONE, FunctionHost
from actors.gateway.process import Exited, environment
from tests.support.patience import soon, until
from tests.support.programs import is_gone, order_of, starts_another

TASK = order_of().task
HERE = environment("http://127.0.0.1:1", "secret")
RUN = "async def run(task, base_url, key):\n"
Use = Callable[[FunctionHost], Coroutine[Any, Any, Any]]


@pytest.fixture
def use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Use], Any]:
    """Uses the host of a function in a module with a text."""
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.getcwd()}")

    def used(text: str, use: Use) -> Any:
        (tmp_path / "agent_of_a_test.py").write_text(text)

        async def go() -> Any:
            host = FunctionHost("agent_of_a_test:run")
            try:
                return await use(host)
            finally:
                await host.close()

        return asyncio.run(go())

    return used


@pytest.fixture
def answers(use: Callable[[str, Use], Any]) -> Callable[[str], Exited]:
    """What becomes of one run."""
    return lambda text: use(text, lambda host: host.run(TASK, HERE))


def test_a_function_gets_the_task_and_returns_the_answer(answers: Callable[[str], Exited]) -> None:
    text = "    print('aside')\n    return f\"{task['id']} {task['question']}\\n{base_url} {key}\""
    assert answers(RUN + text) == Exited(0, "t What is 2 + 3 ?\nhttp://127.0.0.1:1/v1 secret", "aside\n")


@pytest.mark.parametrize(("returned", "answer"), [("None", ""), ("5", "5"), ("''", "")])
def test_what_a_function_returns_is_a_text(answers: Callable[[str], Exited], returned: str, answer: str) -> None:
    assert answers(f"{RUN}    return {returned}").answer == answer


def test_a_crash_is_told_with_its_last_words(answers: Callable[[str], Exited]) -> None:
    exited = answers(RUN + "    raise ValueError('no luck')")
    assert (exited.status, exited.answer) == (1, "")
    assert exited.log.endswith("ValueError: no luck\n")


@pytest.mark.parametrize("text", ["import nothing_of_that_name\n", "1 / 0\n"])
def test_a_module_that_can_not_be_imported_is_told_by_each_run(use: Callable[[str, Use], Any], text: str) -> None:
    async def twice(host: FunctionHost) -> list[Exited]:
        return [await host.run(TASK, HERE) for _ in range(2)]

    for exited in use(text + RUN + "    return 5", twice):
        assert exited.status == 1
        assert "Error: " in exited.log


def test_the_module_is_imported_in_the_environment_of_each_run(use: Callable[[str, Use], Any]) -> None:
    """A client that is made when the module is imported belongs to its episode, too."""
    text = "import os\nkey_at_import, calls = os.environ['OPENAI_API_KEY'], 0\n"

    async def two(host: FunctionHost) -> list[str]:
        ran = [host.run(TASK, environment("http://127.0.0.1:1", key)) for key in ("one", "two")]
        return [exited.answer for exited in await asyncio.gather(*ran)]

    body = "    global calls\n    calls += 1\n    return f'{key_at_import} {calls}'"
    assert use(text + RUN + body, two) == ["one 1", "two 1"]


def test_an_agent_that_is_installed_is_imported_in_the_environment_of_each_run_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "site-packages"
    installed.mkdir()
    (installed / "agent_of_a_test.py").write_text(f"import os\nkey = os.environ['OPENAI_API_KEY']\n{RUN}    return key")
    monkeypatch.setenv("PYTHONPATH", f"{installed}:{os.getcwd()}")

    async def go() -> str:
        host = FunctionHost("agent_of_a_test:run")
        try:
            return (await host.run(TASK, HERE)).answer
        finally:
            await host.close()

    assert asyncio.run(go()) == "secret"


def test_what_is_installed_is_imported_once(use: Callable[[str, Use], Any]) -> None:
    """The parent of two runs has imported it; what they draw differs nevertheless."""
    text = "import os, random, numpy.random\n"
    body = (
        "    with open(f'/proc/{os.getppid()}/maps') as maps:\n        has_numpy = 'numpy' in maps.read()\n"
        "    return f'{os.getppid()} {has_numpy} {numpy.random.random()} {random.random()}'"
    )

    async def two(host: FunctionHost) -> list[list[str]]:
        return [(await host.run(TASK, HERE)).answer.split() for _ in range(2)]

    one, other = use(text + RUN + body, two)
    assert one[:2] == [other[0], "True"]
    assert one[2] != other[2]
    assert one[3] != other[3]


def test_of_a_flood_the_end_is_kept(answers: Callable[[str], Exited], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "MOST_BYTES", 100)
    exited = answers(RUN + "    print('y' * 10**6)\n    return 'x' * 10**6 + '5'")
    assert (len(exited.answer), exited.answer[-2:], len(exited.log)) == (100, "x5", 100)


def test_many_run_at_once(use: Callable[[str, Use], Any]) -> None:
    text = RUN + "    return task['question']"

    async def many(host: FunctionHost) -> set[Exited]:
        return {*await asyncio.gather(*(host.run(TASK, HERE) for _ in range(400)))}

    assert use(text, many) == {Exited(0, TASK.question, "")}


def test_what_a_function_has_started_ends_with_it(tmp_path: Path, answers: Callable[[str], Exited]) -> None:
    file = tmp_path / "pid"
    body = "\n".join(f"    {line}" for line in starts_another(file).splitlines())
    assert answers(f"{RUN}{body}\n    return 5").answer == "5"
    assert soon(lambda: is_gone(file))


def hangs(file: Path) -> str:
    body = "\n".join(f"    {line}" for line in starts_another(file).splitlines())
    return f"{RUN}{body}\n    time.sleep(1000)"


def has_begun(file: Path) -> bool:
    return file.exists() and bool(file.read_text())


def test_a_run_that_is_given_up_is_ended_with_all_of_its_processes(
    tmp_path: Path, use: Callable[[str, Use], Any]
) -> None:
    file = tmp_path / "pid"

    async def give_up(host: FunctionHost) -> None:
        running = asyncio.ensure_future(host.run(TASK, HERE))
        await until(lambda: has_begun(file))
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await until(lambda: is_gone(file))

    use(hangs(file), give_up)


def test_a_run_that_is_given_up_while_its_host_starts_leaves_the_host_to_others(use: Callable[[str, Use], Any]) -> None:
    async def give_up(host: FunctionHost) -> Exited:
        running = asyncio.ensure_future(host.run(TASK, HERE))
        await until(lambda: host._orders is not None)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        return await host.run(TASK, HERE)

    assert use(RUN + "    return 5", give_up) == Exited(0, "5", "")


def test_an_end_of_the_host_ends_all_of_its_runs(tmp_path: Path, use: Callable[[str, Use], Any]) -> None:
    file = tmp_path / "pid"

    async def end(host: FunctionHost) -> None:
        running = asyncio.ensure_future(host.run(TASK, HERE))
        await until(lambda: has_begun(file))
        await host.close()
        assert (await running).status == -signal.SIGKILL

    use(hangs(file), end)
    assert soon(lambda: is_gone(file))


def test_a_host_that_was_killed_is_started_again(tmp_path: Path, use: Callable[[str, Use], Any]) -> None:
    text = RUN + "    import os, time\n    os.kill(os.getppid(), 9) if key == 'kills' else None\n    return 5"
    kills = environment("http://127.0.0.1:1", "kills")

    async def again(host: FunctionHost) -> list[Exited]:
        killed = await host.run(TASK, kills)
        found = await host.run(TASK, HERE)
        return [killed, found if not found.status else await host.run(TASK, HERE)]

    killed, later = use(text, again)
    assert (killed.status, killed.answer) == (GONE, "")
    assert later == Exited(0, "5", "")


def test_a_host_that_ends_before_it_is_ready_is_told(
    answers: Callable[[str], Exited], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is installed may do anything when it is imported."""
    monkeypatch.setattr(sys, "executable", "false")
    assert answers(RUN) == Exited(GONE, "", "the process that imports what it needs has ended")
