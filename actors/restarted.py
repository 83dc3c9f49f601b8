"""Actors that Ray starts again in a new process when theirs dies, and what they need for that.

Ray sends small arguments with the request that creates an actor, and makes objects of those of more than 100 kB.
Nobody refers to these once the actor is up, so they are deleted, and its next start fails, each time anew
(https://github.com/ray-project/ray/issues/53727). So all arguments are objects here, to which this process refers for
as long as it keeps the handle.
"""

from typing import Any
from weakref import WeakKeyDictionary

import ray

_KEPT: "WeakKeyDictionary[Any, list[Any]]" = WeakKeyDictionary()
"""References to the arguments, by the handle of the actor."""


def restarted(kind: type, options: dict[str, Any], *arguments: Any, **named: Any) -> Any:
    """The handle of a new actor of the class `kind`, which ends with its last handle. The process that calls this must
    keep the handle for as long as the actor is needed. options: Ray's."""
    places = [ray.put(argument) for argument in arguments]
    by_name = {name: ray.put(argument) for name, argument in named.items()}
    make: Any = ray.remote(kind).options(max_restarts=-1, **options)
    handle = make.remote(*places, **by_name)
    _KEPT[handle] = [*places, *by_name.values()]
    return handle
