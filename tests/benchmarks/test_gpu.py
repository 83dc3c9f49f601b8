"""What is measured on a GPU, where there is none."""

import sys

import psutil
import pytest

from benchmarks import harness
from benchmarks.gpu import __main__ as proof
from tests.support.patience import soon


def test_without_a_gpu_the_proof_ends_at_once_with_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu"])
    monkeypatch.setattr(proof, "sees_gpu", lambda: False)
    assert proof.main() == 2
    out, said = capsys.readouterr()
    assert out == ""
    assert said == "gpu-proof: PyTorch sees no GPU on this machine (coa doctor says why); nothing was measured\n"


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("print('{\"a\": 1.5}'); print('(EngineCore) bye')", {"a": 1.5}),
        ("print('nothing')", "gave no figures"),
        ("raise SystemExit(3)", "ended with status 3; its error is above"),
    ],
)
def test_a_part_gives_its_figures_or_says_why_not(code: str, found: object) -> None:
    assert proof.play([sys.executable, "-c", code], 60.0) == found


def test_a_part_that_takes_too_long_ends_with_all_that_it_has_started(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof, "ENDS_S", 1.0)
    grandchild = "[sys.executable, '-c', 'import time; time.sleep(1000)', 'grandchild']"
    code = f"import subprocess, sys, time; subprocess.Popen({grandchild}); time.sleep(1000)"
    assert proof.play([sys.executable, "-c", code], 2.0) == "took longer than 2 s"

    def ended() -> bool:
        return not any("grandchild" in (one.info["cmdline"] or ()) for one in psutil.process_iter(["cmdline"]))

    assert soon(ended)


def test_a_machine_without_git_has_results_without_a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert harness.commit() == ""
