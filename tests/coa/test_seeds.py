"""Seeds: the same on every machine, and different for what is different."""

import subprocess
import sys

import pytest

from coa.seeds import derive, fraction, shuffled

SEED = 8047668166336562598
"""Changes with the algorithm, and with it every run."""


def test_a_seed_depends_on_its_parts_and_their_order_alone() -> None:
    assert derive(0, "calc-17", 3, 1) == derive(0, "calc-17", 3, 1)
    seeds = {derive(0, "a", 1), derive("a", 0, 1), derive(0, "a", 1, 0), derive(0, "a1"), derive("0a1"), derive()}
    assert len(seeds) == 6
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_another_process_derives_the_same() -> None:
    code = "from coa.seeds import derive; print(derive(7, 'rl', 2))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) == derive(7, "rl", 2) == SEED


def test_fractions_fill_the_unit_interval_evenly() -> None:
    drawn = [fraction("person", n) for n in range(4000)]
    assert all(0 <= one < 1 for one in drawn)
    assert [sum(low / 4 <= one < (low + 1) / 4 for one in drawn) for low in range(4)] == pytest.approx(
        [1000] * 4, abs=100
    )


def test_the_largest_seed_is_a_fraction_below_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coa.seeds.derive", lambda *parts: 2**63 - 1)
    assert fraction("x") < 1
    monkeypatch.setattr("coa.seeds.derive", lambda *parts: 0)
    assert fraction("x") == 0


def test_every_pass_has_all_tasks_in_an_order_of_its_own() -> None:
    stream = [shuffled(index, 50, 3, "rl") for index in range(200)]
    passes = [stream[start : start + 50] for start in range(0, 200, 50)]
    assert all(sorted(one) == list(range(50)) for one in passes)
    assert len({tuple(one) for one in passes}) == 4
    assert passes[0] != list(range(50))
    assert [shuffled(index, 50, 3, "rl") for index in range(200)] == stream
    assert [shuffled(index, 50, 3, "distill") for index in range(50)] != passes[0]
    assert [shuffled(index, 50, 4, "rl") for index in range(50)] != passes[0]
