"""Bytes between two processes on loopback: straight, or through two relays, each a process of its own."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from procfs import memory_mb, processor_seconds

from lmj_trainer.relay.line import RelayLine

LOOPBACK = "127.0.0.1"
PIECE = 1 << 20
HELLO = b"hello"
REQUEST = struct.Struct("!QI")
"""Bytes of a message, and how many there are; each is answered with one byte."""
PATIENCE = 120.0


@dataclass(frozen=True)
class Relays:
    """Two, of which each lets the other in."""

    near: Path
    """Socket of who connects."""
    far: Path
    """Socket of who is connected to."""
    pids: tuple[int, int]

    @property
    def spent(self) -> float:
        """Processor time of both, in seconds."""
        return processor_seconds(list(self.pids))

    @property
    def memory(self) -> float:
        """Of the larger one, in MB."""
        return max(memory_mb([pid])[0] for pid in self.pids)


@contextlib.contextmanager
def relays() -> Iterator[Relays]:
    """Two processes, as agents start them."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        made = []
        for name in ("near", "far"):
            path = Path(folder) / name
            command = [sys.executable, "-m", "lmj_trainer", "relay", "--host", LOOPBACK, "--socket", str(path)]
            popen = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            stack.callback(popen.wait, PATIENCE)
            stack.callback(popen.terminate)
            assert popen.stdout is not None
            json.loads(popen.stdout.readline())
            made.append((path, popen.pid))
        (near, one), (far, other) = made
        yield Relays(near, far, (one, other))


def answer(line: Connection) -> None:
    """The process that is connected to: it takes messages, and answers each."""
    with socket.create_server((LOOPBACK, 0)) as listening:
        port = listening.getsockname()[1]
        line.send(port)
        buffer = bytearray(PIECE)
        while True:
            connection, _ = listening.accept()
            with connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if not _exactly(connection, len(HELLO)):
                    continue
                # As a listener of TensorPipe says it: a relay looks for that.
                connection.sendall(f"{LOOPBACK}:{port}".encode())
                while request := _exactly(connection, REQUEST.size):
                    size, count = REQUEST.unpack(request)
                    for _ in range(count):
                        left = size
                        while left and (got := connection.recv_into(buffer, min(left, PIECE))):
                            left -= got
                        connection.sendall(b"!")


class Asker:
    """The process that connects."""

    def __init__(self, place: tuple[str, int], port: int) -> None:
        """``place``: where to; ``port``: where the other listens."""
        self._socket = socket.create_connection(place, PATIENCE)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.sendall(HELLO)
        if not _exactly(self._socket, len(f"{LOOPBACK}:{port}")):
            raise EOFError("nobody answers")

    def close(self) -> None:
        """End it."""
        self._socket.close()

    def ask(self, size: int, count: int) -> list[float]:
        """Seconds that each of ``count`` messages of ``size`` bytes takes until it is answered."""
        message, found = bytes(min(size, PIECE)), []
        self._socket.sendall(REQUEST.pack(size, count))
        for _ in range(count):
            begin = time.perf_counter()
            left = size
            while left:
                self._socket.sendall(message[:left] if left < len(message) else message)
                left -= min(left, len(message))
            if not _exactly(self._socket, 1):
                raise EOFError("the other end is gone")
            found.append(time.perf_counter() - begin)
        return found


def place_of(text: str) -> tuple[str, int]:
    """``HOST:PORT`` as a pair."""
    host, _, port = text.rpartition(":")
    return host, int(port)


def way(pair: Relays, port: int) -> tuple[tuple[str, int], list[RelayLine]]:
    """Where what listens at ``port`` is reached through both relays, as long as the lines are open."""
    near, far = RelayLine(pair.near), RelayLine(pair.far)
    address = far.publish(port)
    far.admit([near.publish(1)])
    return place_of(near.reach(address)), [near, far]


def _exactly(connection: socket.socket, size: int) -> bytes:
    """Nothing: it ended before."""
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            return b""
        data += part
    return data
