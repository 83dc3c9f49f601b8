import asyncio
import os
import shutil
import time
from pathlib import Path

import pytest

from coa.errors import ToolDown, UserError
from coa.tools import sandbox
from coa.tools.code import CodeTool, Program, read_program
from coa.tools.sandbox import MIB, Capped, Ended, Sandbox, SandboxConfig, describe, require_bubblewrap

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
PATIENT = SandboxConfig(cpu_s=1, wall_s=30.0)
"""For what must end by its CPU time, however busy the machine is."""
QUICK = SandboxConfig(cpu_s=1, wall_s=2.0, memory_mib=256, files_mib=4)


def run(program: str, stdin: str = "", config: SandboxConfig = QUICK) -> str:
    return asyncio.run(Sandbox(config).run(program, stdin))


def processes(config: SandboxConfig) -> list[str]:
    """What runs on this machine under a sandbox of just this size of workspace."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = entry.read_bytes()
        except OSError:
            continue
        if f"--size\0{config.files_mib * MIB}\0".encode() in command:
            found.append(entry.parent.name)
    return found


def unique(wall_s: float) -> SandboxConfig:
    return SandboxConfig(wall_s=wall_s, files_mib=100 + os.getpid() % 10_000)


def test_what_a_program_prints_comes_back() -> None:
    assert run("print(3 * 4 - 5)\nprint('é')") == "7\né"


def test_a_program_that_prints_nothing_says_so() -> None:
    assert run("x = 1") == "no output"


def test_standard_input_reaches_the_program() -> None:
    assert run("print(sum(map(int, input().split())))", stdin="1 2 3\n") == "6"


def test_input_that_is_not_read_does_no_harm() -> None:
    assert run("print(1)", stdin="x" * 1_000_000) == "1"


def test_a_failure_shows_what_was_printed_and_the_last_line_of_the_traceback() -> None:
    assert run("print(1)\nprint([][0])") == "1\nIndexError: list index out of range"
    assert run("def") == "SyntaxError: invalid syntax"
    assert run("import sys; sys.exit(3)") == "exit status 3"


def test_there_is_no_network() -> None:
    assert "Network is unreachable" in run("import socket; socket.create_connection(('198.51.100.1', 80), 1)")


def test_the_hosts_loopback_is_not_the_programs_loopback() -> None:
    async def serve_and_try() -> str:
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            return await Sandbox(QUICK).run(f"import socket; socket.create_connection(('127.0.0.1', {port}), 1)")

    assert "Connection refused" in asyncio.run(serve_and_try())


def test_secrets_of_the_system_are_not_there() -> None:
    assert run("open('/etc/shadow')").startswith("FileNotFoundError")


def test_the_project_is_not_there() -> None:
    assert run(f"import os; print(os.path.exists({str(Path(sandbox.__file__).parents[2])!r}))") == "False"


def test_the_environment_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_KEY", "1")
    assert run("import os; print(sorted(os.environ))") == "['HOME', 'LC_CTYPE', 'PWD']"


def test_no_descriptor_of_the_parent_is_open() -> None:
    program = "import os\nfor n in range(3, 64):\n    try: os.fstat(n); print(n)\n    except OSError: pass"
    assert run(program) == "no output"


def test_only_the_workspace_can_be_written() -> None:
    assert run("open('note', 'w').write('x'); print(open('note').read())") == "x"
    assert "Read-only file system" in run("open('/note', 'w')")
    assert "No space left on device" in run("for n in range(9): open(f'f{n}', 'wb').write(bytes(1 << 20))")


def test_a_run_does_not_see_the_files_of_another() -> None:
    run("open('note', 'w').write('x')")
    assert run("import os; print(os.listdir())") == "['main.py']"


def test_the_wall_limit_ends_a_program_that_sleeps() -> None:
    started = time.monotonic()
    assert run("import time; print(1, flush=True); time.sleep(60)") == "1\nstopped: over the limit of 2 s"
    assert time.monotonic() - started < 4


def test_the_cpu_limit_ends_a_program_that_spins() -> None:
    assert run("while True: pass", config=PATIENT) == "stopped: over the limit of 1 s of CPU time"


def test_the_wall_limit_holds_for_a_program_that_closed_its_outputs() -> None:
    assert run("import os, time; os.close(1); os.close(2); time.sleep(60)") == "stopped: over the limit of 2 s"


def test_the_memory_limit_holds() -> None:
    assert run("x = bytearray(1 << 30)") == "MemoryError: over the limit of 256 MiB"


def test_an_endless_printer_is_cut_and_stopped() -> None:
    text = run("while True: print('x' * 1000)")
    assert "\nstopped: over the limit of " in text
    assert "bytes left out" in text
    assert len(text) < 4300


def test_output_keeps_its_head_and_its_tail() -> None:
    capped = Capped(8)
    for chunk in (b"abc", b"defg", b"hij", b"klmnop"):
        capped.add(chunk)
    assert capped.text() == "abcd\n[8 bytes left out]\nmnop"


def test_output_within_the_cap_is_whole() -> None:
    capped = Capped(8)
    capped.add(b"abcdefgh")
    assert capped.text() == "abcdefgh"


def test_no_process_can_be_started_but_threads_can() -> None:
    assert run("import os; os.fork()") == "PermissionError: [Errno 1] Operation not permitted"
    assert run("import threading as t; x = t.Thread(target=print, args=(1,)); x.start(); x.join()") == "1"


def test_a_fork_bomb_ends_at_once() -> None:
    bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    assert run(bomb, config=PATIENT) == "stopped: over the limit of 1 s of CPU time"


def test_nothing_is_left_in_the_process_table() -> None:
    async def run_over_its_time() -> None:
        running = asyncio.ensure_future(Sandbox(config).run("import time; time.sleep(60)"))
        await asyncio.sleep(0.3)
        assert len(processes(config)) == 2  # bubblewrap outside, and the first process of the namespace
        await running

    config = unique(wall_s=0.6)
    asyncio.run(run_over_its_time())
    assert processes(config) == []


def test_cancelling_a_run_ends_its_program() -> None:
    async def cancel() -> None:
        task = asyncio.ensure_future(Sandbox(config).run("import time; time.sleep(60)"))
        await asyncio.sleep(0.3)
        assert processes(config) != []
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    config = unique(wall_s=5.0)
    asyncio.run(cancel())
    assert processes(config) == []


def test_many_programs_run_at_once() -> None:
    async def many() -> list[str]:
        box = Sandbox(SandboxConfig())
        return await asyncio.gather(*(box.run(f"print({n})") for n in range(20)))

    assert asyncio.run(many()) == [str(n) for n in range(20)]


def test_a_program_cannot_pass_for_a_broken_sandbox() -> None:
    assert run("import sys; sys.stderr.write('bwrap: no\\n'); sys.exit(1)") == "bwrap: no"


def test_a_sandbox_that_cannot_start_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox.sys, "base_prefix", "/nowhere")
    with pytest.raises(ToolDown, match="did not start"):
        run("print(1)")


def test_a_missing_bubblewrap_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.devnull)
    with pytest.raises(UserError, match="apt-get install bubblewrap"):
        require_bubblewrap()


def test_a_bubblewrap_that_went_missing_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox.shutil, "which", lambda name: f"/nowhere/{name}")
    with pytest.raises(ToolDown, match="/nowhere/prlimit is missing; install bubblewrap"):
        run("print(1)")


def test_bubblewrap_works_here() -> None:
    require_bubblewrap()


def test_a_death_by_signal_is_described() -> None:
    assert describe(Ended(137, "", ""), QUICK) == "stopped: killed, out of CPU time or memory"


def test_programs_come_bare_or_fenced() -> None:
    assert read_program("print(1)") == Program("print(1)")
    assert read_program("```py\nprint(1)\n```") == Program("print(1)\n")
    assert read_program("```python\nprint(input())\n```\n```sh\n4 2\n```") == Program("print(input())\n", "4 2\n")


def test_the_code_tool_runs_what_the_tag_holds() -> None:
    tool = CodeTool(Sandbox(QUICK))
    assert asyncio.run(tool("```py\nprint(input() + '!')\n```\n```sh\nhi\n```")) == "hi!"
