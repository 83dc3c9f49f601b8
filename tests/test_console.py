import contextlib
import io
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from jobs import console as console_module
from jobs.console import Console, show_fields

ROOT = Path(__file__).parents[1]


def test_fields_are_short() -> None:
    assert show_fields({"reward": 0.71234, "staleness": 1, "phase": "roll"}) == "reward 0.712  staleness 1  phase roll"


def test_without_a_terminal_a_stage_is_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console_module, "PLAIN_EVERY_S", 0.0)
    out = io.StringIO()
    with Console(out, io.StringIO()).stage("sft", total=2) as stage:
        stage.update(1, loss=0.5)
        stage.update(2, loss=0.25)
    assert out.getvalue().splitlines() == [
        "sft          1/2       0 s          loss 0.5",
        "sft          2/2       0 s          loss 0.25",
        "sft          2/2       0 s          loss 0.25",
    ]


def test_lines_come_seldom() -> None:
    out = io.StringIO()
    with Console(out, io.StringIO()).stage("rl", total=100) as stage:
        for done in range(100):
            stage.update(done)
    assert len(out.getvalue().splitlines()) == 1


def test_a_stage_that_fails_says_so() -> None:
    out = io.StringIO()

    def fail() -> None:
        with Console(out, io.StringIO()).stage("rl") as stage:
            stage.update(3)
            raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        fail()
    assert out.getvalue().startswith("rl (stopped) 3")


def test_text_is_not_markup() -> None:
    out = io.StringIO()
    Console(out, io.StringIO()).say("[bold]x[/bold] :smile:")
    assert out.getvalue() == "[bold]x[/bold] :smile:\n"


def test_a_table_holds_its_cells() -> None:
    out = io.StringIO()
    Console(out, io.StringIO()).table("Result", ("model", "pass@1"), [("sft", 0.43219), ("rl", "-")])
    words = [line.split() for line in out.getvalue().splitlines() if line.strip()]
    assert [words[0], words[1], *words[3:]] == [["Result"], ["model", "pass@1"], ["sft", "0.432"], ["rl", "-"]]


def test_a_terminal_shows_a_bar_and_keeps_one_line(tmp_path: Path) -> None:
    program = f"""
from pathlib import Path
from jobs.console import open_console
with open_console(Path({str(tmp_path / "log")!r})) as console, console.stage("rl", 2) as stage:
    stage.update(2, reward=0.5)
"""
    shown = b""
    leader, follower = pty.openpty()
    command = [sys.executable, "-c", program]
    environment = {**os.environ, "TERM": "xterm"}
    with subprocess.Popen(command, cwd=ROOT, stdout=follower, stderr=follower, env=environment) as process:
        os.close(follower)
        with contextlib.suppress(OSError):  # how a pseudo-terminal says that the other side is gone
            while data := os.read(leader, 4096):
                shown += data
    os.close(leader)
    assert process.returncode == 0
    assert "━".encode() in shown
    assert shown.splitlines()[-1].decode().endswith("rl           2/2       0 s          reward 0.5")


def test_chatter_goes_to_the_log_and_is_restored_afterwards(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "driver.log"
    program = f"""
import os, sys
from pathlib import Path
from jobs.console import open_console
print("before")
with open_console(Path({str(log)!r})) as console:
    print("python chatter")
    os.write(1, b"c chatter\\n")
    os.write(2, b"error chatter\\n")
    os.system("echo child chatter")
    console.say("seen")
    console.error("bad")
print("after")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    assert done.stdout.splitlines() == ["before", "seen", "after"]
    assert done.stderr == "bad\n"
    assert sorted(log.read_text().splitlines()) == ["c chatter", "child chatter", "error chatter", "python chatter"]
