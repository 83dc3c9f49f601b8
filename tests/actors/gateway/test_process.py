"""Programs of episodes as processes: what they are told, what they answer, and that nothing of them stays."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from actors.gateway import process
from actors.gateway.process import Exited, environment, run_command
from tests.support.patience import soon, until
from tests.support.programs import is_gone, order_of, starts_another

TASK = order_of().task
HERE = environment("http://127.0.0.1:1", "secret")


def run(program: str) -> Exited:
    return asyncio.run(run_command((sys.executable, "-c", program), TASK, HERE))


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


def test_what_a_program_has_started_ends_with_it(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    assert run(starts_another(file) + "print(5)").answer == "5"
    assert soon(lambda: is_gone(file))


def test_a_program_that_is_given_up_is_ended_with_all_of_its_processes(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    command = (sys.executable, "-c", starts_another(file) + "time.sleep(1000)")

    async def go() -> None:
        running = asyncio.ensure_future(run_command(command, TASK, HERE))
        await until(lambda: file.exists() and bool(file.read_text()))
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(go())
    assert soon(lambda: is_gone(file))
