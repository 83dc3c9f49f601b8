"""What the code says of its settings is whole, and docs/settings.md says the same."""

from dataclasses import replace

from coa.settings import settings_of
from coa.tasks.worlds import settings_of as world_settings_of
from jobs.recipe.schema import Recipe
from scripts.settings import PAGE, page


def test_every_setting_has_a_sentence() -> None:
    whole = replace(Recipe(), world=world_settings_of("tiny")())
    assert [one.key for one in settings_of(whole) if one.type and not one.sentence] == []


def test_the_page_of_settings_is_made_from_the_code() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "python -m scripts.settings writes it"
