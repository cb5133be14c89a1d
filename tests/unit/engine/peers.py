"""Peers for the transport's contract: one interface over a transport in this process, and over one in a process of its own.

Run as a program (``peers.py FD``) it is a nursery: it imports torch once and forks a peer for each socket that it is sent, so a peer starts
in milliseconds, in another network namespace if it is sent one beside. A peer obeys one pickled call at a time and ends when its socket does.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import queue
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from lmj_trainer.transport.envelope import Envelope, Kind
from lmj_trainer.transport.inbox import ViewBrokenError
from lmj_trainer.transport.memory import MemoryTransport
from lmj_trainer.transport.parts import Over, Part

DEADLINE = 60.0  # seconds for anything that is expected to happen


class Calls:
    """What a test can have a peer do; answers are plain values or tensors."""

    def __init__(self, transport: Any) -> None:
        self.transport = transport

    def address(self) -> str:
        return self.transport.address

    def join(self, view: int, rank: int, peers: dict[int, str]) -> None:
        self.rank = rank
        self.transport.join(view, rank, peers)

    def send(self, rank: int, payload: Any = None, *, view: int | None = None, step: int = 0, index: int = 0) -> None:
        number = self.transport.inbox.view if view is None else view
        self.transport.send(rank, Envelope(number, Kind.ACTIVATION, step, index, self.rank, payload))

    def send_large(self, rank: int, elements: int, seed: int) -> None:
        self.send(rank, large(elements, seed))

    def take(self, sender: int, timeout: float = DEADLINE, *, step: int = 0, index: int = 0) -> Any:
        return self.transport.inbox.take(Kind.ACTIVATION, step, index, sender, timeout)

    def take_large(self, sender: int, elements: int, seed: int) -> bool:
        return torch.equal(self.take(sender), large(elements, seed))

    def waiting(self, sender: int, step: int = 0, index: int = 0) -> bool:
        return self.transport.inbox.poll(Kind.ACTIVATION, step, index, sender)

    def view(self) -> int:
        return self.transport.inbox.view

    def flush(self, timeout: float = DEADLINE) -> None:
        self.transport.flush(timeout)

    def close(self) -> None:
        self.transport.close()

    def told(self, address: str) -> str | None:
        """A part of a stream is told to a follower that is kept for it alone: what comes back."""
        answer: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.transport.keep(address, lambda reason: None)
        self.transport.tell(address, Part(1, 0, Over("told")), lambda problem, _: answer.put(problem))
        try:
            return answer.get(timeout=DEADLINE)
        finally:
            self.transport.drop(address)

    def settled(self, others: int) -> None:
        """Return when this many others have heartbeats: from then on they are not called for nothing."""
        deadline = time.monotonic() + DEADLINE
        while len(self.transport._heartbeats.acknowledged) < others:
            assert time.monotonic() < deadline, "there are no heartbeats"
            time.sleep(0.01)

    def unlink(self, address: str) -> None:
        """As a call that has failed does."""
        self.transport._drop(address, self.transport._links[address])

    def spent(self, seconds: float) -> float:
        """Processor time within so long, all threads."""
        begin = time.process_time()
        time.sleep(seconds)
        return time.process_time() - begin

    def calls(self, seconds: float) -> int:
        """How often peers are called within so long."""
        called: list[object] = []
        real = self.transport._call
        self.transport._call = lambda *args, **named: (called.append(args), real(*args, **named))[1]
        time.sleep(seconds)
        self.transport._call = real
        return len(called)

    def resources(self) -> tuple[int, int]:
        """Threads and file descriptors of the process."""
        return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))


def large(elements: int, seed: int) -> torch.Tensor:
    return torch.randn(elements, generator=torch.Generator().manual_seed(seed))


class MemoryPeer(Calls):
    """In this process."""

    def __init__(self, network: dict[str, MemoryTransport]) -> None:
        super().__init__(MemoryTransport(network, f"memory-{id(self)}"))

    def kill(self) -> None:
        self.transport.close()


class ProcessPeer:
    """In a process of its own, over RPC. Has the methods of :class:`Calls`."""

    def __init__(
        self, nursery: Nursery, timeout: float, silence: float = 1.0, namespace: Path | None = None, relay: Path | None = None
    ) -> None:
        """``namespace``: file of the network namespace that it lives in, listening on its ``eth0``; None: loopback here. ``relay``: the
        socket of the relay behind which it is.
        """
        self._socket, theirs = socket.socketpair()
        with theirs, contextlib.ExitStack() as files:
            sent = [theirs.fileno()]
            if namespace is not None:
                sent.append(files.enter_context(namespace.open()).fileno())
            words = struct.pack("dd", timeout, silence) + os.fsencode(relay or "")
            socket.send_fds(nursery.socket, [words], sent)
        self._socket.settimeout(2 * DEADLINE)
        self.pid = self._receive()

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            _write(self._socket, (name, arguments, named))
            result = self._receive()
            if isinstance(result, Exception):
                raise result
            return result

        return call

    def _receive(self) -> Any:
        return _read(self._socket)

    def kill(self) -> None:
        """SIGKILL; returns when the process is gone."""
        os.kill(self.pid, signal.SIGKILL)
        # Its end of the socket closes with the process.
        assert select.select([self._socket], [], [], DEADLINE)[0]
        self._socket.close()

    def stop(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)


class Nursery:
    """The parent of process peers."""

    def __init__(self) -> None:
        self.socket, theirs = socket.socketpair()
        environment = os.environ | {"OMP_NUM_THREADS": "1", "TP_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": ""}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, str(Path(__file__)), str(theirs.fileno())], pass_fds=[theirs.fileno()], env=environment
            )

    def close(self) -> None:
        self.socket.close()
        assert self._process.wait(DEADLINE) == 0


def _write(channel: socket.socket, value: Any) -> None:
    data = pickle.dumps(value)
    channel.sendall(struct.pack("<Q", len(data)) + data)


def _read(channel: socket.socket) -> Any:
    (size,) = struct.unpack("<Q", _exactly(channel, 8))
    return pickle.loads(_exactly(channel, size))


def _exactly(channel: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = channel.recv(size - len(data))
        if not part:
            raise EOFError("the other side is gone")
        data += part
    return data


def _move(namespace: int) -> None:
    """Have this process live in another network namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, 0) != 0:
        raise OSError(ctypes.get_errno(), "setns")
    os.environ["TP_SOCKET_IFNAME"] = "eth0"


def _be_a_peer(channel: socket.socket, timeout: float, silence: float, relay: str) -> None:
    from lmj_trainer.relay.line import RelayLine
    from lmj_trainer.transport.tensorpipe import TensorPipeTransport

    if relay:
        os.environ["TP_SOCKET_IFNAME"] = "lo"
    calls = Calls(TensorPipeTransport(timeout, silence, RelayLine(Path(relay)) if relay else None))
    _write(channel, os.getpid())
    while True:
        name, arguments, named = _read(channel)
        try:
            result = getattr(calls, name)(*arguments, **named)
        except (ViewBrokenError, ValueError) as error:
            result = error
        _write(channel, result)


def _nurse(fd: int) -> None:
    import lmj_trainer.relay.line
    import lmj_trainer.transport.tensorpipe  # noqa: F401 - peers are born with it

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    requests = socket.socket(fileno=fd)
    while True:
        message, fds, _, _ = socket.recv_fds(requests, 1024, 2)
        if not message:
            return
        if os.fork() == 0:
            requests.close()
            try:
                for namespace in fds[1:]:
                    _move(namespace)
                _be_a_peer(socket.socket(fileno=fds[0]), *struct.unpack("dd", message[:16]), os.fsdecode(message[16:]))
            except EOFError:
                os._exit(0)
            finally:
                os._exit(1)
        for each in fds:
            os.close(each)


if __name__ == "__main__":
    torch.set_num_threads(1)
    _nurse(int(sys.argv[1]))
