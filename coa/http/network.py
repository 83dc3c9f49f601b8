"""Determines whether another server can't be reached because this machine has no network, or because of that server.

Errors alone are ambiguous. "Network is unreachable" also occurs for an IPv6 address if only IPv4 is set up, and a
resolver also answers "try again later" for a single domain whose own servers are broken. So these functions check this
machine.
"""

import asyncio
import socket

SOMEWHERE = ("192.0.2.1", 9)
"""An address reserved for documentation; nothing is sent to it."""
KNOWN = "example.com"
"""A name reserved by IANA: a working resolver resolves it, or answers at once that it does not exist."""


def has_route() -> bool:
    """Whether this machine has a route to the internet (IPv4)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(SOMEWHERE)  # of a datagram socket, which only looks up the route
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
