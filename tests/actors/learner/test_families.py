"""Every family of causal language models that transformers has: trained as it is, or refused with a reason."""

from pathlib import Path

import pytest

from tests.support.families import families, verdict

TABLE = Path(__file__).parents[3] / "docs" / "models.md"
LEAST = 120
"""Families that are right in everything."""


@pytest.mark.slow
def test_no_family_is_trained_wrongly_and_the_table_says_how_each_is_trained() -> None:
    found = [verdict(family) for family in families()]
    assert [one for one in found if one.result == "wrong"] == []
    assert sum(one.result in ("packed", "one at a time") for one in found) >= LEAST
    shown = TABLE.read_text(encoding="utf-8")
    packed, alone = shown.split("**One sample at a time**")
    assert [one.row() for one in found if one.result == "packed" and one.row() not in packed] == []
    assert [one.row() for one in found if one.result in ("one at a time", "refused") and one.row() not in alone] == []
