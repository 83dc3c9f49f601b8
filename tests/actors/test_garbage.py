"""What collections leave out."""

import gc
from collections.abc import Iterator

import pytest

from actors.garbage import freeze_gc, frozen_gc


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    """Nothing is frozen before and after a test; `conftest` freezes what was imported."""
    gc.unfreeze()
    yield
    gc.freeze()


def left_out(value: object) -> bool:
    return not any(one is value for one in gc.get_objects())


def test_what_exists_is_left_out_of_collections() -> None:
    existing = [[]]
    freeze_gc()
    assert left_out(existing)
    gc.unfreeze()
    assert not left_out(existing)


def test_a_process_gets_its_objects_back() -> None:
    existing = [[]]
    with frozen_gc():
        assert left_out(existing)
    assert not left_out(existing)


def test_what_a_process_had_frozen_stays_so() -> None:
    existing = [[]]
    gc.freeze()
    with frozen_gc():
        pass
    assert left_out(existing)
