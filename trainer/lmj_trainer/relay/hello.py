"""How a relay that connects shows who it is: inside TLS, to one whose key it has seen, it signs a nonce for that key alone."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from lmj_api.signed import decoded, encoded
from lmj_trainer.relay.identity import Identity, is_signed

NONCE_BYTES = 32
"""The first word, of the relay that was connected to."""
WELCOME = b"\x01"
"""Its last one before what it relays."""
_HELLO = struct.Struct("!32sH64s")
HELLO_BYTES = _HELLO.size


@dataclass(frozen=True, slots=True)
class Hello:
    """The answer to the nonce."""

    key: str
    """Of the relay that connects."""
    worker: int
    """Which port it wants to be connected to."""
    signature: bytes

    @classmethod
    def made(cls, identity: Identity, server: str, nonce: bytes, worker: int) -> Hello:
        """By ``identity``, to the relay with the key ``server``."""
        return cls(identity.key, worker, identity.sign(_statement(server, nonce, identity.key, worker)))

    @classmethod
    def of(cls, data: bytes) -> Hello:
        """From ``HELLO_BYTES`` bytes, whatever they are: it shows nothing until it :meth:`holds`."""
        key, worker, signature = _HELLO.unpack(data)
        return cls(encoded(key), worker, signature)

    def to_bytes(self) -> bytes:
        """The inverse of :meth:`of`."""
        return _HELLO.pack(decoded(self.key), self.worker, self.signature)

    def holds(self, server: str, nonce: bytes) -> bool:
        """Whether the holder of the key made it, for the relay with the key ``server`` and its ``nonce``."""
        return is_signed(_statement(server, nonce, self.key, self.worker), self.signature, self.key)


def _statement(server: str, nonce: bytes, client: str, worker: int) -> bytes:
    return "\n".join(("lmj relay hello 1", server, nonce.hex(), client, str(worker))).encode()
