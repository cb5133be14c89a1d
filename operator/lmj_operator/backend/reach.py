"""Whether a machine is there: its kernel takes a connection, also for a process that is busy, starved or stopped."""

import asyncio
import errno
import ipaddress
import os
import socket

TRY_SECONDS = 0.07
"""Between two connections that are tried: a first packet that was lost is repeated after a whole second only."""

_LOOK_SECONDS = 0.01
_THERE = frozenset({errno.ECONNREFUSED, errno.ECONNRESET})
"""Only a kernel that is there says so."""
_TRIED = frozenset({0, errno.EINPROGRESS, errno.EHOSTUNREACH})
"""What a connection that was really tried begins with; all else (no port left, no route, no leave to send) is this machine's own trouble."""


def place(address: str) -> tuple[str, int]:
    """Host and port of ``address`` (``host:port``, an IPv6 address in brackets)."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


async def is_there(address: str, seconds: float) -> bool:
    """Whether the machine at ``address`` (``host:port``, the host an IP address) takes a connection within ``seconds``, or refuses it.

    What counts is what this machine's kernel knows at the end: a process that comes to look too late misses nothing.
    """
    loop = asyncio.get_running_loop()
    begin = loop.time()
    tries: list[socket.socket] = []
    try:
        while True:
            late = loop.time() - begin
            if any(_answered(connection) for connection in tries):
                return True
            if late >= seconds:
                return False
            if late >= TRY_SECONDS * len(tries):
                try:
                    tries.append(_connecting(address))
                except OSError:
                    return True  # it refused; or this machine has no socket, port or route, and the other is not accused for that
            await asyncio.sleep(_LOOK_SECONDS)
    finally:
        for connection in tries:
            connection.close()


def _connecting(address: str) -> socket.socket:
    """A connection that is being made. Raises OSError when none can be tried, or it was refused at once: then the machine is there."""
    host, port = place(address)
    made = socket.socket(socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET, socket.SOCK_STREAM)
    made.setblocking(False)
    begun = made.connect_ex((host, port))  # what became of it is asked for
    if begun not in _TRIED:
        made.close()
        raise OSError(begun, os.strerror(begun))
    return made


def _answered(connection: socket.socket) -> bool:
    if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) in _THERE:
        return True
    try:
        connection.getpeername()
    except OSError:
        return False
    return True
