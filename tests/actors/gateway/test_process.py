"""Programs of episodes as processes: what they are told, what they answer, and that nothing of them stays."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from actors.gateway import process
from actors.gateway.process import Exited, environment, run_program
from coa.agent.programs.config import ProgramConfig
from tests.support.patience import soon, until
from tests.support.programs import order_of

TASK = order_of().task
HERE = environment("http://127.0.0.1:1", "secret")


def run(program: str) -> Exited:
    return asyncio.run(run_program(ProgramConfig(command=(sys.executable, "-c", program)), TASK, HERE))


def function(folder: Path, text: str) -> Exited:
    (folder / "agent_of_a_test.py").write_text(text)
    config = ProgramConfig(function="agent_of_a_test:run")
    return asyncio.run(run_program(config, TASK, {**HERE, "PYTHONPATH": f"{folder}:{os.getcwd()}"}))


def test_a_command_reads_the_question_and_its_last_line_is_the_answer() -> None:
    exited = run("print('thinking'); print(input().upper()); print(); import sys; print('log', file=sys.stderr)")
    assert exited == Exited(0, "WHAT IS 2 + 3 ?", "log\n")


def test_a_command_may_leave_the_question_and_say_nothing() -> None:
    assert run("") == Exited(0, "", "")


def test_the_environment_leads_clients_to_the_policy() -> None:
    names = ("OPENAI_BASE_URL", "OPENAI_API_KEY", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY", "HOME")
    exited = run(f"import os; print([os.environ[name] for name in {names}])")
    base = "http://127.0.0.1:1"
    assert exited.answer == str([f"{base}/v1", "secret", base, "secret", os.environ["HOME"]])


def test_a_function_gets_the_task_and_returns_the_answer(tmp_path: Path) -> None:
    text = (
        "async def run(task, base_url, key):\n"
        "    print('aside')\n"
        "    return f\"{task['id']} {task['question']}\\n{base_url} {key}\""
    )
    assert function(tmp_path, text) == Exited(0, "t What is 2 + 3 ?\nhttp://127.0.0.1:1/v1 secret", "aside\n")


@pytest.mark.parametrize(("returned", "answer"), [("None", ""), ("5", "5"), ("''", "")])
def test_what_a_function_returns_is_a_text(tmp_path: Path, returned: str, answer: str) -> None:
    text = f"async def run(task, base_url, key):\n    return {returned}"
    assert function(tmp_path, text).answer == answer


def test_a_crash_is_told_with_its_last_words(tmp_path: Path) -> None:
    exited = function(tmp_path, "async def run(task, base_url, key):\n    raise ValueError('no luck')")
    assert (exited.status, exited.answer) == (1, "")
    assert exited.log.endswith("ValueError: no luck\n")


def test_of_a_flood_the_end_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "MOST_BYTES", 100)
    exited = run("import sys; print('x' * 10**6); print('5'); print('y' * 10**6, file=sys.stderr)")
    assert (exited.answer, len(exited.log)) == ("5", 100)


@pytest.mark.parametrize("kept_open", ["stdout", "stderr"])
def test_a_process_that_keeps_a_pipe_open_holds_nothing_up(kept_open: str) -> None:
    other = "stderr" if kept_open == "stdout" else "stdout"
    program = (
        "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1000)'], "
        f"{other}=subprocess.DEVNULL); print(5)"
    )
    assert run(program).answer == "5"


STAYS = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(1000)"


def starts_another(file: Path) -> str:
    """A program that starts a process that would stay, and waits until it runs."""
    return (
        f"import subprocess, sys, time, os; subprocess.Popen([sys.executable, '-c', {STAYS!r}, {str(file)!r}], "
        f"stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)\n"
        f"while not os.path.exists({str(file)!r}) or not open({str(file)!r}).read(): time.sleep(0.01)\n"
    )


def is_gone(file: Path) -> bool:
    status = Path(f"/proc/{file.read_text()}/stat")
    return not status.exists() or status.read_text().split()[2] == "Z"


def test_what_a_program_has_started_ends_with_it(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    assert run(starts_another(file) + "print(5)").answer == "5"
    assert soon(lambda: is_gone(file))


def test_a_program_that_is_given_up_is_ended_with_all_of_its_processes(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    config = ProgramConfig(command=(sys.executable, "-c", starts_another(file) + "time.sleep(1000)"))

    async def go() -> None:
        running = asyncio.ensure_future(run_program(config, TASK, HERE))
        await until(lambda: file.exists() and bool(file.read_text()))
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(go())
    assert soon(lambda: is_gone(file))
