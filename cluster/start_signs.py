"""Signs of progress of an actor that starts: while it is being made it answers no call, so a thread of its process puts
them into Ray's store of keys and values.
"""

import os
import threading

from actors.signs import Signs

EVERY_S = 5.0


def key_of(incarnation: str) -> bytes:
    return f"coa-start-{incarnation}".encode()


def with_signs(kind: type, every_s: float = EVERY_S) -> type:
    """A class of actors like `kind` that shows signs of progress, one in `every_s` seconds, until its `ready` has
    returned. It takes the argument `incarnation`."""

    class Starting(kind):
        def __init__(self, *arguments: object, incarnation: str, **settings: object) -> None:
            self._is_up = threading.Event()
            thread = threading.Thread(target=_show, args=(key_of(incarnation), self._is_up, every_s), daemon=True)
            thread.start()
            super().__init__(*arguments, incarnation=incarnation, **settings)

        async def ready(self, *arguments: object) -> object:
            try:
                return await super().ready(*arguments)
            finally:
                self._is_up.set()

    Starting.__name__, Starting.__qualname__ = kind.__name__, kind.__qualname__
    return Starting


def _show(key: bytes, is_up: threading.Event, every_s: float) -> None:
    from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_put

    signs = Signs((1, 2))  # Ray sends what its processes print to files
    while not is_up.wait(every_s):
        _internal_kv_put(key, str(signs.count(os.getpid())).encode(), overwrite=True)
    _internal_kv_del(key)


def signs_of(incarnation: str) -> int:
    """Number of signs so far; 0 before the first."""
    from ray.experimental.internal_kv import _internal_kv_get

    return int(_internal_kv_get(key_of(incarnation)) or 0)
