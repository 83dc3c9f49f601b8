"""Ports of this machine."""

import os
import socket
from itertools import count

FIRST, EACH, BLOCKS = 20_000, 200, 60
"""Below the ports that the kernel and Ray choose from; a block for each process."""
_next = count()


def free_port() -> int:
    """One that nobody listens on, and nobody else is given before it is used: not by the kernel, nor by this."""
    block = FIRST + EACH * (os.getpid() % BLOCKS)
    for _ in range(EACH):
        port = block + next(_next) % EACH
        with socket.socket() as found:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                found.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError(f"no port is free from {block} to {block + EACH - 1}")
