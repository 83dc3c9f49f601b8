import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coa.errors import UserError
from coa.reporting import wandb_sink
from coa.reporting.boundary import SinkBoundary
from coa.reporting.metrics import MetricsLog, read_metrics
from coa.reporting.wandb_sink import WandbConfig, WandbMode, WandbSink, mode_of, row
from tests.support.patience import PATIENCE_S, soon
from tests.support.wandb_file import history, offline_files, run_of

NO_HOME = {"NETRC": "/nowhere"}


def open_sink(folder: Path, said: list[str], mode: WandbMode = WandbMode.offline) -> WandbSink:
    config = WandbConfig(project="tests", tags=("tiny", "cpu"))
    return WandbSink(folder, config, mode, recipe={"seed": 7}, say=said.append, boundary=SinkBoundary(said.append))


def test_wandb_gets_what_the_file_gets_and_a_resumed_folder_is_the_same_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wandb_sink, "QUIET_S", PATIENCE_S)
    said: list[str] = []
    for start in (1, 3):
        sink = open_sink(tmp_path, said)
        with MetricsLog(tmp_path / "metrics.jsonl", {"rl": start}, sinks=[sink]) as log:
            for step in (start, start + 1):
                log.write("rl", step, loss=step / 4, **{"reward/calc": 1.0}, note="text is no curve")
        sink.close()
        second = int(time.time())  # wandb names a start by it
        assert soon(lambda second=second: int(time.time()) > second)
    first, second = offline_files(tmp_path)
    rows = [*history(first), *history(second)]
    assert rows == [{"rl/step": n, "rl/loss": n / 4, "rl/reward/calc": 1.0} for n in (1, 2, 3, 4)]
    assert rows == [row(record) for record in read_metrics(tmp_path / "metrics.jsonl")]
    run = run_of(first)
    assert run.run_id == run_of(second).run_id == (tmp_path / "wandb" / "run-id").read_text()
    assert (run.project, run.display_name, list(run.tags)) == ("tests", tmp_path.name, ["tiny", "cpu"])
    assert {item.key: item.value_json for item in run.config.update}["seed"] == "7"
    assert said == []


class SlowRun:
    """A run of wandb's that takes long to start."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self.rows: list[dict[str, float]] = []
        self.log = self.rows.append

    def start(self, _: Any) -> Any:
        self.started.wait()
        return self

    def fail(self, _: Any) -> Any:
        raise ValueError("no room for the run\nmore")

    def finish(self) -> None:
        pass


def test_a_stage_waits_for_nothing_of_wandb_and_no_record_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = SlowRun()
    monkeypatch.setattr(WandbSink, "_start", run.start)
    sink = open_sink(tmp_path, [])
    for step in range(3):
        sink.emit({"stage": "rl", "step": step, "time": 0.0, "loss": 1.0})
    assert run.rows == []
    run.started.set()
    sink.close()
    assert run.rows == [{"rl/step": step, "rl/loss": 1.0} for step in range(3)]


def test_a_wandb_that_fails_is_said_once_and_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WandbSink, "_start", SlowRun().fail)
    said: list[str] = []
    boundary = SinkBoundary(said.append)
    sink = WandbSink(tmp_path, WandbConfig(), WandbMode.offline, recipe={}, say=said.append, boundary=boundary)
    sink._thread.join()
    with MetricsLog(tmp_path / "metrics.jsonl", sinks=[sink], boundary=boundary) as log:
        log.write("rl", 1, loss=0.5)
    boundary.attempt(str(sink), sink.close)
    assert said == ["wandb failed and is left out from now on; the run continues (ValueError: no room for the run)"]
    assert sink._records.empty()


def test_without_a_home_nothing_is_known_of_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(_: int) -> Any:
        raise KeyError("getpwuid(): uid not found: 12345")

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", nobody)
    assert mode_of(WandbConfig(), {}) == (WandbMode.offline, "")


def test_an_end_that_takes_too_long_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release, said = threading.Event(), []
    monkeypatch.setattr(WandbSink, "_work", lambda sink: release.wait())
    monkeypatch.setattr(wandb_sink, "QUIET_S", 0.0)
    monkeypatch.setattr(wandb_sink, "FINISH_S", 0.0)
    open_sink(tmp_path, said).close()
    assert [line.split(";")[0] for line in said] == [
        "wandb: waiting up to 0 s for the last records",
        "wandb: not everything was sent",
    ]
    release.set()


@pytest.fixture
def silent_server() -> Iterator[str]:
    """An address that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def test_a_server_that_does_not_answer_leaves_an_offline_run_and_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, silent_server: str
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", silent_server)
    monkeypatch.setattr(wandb_sink, "START_S", 1)
    monkeypatch.setattr(wandb_sink, "FINISH_S", 300.0)  # of a machine with other things to do
    said: list[str] = []
    sink = open_sink(tmp_path, said, WandbMode.online)
    sink.emit({"stage": "sft", "step": 1, "time": 0.0, "loss": 1.0})
    sink.close()
    [line] = [line for line in said if "waiting" not in line]
    assert line.startswith("wandb: ")
    assert line.endswith(": logged offline")
    assert history(offline_files(tmp_path)[-1]) == [{"sft/step": 1, "sft/loss": 1.0}]


def test_without_a_key_a_run_is_logged_offline(tmp_path: Path) -> None:
    assert mode_of(WandbConfig(), NO_HOME) == (WandbMode.offline, "")
    assert mode_of(WandbConfig(), {**NO_HOME, "WANDB_API_KEY": "k"}) == (WandbMode.online, "")
    asked, why = mode_of(WandbConfig(mode=WandbMode.online), NO_HOME)
    assert asked is WandbMode.offline
    assert "no key" in why
    keys = tmp_path / "netrc"
    keys.write_text("machine api.wandb.ai login user password k\n")
    assert mode_of(WandbConfig(), {"NETRC": str(keys)})[0] is WandbMode.online
    assert mode_of(WandbConfig(), {"NETRC": str(keys), "WANDB_BASE_URL": "http://own:8080"})[0] is WandbMode.offline


def test_the_recipe_says_the_mode_and_where_it_does_not_the_environment() -> None:
    environment = {**NO_HOME, "WANDB_API_KEY": "k", "WANDB_MODE": "disabled"}
    assert mode_of(WandbConfig(), environment) == (WandbMode.disabled, "")
    assert mode_of(WandbConfig(mode=WandbMode.offline), environment) == (WandbMode.offline, "")
    with pytest.raises(UserError, match="WANDB_MODE is 'dryrun'"):
        mode_of(WandbConfig(), {**NO_HOME, "WANDB_MODE": "dryrun"})
