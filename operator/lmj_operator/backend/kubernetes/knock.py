"""One knock at a pod's canary: whether the network lets the operator through to a port that the job's NetworkPolicy forbids."""

import asyncio
import errno
import ipaddress
import socket
from enum import Enum, auto

from lmj_api.canary import LINE

TRIES = 3
"""A first packet that was lost is repeated after a whole second only, and must not count as one that a policy has stopped."""
TRY_SECONDS = 0.2
"""In a cluster a connection takes a millisecond."""
LINE_SECONDS = 1.0
"""The line comes as the agent's loop turns."""

_KEPT_OUT = frozenset({errno.ECONNREFUSED, errno.ECONNRESET, errno.EHOSTUNREACH, errno.EACCES})
"""What a network says that refuses, instead of dropping; all else (no port left, no route, no leave to send) is this machine's own trouble."""


class Answer(Enum):
    """What came of it."""

    LINE = auto()
    """The canary's own line: nothing is between."""
    NOTHING = auto()
    """No connection came about, or it was refused."""
    UNCLEAR = auto()
    """Somebody took the connection and is not known to be the canary; or this machine could not even try."""


async def knock(host: str, port: int) -> Answer:
    """Whether a line of the canary at ``host``, an IP address, is to be had on ``port``. Nothing is sent there."""
    for _ in range(TRIES):
        answer = await _knock_once(host, port)
        if answer is not Answer.NOTHING:
            return answer
    return Answer.NOTHING


async def _knock_once(host: str, port: int) -> Answer:
    family = socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as made:
            made.setblocking(False)
            if not await _connects(made, host, port):
                return Answer.NOTHING
            async with asyncio.timeout(LINE_SECONDS):
                return Answer.LINE if await _first(made, len(LINE)) == LINE else Answer.UNCLEAR
    except OSError:  # a line that does not come in time is one too
        return Answer.UNCLEAR


async def _connects(made: socket.socket, host: str, port: int) -> bool:
    """Whether ``made`` is connected within its time. Raises OSError for what says nothing of the network there."""
    try:
        async with asyncio.timeout(TRY_SECONDS):
            await asyncio.get_running_loop().sock_connect(made, (host, port))
    except TimeoutError:
        # What counts is what the kernel knows: a loop that comes to look too late would take an open port for a closed one.
        return _is_connected(made)
    except OSError as error:
        if error.errno in _KEPT_OUT:
            return False
        raise
    return True


def _is_connected(made: socket.socket) -> bool:
    try:
        made.getpeername()
    except OSError:
        return False
    return True


async def _first(connection: socket.socket, size: int) -> bytes:
    """The first ``size`` bytes that come; fewer where it ends before."""
    said, loop = b"", asyncio.get_running_loop()
    while len(said) < size and (part := await loop.sock_recv(connection, size - len(said))):
        said += part
    return said
