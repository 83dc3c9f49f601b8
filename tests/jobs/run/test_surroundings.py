"""Commands in surroundings that nobody prepared: other encodings, no home, no user's name, no reader."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jobs.run import surroundings
from jobs.run.surroundings import LONGEST_TEMPORARY, provide_home, shorten_temporary

ROOT = Path(__file__).parents[3]
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}


def shell(line: str, **environment: str) -> Any:
    """What a shell says that has `coa` as a function."""
    known = {name: value for name, value in os.environ.items() if name not in ("LANG", "LC_ALL", "PYTHONUTF8")}
    return subprocess.run(
        ["bash", "-c", f'coa() {{ "{sys.executable}" -m jobs.cli "$@"; }}; {line}'],
        cwd=ROOT,
        env={**known, **environment},
        capture_output=True,
        check=False,
        timeout=120,
    )


def test_names_are_the_same_in_any_locale(tmp_path: Path) -> None:
    folder = tmp_path / "größe 1 東京"
    folder.mkdir()
    rows = "".join(f"Wie groß ist {number} ?,{number}\n" for number in range(10))
    (folder / "Aufgaben.csv").write_text(f"question,answer\n{rows}", encoding="utf-8")
    words = f'coa train --recipe tiny --dry-run "run_dir={folder}/läufe" "tasks.path={folder}/Aufgaben.csv"'
    plain, ascii_only = shell(words, LC_ALL="C.UTF-8"), shell(words, **ASCII)
    assert (plain.returncode, ascii_only.returncode) == (0, 0), ascii_only.stderr
    assert "größe 1 東京/läufe" in " ".join(plain.stdout.decode().split())
    assert b"gr\\xf6\\xdfe 1 \\u6771\\u4eac" in b" ".join(ascii_only.stdout.split())


def test_a_child_of_a_command_reads_utf_8_in_any_locale(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import subprocess, sys; from jobs.run import surroundings; surroundings.in_utf8(); surroundings.prepare();"
        "subprocess.run([sys.executable, '-c', 'import sys; print(sys.flags.utf8_mode, ascii(sys.argv[1]))', 'ö'])",
        encoding="utf-8",
    )
    done = shell(f'export PYTHONPATH=.; "{sys.executable}" "{program}"', LC_ALL="C", PYTHONUTF8="0")
    assert done.stdout.decode().split() == ["1", "'\\xf6'"], done.stderr


@pytest.mark.parametrize("command", ["coa settings", "coa recipe --search tasks", "coa --help"])
def test_a_reader_that_leaves_ends_a_command_without_a_traceback(command: str) -> None:
    done = shell(f"{command} | head -c 1 >/dev/null; echo ${{PIPESTATUS[0]}}")
    assert done.stdout.decode().strip() in ("0", "2", "141")
    assert b"Traceback" not in done.stderr
    assert b"Exception" not in done.stderr


COMMANDS = ["evaluate --benchmarks", "recipe --search tasks", "train --recipe tiny --dry-run", "--help"]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_reader_that_has_left_is_exit_status_141(command: str) -> None:
    done = shell(f"(sleep 1; coa {command}) | true; echo ${{PIPESTATUS[0]}}")
    assert done.stdout.decode().strip() == "141", done.stderr
    assert done.stderr == b""


@pytest.mark.parametrize("command", COMMANDS)
def test_a_stdout_that_is_full_is_one_line_and_exit_status_1(command: str) -> None:
    done = shell(f"coa {command} > /dev/full")
    assert done.stderr.decode() == "coa: standard output can't be written to: No space left on device\n"
    assert done.returncode == 1


FAILED = """
import sys
from contextlib import suppress
from jobs import cli

def command(arguments):
    with suppress(OSError):  # as the console does
        print("x")
    cli._say("coa: rl failed")
    return 1

cli._command = command
sys.exit(cli.main([]))
"""


def test_a_command_that_fails_says_why_and_not_that_its_stdout_is_full_too(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(FAILED)
    done = shell(f'export PYTHONPATH=.; "{sys.executable}" "{program}" > /dev/full')
    assert (done.returncode, done.stderr) == (1, b"coa: rl failed\n")


def test_a_mistake_is_exit_status_2_whatever_can_be_written_to() -> None:
    for streams in ("2> /dev/full", "> /dev/full 2>&1", "> /dev/full 2>&-"):
        assert shell(f"coa recipe no-such-recipe {streams}").returncode == 2


@pytest.mark.parametrize("closed", [">&-", "<&-", ">&- 2>&- <&-"])
def test_closed_streams_are_no_files(closed: str, tmp_path: Path) -> None:
    assert shell(f"coa recipe --search tasks {closed}").returncode == 0
    refused = shell(f'coa train --recipe tiny "run_dir={tmp_path}/gr\xf6\xdfe" rl.step=1 {closed}')
    assert refused.returncode == 2
    assert not list(tmp_path.iterdir())


CONSOLE = """
from pathlib import Path
from jobs.run.console import open_console
with open_console(Path({log!r})) as console:
    for number in range(3):
        console.say(f"größe {{number}}")
    console.table("größe", ["a"], [["东"]])
    Path({done!r}).write_text("done")
"""


@pytest.mark.parametrize("out", ["| true", "> /dev/full", ">&-"])
def test_a_job_continues_without_its_terminal_and_says_so_once(out: str, tmp_path: Path) -> None:
    program, done, log = tmp_path / "program.py", tmp_path / "done", tmp_path / "log"
    program.write_text(CONSOLE.format(log=str(log), done=str(done)), encoding="utf-8")
    said = shell(f'export PYTHONPATH=.; (sleep 0.5; "{sys.executable}" "{program}") {out}; exit ${{PIPESTATUS[0]}}')
    assert said.returncode == 0, said.stderr
    assert done.read_text() == "done"
    lines = said.stderr.decode().splitlines()
    if out != ">&-":
        [line] = lines
        assert line.startswith("stdout failed and is left out from now on; the run continues (")


def test_a_console_shows_what_its_encoding_lacks_by_number(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(CONSOLE.format(log=str(tmp_path / "log"), done=str(tmp_path / "done")), encoding="utf-8")
    said = shell(f'export PYTHONPATH=.; "{sys.executable}" "{program}"', **{**ASCII, "PYTHONUTF8": "1"})
    assert said.returncode == 0, said.stderr
    assert said.stdout.isascii()
    assert said.stdout.splitlines()[:3] == [b"gr\\xf6\\xdfe 0", b"gr\\xf6\\xdfe 1", b"gr\\xf6\\xdfe 2"]


@pytest.mark.parametrize("name", ["x" * LONGEST_TEMPORARY, "with blanks", "größe", "100%"])
def test_temporary_files_have_a_short_plain_path_and_stay_in_their_folder(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    folder.mkdir()
    program = (
        "import os, tempfile; from jobs.run import surroundings; surroundings.prepare(); path = tempfile.mkdtemp();"
        "print(len(os.environ['TMPDIR']), os.environ['TMPDIR'].isascii(), os.path.realpath(path), path)"
    )
    done = shell(f'"{sys.executable}" -c "{program}"', TMPDIR=str(folder), LC_ALL="C.UTF-8")
    length, is_ascii, rest = done.stdout.decode().strip().split(" ", 2)
    assert int(length) <= LONGEST_TEMPORARY
    assert is_ascii == "True"
    assert rest.startswith(f"{folder}/")
    assert not os.path.lexists(Path(rest.split(" ")[-1]).parent), "the link ends with the process"


def test_a_short_plain_path_of_temporary_files_stays() -> None:
    environment = {"TMPDIR": "/var/tmp"}
    shorten_temporary(environment)
    assert environment == {"TMPDIR": "/var/tmp"}


def test_a_user_without_a_home_and_a_name_gets_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surroundings, "_is_known", lambda user: False)
    monkeypatch.setattr(surroundings.tempfile, "tempdir", str(tmp_path))
    for home in ("~", "/nowhere/at/all"):
        monkeypatch.setattr(surroundings.os.path, "expanduser", lambda path, home=home: home)
        environment: dict[str, str] = {}
        provide_home(environment)
        assert environment == {"HOME": str(tmp_path / f"coa-home-{os.getuid()}"), "USER": f"uid-{os.getuid()}"}
        assert Path(environment["HOME"]).stat().st_mode & 0o777 == 0o700


def test_a_home_that_is_read_only_stays_and_caches_are_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(surroundings, "_is_writable", lambda folder: False)
    monkeypatch.setattr(surroundings.tempfile, "tempdir", str(tmp_path))
    environment = {"USER": "anna", "VLLM_CACHE_ROOT": "/caches"}
    provide_home(environment)
    own = tmp_path / f"coa-home-{os.getuid()}"
    assert environment == {
        "USER": "anna",
        "VLLM_CACHE_ROOT": "/caches",
        "VLLM_CONFIG_ROOT": str(own / "vllm-config"),
        "TRITON_CACHE_DIR": str(own / "triton"),
    }


def test_a_folder_that_somebody_else_has_made_is_nobodys_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surroundings.tempfile, "tempdir", str(tmp_path))
    (tmp_path / f"coa-home-{os.getuid()}").symlink_to("/etc")
    assert surroundings._own_folder().parent == tmp_path
    assert not surroundings._own_folder().is_symlink()


def test_a_name_that_is_not_utf_8_is_refused_in_one_line(tmp_path: Path) -> None:
    done = shell(f"coa train --recipe tiny --dry-run $'run_dir={tmp_path}/gr\\xf6\\xdfe'")
    assert (done.returncode, done.stdout) == (2, b"")
    [line] = done.stderr.decode().splitlines()
    assert line.startswith("coa: 'run_dir=")
    assert line.endswith("is not UTF-8: give the file or folder another name")
    inside = shell(
        f"mkdir $'{tmp_path}/gr\\xf6\\xdfe' && cd $_ && PYTHONPATH='{ROOT}' coa train --recipe tiny --dry-run"
    )
    assert inside.returncode == 2
    assert b"can't be a run's folder" in inside.stderr
    assert b"is not UTF-8" in inside.stderr
