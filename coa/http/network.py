"""Tells apart why another server can't be reached: because this machine has no network, or because of that server.

Errors alone do not tell. "Network is unreachable" also comes for an IPv6 address where only IPv4 is set up, and "try
again later" is also what a resolver says of a single domain whose own servers are broken. So these functions look at
this machine.
"""

import asyncio
import socket

SOMEWHERE = ("192.0.2.1", 9)
"""An address kept for documentation; nothing is sent to it."""
KNOWN = "example.com"
"""A name that IANA keeps: a working resolver knows it, or says at once that it does not exist."""


def has_route() -> bool:
    """Whether this machine has a route to the internet (IPv4)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(SOMEWHERE)  # of a datagram socket: looks for the route, sends nothing
        except OSError:
            return False
    return True


async def resolves() -> bool:
    """Whether names can be resolved on this machine."""
    try:
        await asyncio.get_running_loop().getaddrinfo(KNOWN, None)
    except socket.gaierror as error:
        return error.errno != socket.EAI_AGAIN
    return True
