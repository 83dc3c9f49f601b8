"""No quick test's verdict depends on how busy the machine is."""

from pathlib import Path

import pytest

from tests.support.verdicts import found_in

TESTS = Path(__file__).parents[1]
GROWTH = "CPU seconds, of which quadratic work takes a hundred times the bound"
MAY = {
    "actors/weights/test_loader.py": "shows that nothing is served meanwhile: a slow machine shows less of it",
    "coa/agent/test_grammar.py": GROWTH,
    "coa/agent/test_lenient.py": GROWTH,
    "coa/distill/sources/test_recorder_untrusted.py": GROWTH,
    "coa/test_processes.py": "a child works for so many CPU seconds",
    "coa/tools/sandbox/test_sandbox_code.py": GROWTH,
    "coa/tools/web/test_crawl.py": GROWTH,
    "jobs/test_security.py": "a fixture of slow tests looks again",
    "support/elastic.py": "drives slow tests",
    "support/gate.py": "says what runs",
    "support/memory.py": "watches slow tests",
    "support/patience.py": "what the others wait by",
    "support/rl_runs.py": "drives slow tests",
}
"""Files that look at a clock, and why they may."""


def test_no_verdict_depends_on_a_clock() -> None:
    found = {str(path.relative_to(TESTS)): list(found_in(path)) for path in sorted(TESTS.rglob("*.py"))}
    others = {file: lines for file, lines in found.items() if lines and file not in MAY}
    assert others == {}
    assert [file for file in MAY if not found.get(file)] == [], "they are mended: take them off the list"


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("def test_a():\n    assert time.monotonic() - began < 5", 1),
        ("def test_a():\n    began = time.monotonic()\n    took = end - began\n    assert took < 5", 1),
        ("def test_a():\n    loop, began = loop_of(), loop.time()\n    assert began == 0", 1),
        ("def test_a():\n    time.sleep(0.5)\n    time.sleep(0.2)\n    time.sleep(3600)", 1),
        ("def test_a():\n    process.wait(10)\n    process.wait(PATIENCE_S)\n    thread.join(timeout=5)", 2),
        ("async def test_a():\n    async with asyncio.timeout(5): await asyncio.wait_for(x, 5)", 2),
        ("def test_a():\n    subprocess.run(['a'], timeout=30)", 1),
        ("@pytest.mark.slow\ndef test_a():\n    time.sleep(0.5)\ndef test_b(): ...", 0),
        ("def helper():\n    time.sleep(0.5)\n@pytest.mark.slow\ndef test_a(): ...", 0),
        ("pytestmark = pytest.mark.slow\ndef test_a():\n    time.sleep(0.5)", 0),
        ("def test_a():\n    assert HttpConfig(timeout_s=0.3) != 3\n    assert record.time < 5", 0),
    ],
)
def test_what_depends_on_a_clock_is_found(source: str, count: int, tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(source)
    assert len(list(found_in(tmp_path / "test_it.py"))) == count
