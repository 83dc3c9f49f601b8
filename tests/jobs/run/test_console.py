import contextlib
import fcntl
import io
import itertools
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from jobs.run import console as console_module
from jobs.run.console import Console, PlainLines, Stage, show_fields
from tests.support.patience import PATIENCE_S

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A millisecond passes from one look at it to the next."""
    ticks = itertools.count()
    monkeypatch.setattr(console_module, "time", SimpleNamespace(monotonic=lambda: next(ticks) / 1000))


RL_FIELDS = {"reward": 0.71234, "entropy": 0.3456, "kl": "-1.2e-04", "stale": 0.9, "tok/s": 12345.6}


def test_fields_are_short_and_those_that_do_not_fit_are_left_out_whole() -> None:
    fields = {"reward": 0.71234, "staleness": 1, "phase": "roll"}
    assert show_fields(fields, 40) == "reward 0.712  staleness 1  phase roll"
    assert show_fields(fields, 37) == "reward 0.712  staleness 1  phase roll"
    assert show_fields(fields, 36) == "reward 0.712  staleness 1"
    assert show_fields(fields, 11) == ""


def test_a_stage_is_one_line_without_a_terminal() -> None:
    out = io.StringIO()
    with Console(out, io.StringIO()).stage("sft", total=2) as stage:
        stage.update(1, loss=0.5)
        stage.update(2, loss=0.25)
    assert out.getvalue() == "sft          2/2      0:00  loss 0.25\n"


def test_without_a_terminal_nothing_is_silent_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console_module, "PLAIN_EVERY_S", 0.01)
    out = Lines()
    with Console(out, io.StringIO()).stage("rl", total=36) as stage:
        stage.phase("starting 2 learners, loading the model")
        out.wait_for("rl           0/36     0:00  starting 2 learners, loading the model")
        stage.update(1, **RL_FIELDS)
        out.wait_for("rl           1/36     0:00  reward 0.712  entropy 0.346  kl -1.2e-04  stale 0.9  tok/s 1.23e+04")


LONG = "waiting for groups: " + ", ".join(f"group {n} was dropped for its reason" for n in range(20))


def test_without_a_terminal_a_reason_is_whole_however_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console_module, "PLAIN_EVERY_S", 0.01)
    out = Lines()

    def fail() -> None:
        with Console(out, io.StringIO()).stage("rl", total=36) as stage:
            stage.phase(LONG)
            out.wait_for(f"rl           0/36     0:00  {LONG}")
            raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        fail()
    assert out.getvalue().splitlines()[-1] == f"rl (stopped) 0/36     0:00  {LONG}"


def printed(course: Mapping[int, str], seconds: int) -> list[tuple[int, str]]:
    """When a stage has lines without a terminal, and about what. course: what it does from which second on."""
    lines, doing, found = PlainLines(0.0), "", []
    for second in range(seconds):
        doing = course.get(second, doing)
        if lines.due(doing, float(second)):
            found.append((second, doing))
    return found


def test_without_a_terminal_a_stage_has_a_line_a_minute_and_one_about_each_new_thing() -> None:
    assert printed({}, 200) == [(5, ""), (65, ""), (125, ""), (185, "")]
    course = {0: "loading", 30: "first step", 33: "", 100: "waiting", 110: "", 120: "waiting", 130: "loading"}
    found = printed(course, 200)
    assert found == [(5, "loading"), (38, ""), (98, ""), (105, "waiting"), (165, "loading")]


def test_something_that_changes_all_the_time_is_no_new_thing() -> None:
    stage, lines, count = Stage("rl", 36), PlainLines(0.0), 0
    for second in range(130):
        stage.phase("waiting for groups", f"{second} so far")
        count += lines.due(stage.doing, float(second))
    assert count == 3
    assert stage.line().endswith("waiting for groups, 129 so far")


def test_what_a_stage_came_to_outlasts_what_it_did_last() -> None:
    out = io.StringIO()
    with Console(out, io.StringIO()).stage("rl", total=36) as stage:
        stage.update(36, reward=0.95)
        stage.phase("loading the last weights into the engines")
    assert out.getvalue() == "rl           36/36    0:00  reward 0.95\n"


def test_what_is_waited_for_between_stages_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = io.StringIO()
    with Console(quick, io.StringIO()).waiting("engines", "starting 2"):
        pass
    assert quick.getvalue() == ""
    monkeypatch.setattr(console_module, "PLAIN_EVERY_S", 0.01)
    out = Lines()
    with Console(out, io.StringIO()).waiting("engines", "starting 2"):
        out.wait_for("engines               0:00  starting 2")


class Lines(io.StringIO):
    """A stream that another thread can wait on."""

    def __init__(self) -> None:
        super().__init__()
        self._written = threading.Condition()

    def write(self, text: str) -> int:
        with self._written:
            self._written.notify_all()
            return super().write(text)

    def wait_for(self, line: str) -> None:
        with self._written:
            assert self._written.wait_for(lambda: line in self.getvalue().splitlines(), timeout=PATIENCE_S), (
                self.getvalue()
            )


@pytest.mark.parametrize("width", [80, 60, 100])
def test_a_line_fits_whatever_it_has_to_say(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(console_module.time, "monotonic", lambda: now)
    stage = Stage("evaluate sft", 80000)
    for done in (0, 100, 200, 300):
        now += 100
        stage.update(done, **RL_FIELDS)
        assert len(stage.line(width)) <= width
    assert "~22:08:20 left" in stage.line(width)
    stage.name += " (stopped)"
    assert len(stage.line(width)) <= width


def test_at_80_columns_a_step_of_rl_shows_reward_entropy_and_kl(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(console_module.time, "monotonic", lambda: now)
    stage = Stage("rl", 36)
    for done in (9, 10, 11, 12):
        now += 10
        stage.update(done, **RL_FIELDS)
    assert stage.line(80) == "rl           12/36    0:40  ~4:00 left  reward 0.712  entropy 0.346  kl -1.2e-04"


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


PROGRAM = """
import time
from pathlib import Path
from jobs.run.console import open_console
with open_console(Path({log!r})) as console:
    with console.waiting("engines", "starting 2"):
        time.sleep(0.5)
    with console.stage("evaluate sft", 1200) as stage:
        stage.phase("loading the weights of the learners into the engines, which may take some time")
        time.sleep(0.5)
        for done in (1000, 1100, 1125, 1150):
            stage.update(done, reward=0.71234, entropy=0.3456, kl="1.2e-04", stale=0.9)
            time.sleep(0.5)
    console.table("pass@1", ["", "", "SFT", "RL"], [["multi_hop_comparison", "sampled", *INTERVALS]])
"""
INTERVALS = 'INTERVALS = ["0.470  [0.430, 0.510]", "1.000  [0.994, 1.000]"]'


def on_a_terminal(program: str, columns: int) -> tuple[int, list[str]]:
    """Exit status, and every line that was ever shown on a terminal of so many columns, as wide as it was sent."""
    shown = b""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    command = [sys.executable, "-c", program]
    environment = {**os.environ, "TERM": "xterm"}
    with subprocess.Popen(command, cwd=ROOT, stdout=follower, stderr=follower, env=environment) as process:
        os.close(follower)
        with contextlib.suppress(OSError):  # how a pseudo-terminal says that the other side is gone
            while data := os.read(leader, 4096):
                shown += data
    os.close(leader)
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode())
    return process.returncode, re.split(r"[\r\n]+", plain)


def test_a_terminal_shows_a_bar_and_keeps_one_line_within_its_width(tmp_path: Path) -> None:
    status, lines = on_a_terminal(f"{INTERVALS}\n{PROGRAM.format(log=str(tmp_path / 'log'))}", 80)
    assert status == 0
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("engines") and line.rstrip().endswith("starting 2") for line in lines)
    said = " ".join(line.strip() for line in lines)
    assert "loading the weights of the learners into the engines, which may take some time" in said
    live = [line.rstrip() for line in lines if "━" in line and "1150/1200" in line]
    assert live[-1].startswith("evaluate sft ━━━━━━━━━")
    assert "left" in live[-1]
    assert "reward 0.712" in live[-1]
    [lasting] = [line for line in lines if line.startswith("evaluate sft 1150")]
    assert lasting.endswith("reward 0.712  entropy 0.346  kl 1.2e-04  stale 0.9")
    assert any(all(text in line for text in ("multi_hop_comparison", "[0.430, 0.510]", " 1.000]")) for line in lines)


def test_chatter_goes_to_the_log_and_is_restored_afterwards(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "driver.log"
    program = f"""
import os, sys
from pathlib import Path
from jobs.run.console import open_console
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


def test_cells_that_are_too_wide_go_on_below_and_lose_nothing() -> None:
    out = io.StringIO()
    Console(out, io.StringIO()).table("Plan", ("what", "value"), [("x" * 60, "y" * 70)])
    assert max(map(len, out.getvalue().splitlines())) <= 80
    assert out.getvalue().count("x") == 60
    assert out.getvalue().count("y") == 70
