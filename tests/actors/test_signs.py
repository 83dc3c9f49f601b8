import os
import subprocess
import sys
from pathlib import Path

from actors.signs import MIB, SLOW_S, Signs


def test_megabytes_that_children_read_are_signs(tmp_path: Path) -> None:
    data = tmp_path / "model"
    data.write_bytes(b"\0" * 8 * MIB)
    signs = Signs([])
    before = signs.count(os.getpid())
    program = f"import sys; open({str(data)!r}, 'rb').read(); print('read', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        reading = signs.count(os.getpid())
        assert reading - before >= 8
        child.communicate()
    assert signs.count(os.getpid()) >= reading, "what an ended child has read still counts"


def looks(log: Path, *written: str) -> list[int]:
    """Numbers of signs after each of these texts was appended to the log."""
    signs = Signs([log])
    begun, found = signs.count(0), []
    for text in written:
        with log.open("a") as file:
            file.write(text)
        found.append(signs.count(0) - begun)
    return found


def test_a_log_that_repeats_itself_shows_no_sign(tmp_path: Path) -> None:
    waits = [
        f"11-26 13:{minute:02}:09 INFO [core.py:{minute}] waiting for 1 handshake, {minute}0 s\n"
        for minute in (1, 2, 3)
    ]
    assert looks(tmp_path / "log", *waits) == [1, 1, 1]
    same = "no available shared memory broadcast block found\n"
    assert looks(tmp_path / "other", same, 3 * same, "object 0x7f3ea2 of a1b2\n", "object 0x9e1 of c3d4\n") == [
        1,
        1,
        2,
        2,
    ]


def test_a_slow_start_that_says_how_far_it_is_shows_signs(tmp_path: Path) -> None:
    bar = "Loading safetensors checkpoint shards:  {0:3}% Completed | {1}/8 [00:{0:02}<01:12,  9.1s/it]"
    shown = [f"\r{bar.format(done * 100 // 8, done)}\r" for done in range(4)]
    assert looks(tmp_path / "bar", *shown, shown[-1]) == [1, 2, 3, 4, 4]
    lines = [
        "loading weights\n",
        "compiling\n",
        "graph 1/40\n",
        "graph 2/40\n",
        "graph 2/40\n",
        "12.5 % done\n",
        "13 % done\n",
    ]
    assert looks(tmp_path / "lines", *lines) == [1, 2, 3, 4, 4, 5, 6]


def test_a_line_counts_once_it_is_whole(tmp_path: Path) -> None:
    assert looks(tmp_path / "log", "waiting\nwai", "ting\nwait", "ing\n") == [1, 1, 1]


def test_a_pipe_is_left_to_its_reader() -> None:
    reader, writer = os.pipe()
    signs = Signs([reader])
    before = signs.count(0)
    os.write(writer, b"said\n")
    assert signs.count(0) == before
    assert os.read(reader, 100) == b"said\n"
    os.close(reader)
    os.close(writer)


def test_looking_is_no_sign_and_neither_are_slow_reads(tmp_path: Path) -> None:
    """A look at the processes of the machine reads tens of kilobytes; so does whoever waits and polls."""
    (data := tmp_path / "data").write_bytes(b"\0" * MIB)
    now = 0.0
    signs = Signs([], clock=lambda: now)
    begun = signs.count(0)
    while signs._ours < 2 * MIB:
        assert signs.count(0) == begun
    for _ in range(8):
        with data.open("rb") as file:
            file.read(MIB // 3)
        now += SLOW_S
        assert signs.count(0) == begun
    data.read_bytes()
    assert signs.count(0) == begun + 1


def test_a_process_that_only_waits_shows_no_sign(tmp_path: Path) -> None:
    program = "import os, sys\nwhile os.read(0, 1): os.write(1, b'x')"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None

        def talk() -> None:
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write(b"y" * 1000)
            child.stdin.flush()
            assert len(child.stdout.read(1000)) == 1000

        signs = Signs([])
        talk()
        before = signs.count(child.pid)
        talk()
        assert signs.count(child.pid) == before
        child.communicate()


def test_a_process_that_has_ended_shows_none(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert Signs([tmp_path / "no log"]).count(child.pid) == 0
