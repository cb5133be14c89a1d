"""A process's line to its pod's relay."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path

from lmj_trainer.relay.words import LONGEST_LINE, Done, Order, OrderKind

_SECONDS = 10.0
"""For an order: a relay is done with any in milliseconds."""
_AGAIN_SECONDS = 0.02
"""Until one that is not there yet is looked for again."""


class RelayError(ConnectionError):
    """The relay did not do it, or is gone; the text says which."""


class RelayLine:
    """What is wanted over it lasts as long as it does. Any thread may use it; all methods raise RelayError."""

    def __init__(self, path: Path, patience: float = 0.0) -> None:
        """``path``: the relay's socket. ``patience``: seconds for which it may not be there yet."""
        self._path = path
        self._lock = threading.Lock()
        self._socket = _connected(path, patience)
        self._socket.settimeout(_SECONDS)
        self._answers = self._socket.makefile("rb")

    def publish(self, port: int) -> str:
        """Let others connect to ``port`` of the loopback interface; under which address."""
        return self._place(Order(kind=OrderKind.PUBLISH, port=port))

    def reach(self, address: str) -> str:
        """Where the peer at ``address`` is to be connected to (``HOST:PORT``)."""
        return self._place(Order(kind=OrderKind.REACH, address=address))

    def forget(self, address: str) -> None:
        """The peer at ``address`` is not connected to any more."""
        self._ask(Order(kind=OrderKind.FORGET, address=address))

    def admit(self, addresses: Collection[str]) -> None:
        """Let the peers at these addresses connect, and no others."""
        self._ask(Order(kind=OrderKind.ADMIT, addresses=tuple(sorted(addresses))))

    def on_end(self, call: Callable[[], None]) -> None:
        """Have ``call`` called, in a thread of its own, when the relay is gone."""
        watched = _connected(self._path)

        def wait() -> None:
            with watched, contextlib.suppress(OSError):  # a reset is an end, too
                watched.recv(1)
            call()

        threading.Thread(target=wait, name="relay", daemon=True).start()

    def close(self) -> None:
        """Nothing is wanted any more."""
        self._answers.close()
        self._socket.close()

    def _place(self, order: Order) -> str:
        place = self._ask(order).address
        if place is None:
            raise RelayError(f"the relay does not say where: {order.kind}")
        return place

    def _ask(self, order: Order) -> Done:
        with self._lock:
            try:
                self._socket.sendall(order.to_json().encode() + b"\n")
                line = self._answers.readline(LONGEST_LINE)
                if not line.endswith(b"\n"):
                    raise RelayError("the pod's relay has ended")
                done = Done.model_validate_json(line)
            except (OSError, ValueError) as error:
                # The next answer would be that of this order.
                self.close()
                raise (
                    error if isinstance(error, RelayError) else RelayError(f"the pod's relay cannot be asked: {error}")
                ) from error
        if done.problem is not None:
            raise RelayError(f"{order.kind} {order.address or order.port or ''}: {done.problem}")
        return done


def _connected(path: Path, patience: float = 0.0) -> socket.socket:
    end = time.monotonic() + patience
    while True:
        made = socket.socket(socket.AF_UNIX)
        try:
            made.settimeout(_SECONDS)
            made.connect(str(path))
            made.settimeout(None)
        except OSError as error:
            made.close()
            if time.monotonic() >= end:
                raise RelayError(f"the pod's relay is not at {path}: {error}") from error
            time.sleep(_AGAIN_SECONDS)
        else:
            return made
