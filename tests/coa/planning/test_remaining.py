"""How long stages take on CPUs, by the arithmetic that they do."""

import pytest

from coa.planning.models import Architecture, architecture_of, published
from coa.planning.remaining import ENGINE, LEARNER, START_S, Lengths, Work, flops_s, in_words

LENGTHS = Lengths(prompt=50.0, whole=130.0)


def smollm() -> Architecture:
    built = architecture_of(published("HuggingFaceTB/SmolLM2-135M") or {})
    assert built is not None
    return built


def test_a_groups_prompt_is_computed_once() -> None:
    assert LENGTHS.of_group(1) == 130
    assert LENGTHS.of_group(4) == 50 + 4 * 80


def test_tokens_that_are_played_and_learnt_take_the_time_of_their_operations() -> None:
    each = smollm().flops(65)
    assert each == pytest.approx(2 * 134_515_008, rel=0.02)
    assert Work(played=1000).seconds(smollm(), LENGTHS, 1e11) == pytest.approx(1000 * each / ENGINE / 1e11)
    both = Work(played=1000, learnt=3000, starts=True).seconds(smollm(), LENGTHS, 1e11)
    assert both == pytest.approx(START_S + each * (1000 / ENGINE + 3000 / LEARNER) / 1e11)


def test_products_are_fast() -> None:
    assert flops_s(64) > 1e6


def test_the_line_has_each_stage_and_the_sum() -> None:
    line = in_words({"sft": 190.0, "rl": 1400.0, "evaluation-rl": 5.0}, 6.31e10)
    assert line.startswith("from here about 27 minutes on this machine (sft 3, rl 23, evaluation-rl 1), by 63 GFLOP/s")
