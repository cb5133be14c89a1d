"""What the kernel knows of a TCP connection, and how long it may go unanswered."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass

CONNECTING_MS = 1000
"""Of a connection that is being made: a first packet that was lost is repeated after a whole second."""
_TCP_USER_TIMEOUT = 18  # of Linux; Python's socket module lacks the name on others
_TCP_INFO = 11


@dataclass(frozen=True, slots=True)
class Flow:
    """What a TCP connection of this machine does."""

    connecting: bool
    """It is being made."""
    under_way: int
    """Packets sent and not acknowledged."""
    waiting: int
    """Bytes not sent yet."""
    acknowledged: int
    """Bytes that the peer's machine acknowledged; the first is that of connecting."""

    @classmethod
    def of(cls, connection: socket.socket) -> Flow:
        """As the kernel tells it. Raises OSError."""
        told = connection.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, 148)  # struct tcp_info of linux/tcp.h
        under_way, waiting = *struct.unpack_from("I", told, 24), *struct.unpack_from("I", told, 144)
        return cls(told[0] == 2, under_way, waiting, *struct.unpack_from("Q", told, 120))

    @property
    def stuck(self) -> bool:
        """Whether the peer has no room for more, and nothing is under way that could go unanswered."""
        return self.waiting > 0 and self.under_way == 0


def set_timeout(connection: socket.socket, milliseconds: int) -> None:
    """Have the kernel end ``connection`` when nothing is acknowledged for so long; 0: after a quarter of an hour, as others."""
    connection.setsockopt(socket.IPPROTO_TCP, _TCP_USER_TIMEOUT, milliseconds)
