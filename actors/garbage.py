"""Python's garbage collection, in processes that serve hundreds of calls a second."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


def freeze_gc() -> None:
    """Excludes all objects that exist now from later collections. Imported modules live as long as the process, and
    scanning them takes a tenth of a second or more, in which no call is served."""
    gc.collect()
    gc.freeze()


@contextmanager
def frozen_gc() -> Iterator[None]:
    """`freeze_gc` for the context, in a process that may be a user's own. What that process had frozen before stays so,
    with all else: Python can't tell them apart."""
    before = gc.get_freeze_count()
    freeze_gc()
    try:
        yield
    finally:
        if not before:
            gc.unfreeze()
