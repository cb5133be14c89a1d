"""Who a relay is to others: a key pair that it makes when it starts and keeps in memory. Others know its public half from its address."""

from __future__ import annotations

import os
import ssl
from datetime import UTC, datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from lmj_api.signed import decoded, encoded

_BEGIN = datetime(2000, 1, 1, tzinfo=UTC)
_END = datetime(9999, 12, 31, tzinfo=UTC)
"""Nobody looks at them: which keys count is said by views, and nodes' clocks may be wrong."""


class Identity:
    """Of one relay, for as long as it lives."""

    def __init__(self) -> None:
        self._private = Ed25519PrivateKey.generate()
        self.key = encoded(self._private.public_key().public_bytes_raw())
        """The public half."""
        self.server = _context(ssl.PROTOCOL_TLS_SERVER)
        """For those who connect to it."""
        self.server.num_tickets = 0
        _load(self.server, self._private)
        self.client = _context(ssl.PROTOCOL_TLS_CLIENT)
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


def _context(protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _load(context: ssl.SSLContext, private: Ed25519PrivateKey) -> None:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "lmj relay")])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(private.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(_BEGIN).not_valid_after(_END)
    certificate = builder.sign(private, None).public_bytes(Encoding.PEM)
    # The ssl module reads files alone. This one has no name, is never on a disk, and is gone at the end.
    with open(os.memfd_create("identity", os.MFD_CLOEXEC), "r+b") as file:
        file.write(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) + certificate)
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
