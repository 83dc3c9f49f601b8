"""Messages between a process that fills shared buffers and a process that copies them: plain data only."""

import json
import math
import socket
import struct
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from coa.errors import SyncError

CANNOT = -1
"""Message of a worker that can't open the handles."""
DONE = -2
"""Message of a worker that has released them."""
LONGEST = 64 * 2**10
"""Maximum bytes of a message."""


def bounded(connection: Connection, seconds: float) -> None:
    """Sets a timeout for each read and write of the connection, after which it raises OSError. Also disables Nagle's
    delay, so that short messages are sent at once."""
    with socket.fromfd(connection.fileno(), socket.AF_INET, socket.SOCK_STREAM) as same:
        for limit in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            same.setsockopt(socket.SOL_SOCKET, limit, struct.pack("ll", math.ceil(seconds), 0))
        same.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def say(connection: Connection, data: object) -> None:
    connection.send_bytes(json.dumps(data).encode())


def hear(connection: Connection) -> Any:
    """Receives the next message. Raises EOFError if the connection is closed, OSError after the timeout, and ValueError
    for an invalid message."""
    return json.loads(connection.recv_bytes(LONGEST))


def expect(connection: Connection, number: int) -> None:
    """Waits for the message `number`; raises SyncError for any other message."""
    found = hear(connection)
    if found == CANNOT:
        raise SyncError("a worker can't open the handles of the rank's memory")
    if found != number:
        raise SyncError(f"the other side is at {found}, not at {number}")


def until_closed(connection: Connection) -> None:
    """Returns when the other side has closed the connection, after its work for this process."""
    with suppress(EOFError, ConnectionError):
        while True:
            connection.recv_bytes(LONGEST)
