"""Actors of Ray and their handles, for which Ray has no types: a handle's attributes are its actor's methods."""

from collections.abc import Mapping
from typing import Any, Protocol
from weakref import WeakKeyDictionary


class Method(Protocol):
    def remote(self, *arguments: object, **named: object) -> Any:
        """Calls the method; returns a reference to its result, or one for each of `num_returns` results."""
        ...

    def options(self, **options: object) -> "Method": ...


class Handle(Protocol):
    """The handle of an actor."""

    def __getattr__(self, name: str) -> Method: ...


_ARGUMENTS: "WeakKeyDictionary[Handle, list[object]]" = WeakKeyDictionary()
"""References to the arguments of `start_restartable`, by the handle of the actor."""


def start_actor(kind: type, options: Mapping[str, object], *arguments: object, **named: object) -> Handle:
    """Starts an actor of the class `kind` and returns its handle. options: Ray's; it does not start the actor again
    unless they say so."""
    import ray

    make: Any = ray.remote(kind)
    return make.options(**options).remote(*arguments, **named)


def start_restartable(kind: type, options: Mapping[str, object], *arguments: object, **named: object) -> Handle:
    """Starts an actor that Ray starts again in a new process when its own dies, until its last handle is gone. The
    process that calls this must keep the handle for as long as the actor is needed.

    Ray sends small arguments with the request that creates an actor, and makes objects of those of more than 100 kB.
    Nobody refers to these once the actor is up, so they are deleted, and its next start fails, each time anew
    (https://github.com/ray-project/ray/issues/53727). So all arguments are objects here, to which this process refers.
    """
    import ray

    places: list[object] = [ray.put(argument) for argument in arguments]
    by_name = {name: ray.put(argument) for name, argument in named.items()}
    handle = start_actor(kind, {"max_restarts": -1, **options}, *places, **by_name)
    _ARGUMENTS[handle] = [*places, *by_name.values()]
    return handle


def kill(handle: Handle) -> None:
    """Ends the actor's process in any state, for good."""
    import ray

    actor: Any = handle
    ray.kill(actor)
