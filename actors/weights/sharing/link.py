"""What two processes tell each other while one copies what the other puts into shared buffers: plain data only."""

import json
import math
import socket
import struct
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from coa.errors import SyncError

CANNOT = -1
"""Said by who can't open the handles."""
DONE = -2
"""Said by who has let go of them."""
LONGEST = 64 * 2**10
"""Bytes of a message."""


def bounded(connection: Connection, seconds: float) -> None:
    """No read and no write of it takes longer: it raises OSError then. Short words leave at once."""
    with socket.fromfd(connection.fileno(), socket.AF_INET, socket.SOCK_STREAM) as same:
        for limit in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            same.setsockopt(socket.SOL_SOCKET, limit, struct.pack("ll", math.ceil(seconds), 0))
        same.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def say(connection: Connection, data: Any) -> None:
    connection.send_bytes(json.dumps(data).encode())


def hear(connection: Connection) -> Any:
    """What the other side says next. Raises EOFError where it has gone, OSError where it takes too long, and ValueError
    for what is no message."""
    return json.loads(connection.recv_bytes(LONGEST))


def expect(connection: Connection, number: int) -> None:
    """Waits for the other side's word; raises SyncError for another one."""
    found = hear(connection)
    if found == CANNOT:
        raise SyncError("a worker can't open the handles of the rank's memory")
    if found != number:
        raise SyncError(f"the other side is at {found}, not at {number}")


def until_closed(connection: Connection) -> None:
    """Returns when the other side has ended the connection: it is through with what it does for this one."""
    with suppress(EOFError, ConnectionError):
        while True:
            connection.recv_bytes(LONGEST)
