"""The ways for weights, by name. An extension adds its own: `TRANSPORTS.register("name", WeightTransport(...))`."""

from actors.weights import collective, host, ipc, on_disk
from actors.weights.transport import MakeSender, Receiver, WeightTransport
from coa.errors import UserError
from coa.extensions import load_extensions
from coa.registry import Registry

TRANSPORTS: Registry[WeightTransport] = Registry(
    "weight transport",
    {
        "host": host.TRANSPORT,
        "collective": collective.TRANSPORT,
        "ipc": ipc.TRANSPORT,
        "on_disk": on_disk.TRANSPORT,
    },
)


def find_sender(name: str) -> MakeSender:
    """Raises UserError for a name that neither the project nor an extension has, or that nothing is published by."""
    load_extensions()
    sender = TRANSPORTS.find(name).sender
    if sender is None:
        raise UserError(f"rl.weights.transport={name!r} can't publish weights: it only reads them")
    return sender


def find_receiver(name: str) -> Receiver:
    load_extensions()
    return TRANSPORTS.find(name).receiver
