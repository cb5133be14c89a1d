"""Who a relay is to others: a key pair that it makes when it starts and keeps in memory. Others know its public half from its address."""

from __future__ import annotations

import ssl

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from lmj_api.signed import decoded, encoded
from lmj_api.tls import context
from lmj_trainer.certificate import certified


class Identity:
    """Of one relay, for as long as it lives."""

    def __init__(self) -> None:
        self._private = Ed25519PrivateKey.generate()
        self.key = encoded(self._private.public_key().public_bytes_raw())
        """The public half."""
        self.server, _ = certified(self._private, "lmj relay")
        """For those who connect to it."""
        self.client = context(ssl.PROTOCOL_TLS_CLIENT)
        """For those whom it connects to. Whose key theirs is, is looked at when the handshake is done: see :func:`key_of`."""

    def sign(self, statement: bytes) -> bytes:
        """64 bytes."""
        return self._private.sign(statement)


def key_of(certificate: bytes) -> str:
    """The public key in a certificate (DER), which its holder has proven to have. Raises ValueError: it has none of this kind."""
    try:
        key = x509.load_der_x509_certificate(certificate).public_key()
    except (UnsupportedAlgorithm, x509.InvalidVersion) as error:
        raise ValueError(str(error)) from None
    if not isinstance(key, Ed25519PublicKey):
        raise ValueError("its certificate has no key of Ed25519")
    return encoded(key.public_bytes_raw())


def is_signed(statement: bytes, signature: bytes, key: str) -> bool:
    """Whether ``signature`` is of ``statement``, by ``key`` (43 characters of base64url)."""
    try:
        Ed25519PublicKey.from_public_bytes(decoded(key)).verify(signature, statement)
    except (InvalidSignature, ValueError):
        return False
    return True
