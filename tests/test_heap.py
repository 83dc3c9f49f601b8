"""What collections leave out."""

import gc

from coa.heap import freeze


def test_what_exists_is_left_out_of_collections() -> None:
    existing = [[]]
    freeze()
    assert not any(one is existing for one in gc.get_objects())
    gc.unfreeze()
    assert any(one is existing for one in gc.get_objects())
