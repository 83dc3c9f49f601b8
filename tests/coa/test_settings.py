from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from coa.errors import UserError
from coa.settings import Setting, as_markdown, below, search, settings_of


class Shade(Enum):
    light = "light"
    dark = "dark"


@dataclass(frozen=True)
class Base:
    wait_s: float = 2.0
    """How long
    it waits."""


@dataclass(frozen=True)
class Lamp(Base):
    """A lamp.

    More of it."""

    shade: Shade = Shade.dark
    """Its shade | or none."""
    colours: tuple[str, ...] = ("red", "blue")
    silent: bool | None = None


@dataclass(frozen=True)
class House:
    lamp: Lamp = field(default_factory=lambda: Lamp(wait_s=3.0))
    rooms: dict[str, Lamp] = field(default_factory=dict)
    """Lamps by room."""
    plan: Path | None = None
    more: dict[str, Any] = field(default_factory=dict)


def test_a_tree_is_told_with_types_units_defaults_and_sentences() -> None:
    found = {one.key: one for one in settings_of(House())}
    assert list(found) == [
        *("lamp", "lamp.wait_s", "lamp.shade", "lamp.colours", "lamp.silent"),
        *("rooms.NAME", "rooms.NAME.wait_s", "rooms.NAME.shade", "rooms.NAME.colours", "rooms.NAME.silent"),
        *("plan", "more"),
    ]
    assert found["lamp"] == Setting("lamp", None, None, "A lamp.")
    assert found["lamp.wait_s"] == Setting("lamp.wait_s", "float (seconds)", 3.0, "How long it waits.")
    assert found["rooms.NAME"].sentence == "Lamps by room."
    assert found["rooms.NAME.wait_s"].assignment == "rooms.NAME.wait_s=2.0"
    assert found["lamp.shade"].type == "light | dark"
    assert found["lamp.shade"].assignment == "lamp.shade=dark"
    assert (found["lamp.colours"].type, found["lamp.colours"].assignment) == ("list of str", "lamp.colours=[red,blue]")
    assert (found["lamp.silent"].type, found["lamp.silent"].assignment) == ("bool or null", "lamp.silent=null")
    assert (found["plan"].type, found["more"].type) == ("path or null", "mapping of anything")


def test_settings_are_found_by_key_and_by_word() -> None:
    every = list(settings_of(House()))
    assert [one.key for one in below(every, "lamp")] == [one.key for one in every[:5]]
    assert [one.key for one in search(every, "WAITS", "lamp")] == ["lamp.wait_s"]
    assert [one.key for one in search(every, "room")][:1] == ["rooms.NAME.wait_s"], "a section is no setting"
    with pytest.raises(UserError, match=r"no setting lamp\.shad; the nearest is lamp\.shade"):
        below(every, "lamp.shad")


def test_a_page_has_a_table_a_section() -> None:
    lines = as_markdown(settings_of(House())).splitlines()
    assert [line for line in lines if line.startswith("## ")] == ["## lamp", "## rooms"]
    assert lines.index("| `plan` | path or null | `null` |  |") < lines.index("## lamp")
    assert r"| `lamp.shade` | light \| dark | `dark` | Its shade \| or none. |" in lines
