"""The tool executor: what is called once, what is kept in memory and on disk, limits, and what is counted."""

import asyncio
import logging
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from actors.tools.executor import ExecutorConfig, ToolExecutor, ToolStats
from coa.errors import EndpointDown, ToolDown, UserError
from coa.tools import cache
from coa.tools.base import Fleeting, Tool, ToolCall
from coa.tools.cache import DiskCache, Memo
from tests.support.patience import PATIENCE_S


class Scripted:
    """A tool that answers `argument!` when the test says so, or fails as many times as it was told."""

    fingerprint = "1"

    def __init__(self, kept: bool = True, fail: int = 0, fleeting: bool = False) -> None:
        self.kept, self.fail, self.fleeting = kept, fail, fleeting
        self.go = asyncio.Event()
        self.go.set()
        self.begun: asyncio.Queue[str] = asyncio.Queue()
        self.made: list[str] = []
        self.running = 0
        self.most = 0

    def key(self, call: ToolCall) -> str | None:
        return call.argument.strip() if self.kept else None

    def counts(self) -> Mapping[str, int]:
        return {"retries": 2 * len(self.made)}

    async def __call__(self, call: ToolCall) -> str:
        self.made.append(call.argument)
        self.begun.put_nowait(call.argument)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(0)
            await self.go.wait()
        finally:
            self.running -= 1
        if len(self.made) <= self.fail:
            raise ToolDown("gone")
        text = f"{call.argument.strip()}!" if call.layout == "plain" else f"{call.argument.strip()} as {call.layout}"
        return Fleeting(text) if self.fleeting else text


def call(argument: str, layout: str = "plain") -> ToolCall:
    return ToolCall("t", argument, layout=layout)


def execute(
    tools: Mapping[str, Tool], *rounds: list[ToolCall], config: ExecutorConfig | None = None
) -> tuple[list[list[str | ToolDown]], ToolStats]:
    """The answers of each round, and the statistics of the first tool."""

    async def go() -> tuple[list[list[str | ToolDown]], ToolStats]:
        executor = ToolExecutor(lambda: tools, config)
        answers = [await executor.call_many(calls) for calls in rounds]
        await executor.close()
        return answers, executor.stats()[next(iter(tools))]

    return asyncio.run(go())


def test_answers_come_in_the_order_of_the_calls() -> None:
    [answers], _ = execute({"t": Scripted()}, [call("b"), ToolCall("x", ""), call("a")])
    assert [str(answer) for answer in answers] == ["b!", "there is no tool x", "a!"]
    assert [type(answer) for answer in answers] == [str, ToolDown, str]  # a tool that is missing is no observation


def test_equal_calls_are_made_once_and_told_apart_in_the_counts() -> None:
    tool = Scripted()
    rounds, stats = execute({"t": tool}, [call("a"), call(" a"), call("a ")], [call("a")])
    assert rounds == [["a!"] * 3, ["a!"]]
    assert tool.made == ["a"]
    assert (stats.calls, stats.joined, stats.hits, stats.failures) == (4, 2, 1, 0)
    assert (stats.retries, stats.own) == (2, {"retries": 2})
    assert stats.seconds > 0


def test_layouts_are_kept_apart() -> None:
    tool = Scripted()
    execute({"t": tool}, [call("a"), call("a", layout="numbered")])
    assert len(tool.made) == 2


def test_a_call_without_a_key_is_made_each_time() -> None:
    tool = Scripted(kept=False)
    _, stats = execute({"t": tool}, [call("a")] * 3)
    assert len(tool.made) == 3
    assert (stats.calls, stats.joined, stats.hits) == (3, 0, 0)


def test_a_failure_is_a_value_and_is_not_kept() -> None:
    tool = Scripted(fail=1)
    [first, second], stats = execute({"t": tool}, [call("a")] * 2, [call("a")])
    assert [type(answer) for answer in first] == [ToolDown, ToolDown]
    assert second == ["a!"]
    assert stats.failures == 2


def test_a_fleeting_observation_is_shown_and_not_kept(tmp_path: Path) -> None:
    tool = Scripted(fleeting=True)
    rounds, stats = execute({"t": tool}, [call("a")], [call("a")], config=ExecutorConfig(cache_dir=str(tmp_path)))
    assert rounds == [["a!"], ["a!"]]
    assert len(tool.made) == 2
    assert (stats.hits, stats.disk_hits) == (0, 0)


def test_calls_of_one_tool_are_bounded_by_its_own_number() -> None:
    async def go() -> tuple[ToolStats, int, int]:
        tools = {"t": Scripted(), "u": Scripted()}
        tools["t"].go.clear()
        executor = ToolExecutor(lambda: tools, ExecutorConfig(concurrency=3, concurrency_of={"t": 2}))
        calls = [ToolCall(name, str(n)) for name in tools for n in range(9)]
        answers = asyncio.ensure_future(executor.call_many(calls))
        for _ in range(2):
            await tools["t"].begun.get()
        stats = executor.stats()["t"]
        tools["t"].go.set()
        await answers
        assert executor.stats()["t"].running == executor.stats()["t"].waiting == 0
        return stats, tools["t"].most, tools["u"].most

    stats, most, most_of_others = asyncio.run(go())
    assert (stats.running, stats.waiting) == (2, 7)
    assert (most, most_of_others) == (2, 3)


def test_a_call_over_its_time_is_down_and_each_tool_has_its_own_time() -> None:
    tool, other = Scripted(), Scripted()
    tool.go.clear()
    config = ExecutorConfig(call_s=0.0001, call_s_of={"t": 0.05, "u": 9})
    [[answer, fine]], stats = execute({"t": tool, "u": other}, [call("a"), ToolCall("u", "a")], config=config)
    assert str(answer) == "t: nothing within 0.05 s"
    assert fine == "a!"
    assert (stats.timeouts, stats.failures, stats.running) == (1, 1, 0)


def test_a_defect_of_a_tool_is_down_logged_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Scripted):
        async def __call__(self, call: ToolCall) -> str:
            match call.argument:
                case "defect":
                    raise KeyError("year")
                case "cancelled":
                    raise asyncio.CancelledError
                case "endpoint":
                    raise EndpointDown("refused")
            return await super().__call__(call)

    calls = [call("defect"), call("cancelled"), call("endpoint"), call("fine")]
    for kept in (True, False):
        caplog.clear()
        [answers], stats = execute({"t": Broken(kept)}, calls)
        assert [type(answer) for answer in answers] == [ToolDown, ToolDown, ToolDown, str]
        assert str(answers[0]) == "t raised KeyError: 'year'"
        assert str(answers[1]).startswith("t raised RuntimeError: cancelled")
        assert str(answers[2]) == "t: EndpointDown: refused"
        assert (stats.calls, stats.failures, stats.defects, stats.running) == (4, 3, 2, 0)
        assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [KeyError, RuntimeError]


def test_the_seconds_of_calls_are_counted_by_bucket_except_of_those_answered_from_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SimpleNamespace(perf_counter=count(0.0, 0.3).__next__)  # between two readings 0.3 s pass
    monkeypatch.setattr("actors.tools.executor.time", clock)
    _, stats = execute({"t": Scripted()}, [call("a")], [call("b")], [call("a")])
    assert (stats.calls, stats.hits, stats.histogram) == (3, 1, {"0.362": 2})
    assert stats.seconds == pytest.approx(0.6)


def test_the_oldest_observation_leaves_a_full_memory() -> None:
    tool = Scripted()
    execute({"t": tool}, *([call(name)] for name in "abcac"), config=ExecutorConfig(cache_entries=2))
    assert tool.made == ["a", "b", "c", "a"]


def test_a_cancelled_caller_does_not_take_the_call_away_from_others() -> None:
    async def go() -> list[str | ToolDown]:
        tool = Scripted()
        tool.go.clear()
        executor = ToolExecutor(lambda: {"t": tool})
        first, second = (asyncio.ensure_future(executor.call_many([call("a")])) for _ in range(2))
        await tool.begun.get()
        first.cancel()
        tool.go.set()
        return await second

    assert asyncio.run(go()) == ["a!"]


def test_tools_that_cannot_be_made_are_a_mistake_and_never_an_observation() -> None:
    def make_tools() -> Mapping[str, Tool]:
        raise UserError("corpus x: no such file")

    async def go() -> None:
        executor = ToolExecutor(make_tools)
        assert await executor.mistake() == "corpus x: no such file"
        [answer] = await executor.call_many([call("a")])
        assert (type(answer), str(answer)) == (ToolDown, "corpus x: no such file")
        assert await ToolExecutor(lambda: {}).mistake() == ""

    asyncio.run(go())


def test_a_memo_forgets_a_task_that_nobody_waits_for_any_more_if_it_fails() -> None:
    async def go() -> int:
        memo: Memo[str] = Memo(10)
        made = 0

        async def fail() -> str:
            nonlocal made
            made += 1
            await asyncio.sleep(0)
            raise ToolDown("gone")

        waiting = asyncio.ensure_future(memo.get("a", fail))
        await asyncio.sleep(0)
        waiting.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
        with pytest.raises(ToolDown):
            await memo.get("a", fail)
        return made

    assert asyncio.run(go()) == 2


def test_observations_on_disk_outlive_the_executor_and_are_shared(tmp_path: Path) -> None:
    config = ExecutorConfig(cache_dir=str(tmp_path / "deep" / "cache"))
    calls = [call("a"), call("a", layout="json")]
    first, second = Scripted(), Scripted()
    execute({"t": first}, calls, config=config)
    [answers], stats = execute({"t": second}, calls, config=config)
    assert answers == ["a!", "a as json"]
    assert (len(first.made), second.made) == (2, [])
    assert (stats.calls, stats.disk_hits, stats.hits) == (2, 2, 0)


def test_what_is_on_disk_belongs_to_one_configuration_of_a_tool(tmp_path: Path) -> None:
    config = ExecutorConfig(cache_dir=str(tmp_path))
    other = Scripted()
    other.fingerprint = "2"
    execute({"t": Scripted()}, [call("a")], config=config)
    execute({"t": other}, [call("a")], config=config)
    assert other.made == ["a"]


def test_a_tool_that_does_not_say_what_it_depends_on_is_not_kept_on_disk(tmp_path: Path) -> None:
    class Silent:
        made = 0

        def key(self, call: ToolCall) -> str:
            return call.argument

        async def __call__(self, call: ToolCall) -> str:
            self.made += 1
            return "x"

    config, tool = ExecutorConfig(cache_dir=str(tmp_path)), Silent()
    for _ in range(2):
        execute({"t": tool}, [call("a")], config=config)
    assert tool.made == 2


def test_a_text_comes_back_from_disk_as_it_was(tmp_path: Path) -> None:
    texts = {"small": "a\r\nb\x00\u2028ü", "large": "line\r\n" * 20_000, "empty": ""}

    async def go() -> dict[str, str | None]:
        first, second = (DiskCache(str(tmp_path), 1 << 30) for _ in range(2))
        for key, text in texts.items():
            await first.put(key, text)
        found = {key: await second.get(key) for key in texts}
        assert await second.get("other") is None
        assert first.failures == second.failures == 0
        await first.close()
        await second.close()
        return found

    assert asyncio.run(go()) == texts


def test_the_folder_stays_within_its_size(tmp_path: Path) -> None:
    async def go() -> None:
        kept = DiskCache(str(tmp_path), 1 << 20)
        for n in range(60):
            await kept.put(str(n), "x" * 100_000)
        assert await kept.get("0") is None
        assert await kept.get("59") is not None
        await kept.close()

    asyncio.run(go())
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) < 3 << 20


def test_a_pickle_that_somebody_put_into_the_folder_is_not_opened(tmp_path: Path) -> None:
    import diskcache

    with diskcache.Cache(str(tmp_path)) as theirs:
        theirs["k"] = {"a": "pickled"}

    async def go() -> None:
        kept = DiskCache(str(tmp_path), 1 << 30)
        assert await kept.get("k") is None
        assert kept.failures == 1
        await kept.close()

    asyncio.run(go())


def test_a_disk_that_hangs_is_left_alone_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cache, "WAIT_S", 0.05)
    monkeypatch.setattr(cache, "REST_S", 3600.0)
    answers, asked = threading.Event(), []

    def hang(folder: str, max_bytes: int) -> None:
        asked.append(folder)
        answers.wait(PATIENCE_S)
        raise OSError("gone")

    monkeypatch.setattr(cache, "_open", hang)

    async def go() -> int:
        kept = DiskCache(str(tmp_path), 1 << 20)
        for _ in range(103):
            assert await kept.get("a") is None
        answers.set()
        return kept.failures

    assert asyncio.run(go()) == 103
    assert len(asked) == 1
    assert len(caplog.records) == 1


def test_an_observation_is_always_text_that_can_be_stored() -> None:
    [[kept, shown], again], _ = execute({"t": Scripted()}, [call("a\udce9"), call("b")], [call("a\udce9")])
    assert (kept, shown, again) == ("a?!", "b!", ["a?!"])
    [[passing]], _ = execute({"t": Scripted(fleeting=True)}, [call("a\udce9")])
    assert (passing, type(passing)) == ("a?!", Fleeting)


def broken_folder(kind: str, folder: Path) -> Path:
    match kind:
        case "a file":
            (folder / "cache").write_text("x")
        case "corrupt":
            (folder / "cache").mkdir()
            (folder / "cache" / "cache.db").write_bytes(b"no database" * 1000)
        case "locked":
            asyncio.run(DiskCache(str(folder / "cache"), 1 << 20).put("other", "x"))
    return folder / "cache"


@pytest.mark.parametrize("kind", ["a file", "corrupt"])
def test_a_broken_disk_loses_no_call_and_is_told_of_once(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, tool = broken_folder(kind, tmp_path), Scripted()

    async def go() -> tuple[list[str | ToolDown], int]:
        executor = ToolExecutor(lambda: {"t": tool}, ExecutorConfig(cache_dir=str(folder)))
        answers = await executor.call_many([call(name) for name in "abc"])
        await executor.close()
        return answers, executor.disk_failures()

    with caplog.at_level(logging.WARNING):
        answers, failures = asyncio.run(go())
    assert answers == ["a!", "b!", "c!"]
    assert failures == 6  # a look-up and a write for each call
    assert [record.message.partition(",")[0] for record in caplog.records] == [f"the tools' cache in {folder} fails"]


def test_a_folder_that_another_process_holds_loses_no_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "WAIT_S", 0.1)
    folder, tool = broken_folder("locked", tmp_path), Scripted()
    holder = sqlite3.connect(folder / "cache.db", isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    try:

        async def go() -> tuple[list[str | ToolDown], int]:
            executor = ToolExecutor(lambda: {"t": tool}, ExecutorConfig(cache_dir=str(folder)))
            answers = await executor.call_many([call("a")])
            holder.execute("ROLLBACK")
            await executor.close()
            return answers, executor.disk_failures()

        answers, failures = asyncio.run(go())
    finally:
        holder.close()
    assert answers == ["a!"]
    assert failures >= 1


FULL_DISK = """
import asyncio, resource, signal, sys
from coa.tools.cache import DiskCache

async def go():
    cache = DiskCache(sys.argv[1], 1 << 30)
    await cache.put("early", "kept")
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (70_000, 70_000))
    await cache.put("late", "x" * 200_000)
    print(cache.failures, await cache.get("early"), await cache.get("late"))

asyncio.run(go())
"""


def test_a_full_disk_loses_what_it_cannot_hold_and_nothing_else(tmp_path: Path) -> None:
    """Full, as far as this process is concerned: no file of it may grow beyond a size."""
    done = subprocess.run([sys.executable, "-c", FULL_DISK, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.stdout == "1 kept None\n", done.stderr
