"""Weight transports by name. An extension adds its own with `TRANSPORTS.register("name", WeightTransport(...))`."""

from actors.weights import host, ipc, on_disk
from actors.weights.transport import MakeSender, Receiver, WeightTransport
from coa.errors import UserError
from coa.extensions import load_extensions
from coa.registry import Registry

TRANSPORTS: Registry[WeightTransport] = Registry(
    "weight transport",
    {
        "host": host.TRANSPORT,
        "ipc": ipc.TRANSPORT,
        "on_disk": on_disk.TRANSPORT,
    },
)


def find_sender(name: str) -> MakeSender:
    """The sender of a transport. Raises UserError for an unknown name, or for a transport that can't publish."""
    load_extensions()
    sender = TRANSPORTS.find(name).sender
    if sender is None:
        raise UserError(f"rl.weights.transport={name!r} can't publish weights: it only reads them")
    return sender


def find_receiver(name: str) -> Receiver:
    load_extensions()
    return TRANSPORTS.find(name).receiver
