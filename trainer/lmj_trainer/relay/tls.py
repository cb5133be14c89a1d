"""One TLS connection without a socket: bytes in, bytes out."""

from __future__ import annotations

import contextlib
import ssl
from typing import Any


class Tls:
    """All that it is to send is in :meth:`take` after each call of another method. What it cannot read raises ``ssl.SSLError``."""

    def __init__(self, context: ssl.SSLContext, *, server: bool) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        # Its stub knows no buffer but a bytearray, and says that it returns bytes where it has one.
        self._object: Any = context.wrap_bio(self._incoming, self._outgoing, server_side=server)
        self.shaken = False
        """The handshake is done."""
        self.over = False
        """The peer has said that it sends nothing more."""

    @property
    def waiting(self) -> int:
        """Bytes that came and were not looked at."""
        return self._incoming.pending

    @property
    def certificate(self) -> bytes:
        """The peer's, DER; empty: it has shown none."""
        certificate: bytes | None = self._object.getpeercert(binary_form=True)
        return certificate or b""

    def receive(self, data: memoryview | bytes) -> None:
        """``data`` came from the network."""
        self._incoming.write(data)

    def shake(self) -> bool:
        """Go on with the handshake as far as can be; whether it is done."""
        if not self.shaken:
            with contextlib.suppress(ssl.SSLWantReadError):
                self._object.do_handshake()
                self.shaken = True
        return self.shaken

    def read(self, buffer: memoryview) -> int:
        """Put into ``buffer`` what the peer has sent; how many bytes. 0: more must come first, or it is :attr:`over`."""
        filled = 0
        while filled < len(buffer):
            try:
                count = self._object.read(len(buffer) - filled, buffer[filled:])
            except ssl.SSLWantReadError:
                break
            if not count:
                self.over = True
                break
            filled += count
        return filled

    def write(self, data: memoryview | bytes) -> None:
        """Send ``data``, after the handshake."""
        view = memoryview(data)
        while len(view):
            view = view[self._object.write(view) :]  # a record at a time

    def close(self) -> None:
        """Say that nothing more is sent."""
        with contextlib.suppress(ssl.SSLError):  # its answer is not waited for, and one that never began has nothing to say
            self._object.unwrap()

    def take(self) -> bytes:
        """What is to be sent to the network."""
        return self._outgoing.read()
