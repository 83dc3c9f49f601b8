"""What collections leave out."""

import gc

from actors.garbage import freeze_gc


def test_what_exists_is_left_out_of_collections() -> None:
    existing = [[]]
    freeze_gc()
    assert not any(one is existing for one in gc.get_objects())
    gc.unfreeze()
    assert any(one is existing for one in gc.get_objects())
