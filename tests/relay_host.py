"""Relays in threads of this process, each in a network namespace of its own if it is given one."""

import asyncio
import ctypes
import tempfile
import threading
from pathlib import Path

from lmj_trainer.relay.control import Control
from lmj_trainer.relay.relay import Relay

DEADLINE = 30.0


class RelayHost:
    """One relay. Its thread is in the namespace; the socket for orders is a file, and so is everywhere."""

    def __init__(self, silence: float, host: str = "127.0.0.1", namespace: Path | None = None) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="relay-")) / "r"
        self._silence, self._host, self._namespace = silence, host, namespace
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        assert self._ready.wait(DEADLINE), "there is no relay"

    def close(self) -> None:
        """End it, and all that goes through it."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(DEADLINE)
        self.path.unlink(missing_ok=True)
        self.path.parent.rmdir()

    async def _serve(self) -> None:
        if self._namespace is not None:
            with self._namespace.open() as file:
                libc = ctypes.CDLL(None, use_errno=True)
                if libc.setns(file.fileno(), 0) != 0:
                    raise OSError(ctypes.get_errno(), "setns")
        relay = Relay(self._silence)
        control = Control(relay)
        await relay.open(self._host)
        await control.open(self.path)
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._ready.set()
        await self._stop.wait()
        control.close()
        await relay.close()
