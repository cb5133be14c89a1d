"""A certificate that a process makes for itself: how TLS carries its public key. Nobody signs it, and no name or date in it is looked at."""

from __future__ import annotations

import os
import ssl
from datetime import UTC, datetime

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from lmj_api.tls import context

_BEGIN = datetime(2000, 1, 1, tzinfo=UTC)
_END = datetime(9999, 12, 31, tzinfo=UTC)
"""Whose certificate counts is said elsewhere, and nodes' clocks may be wrong."""


def certified(private: Ed25519PrivateKey, name: str) -> tuple[ssl.SSLContext, bytes]:
    """What a server with this key serves by, and its certificate (DER)."""
    called = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = x509.CertificateBuilder().subject_name(called).issuer_name(called).public_key(private.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(_BEGIN).not_valid_after(_END)
    certificate = builder.sign(private, None)
    made = context(ssl.PROTOCOL_TLS_SERVER)
    made.num_tickets = 0
    # The ssl module reads files alone. This one has no name, is never on a disk, and is gone at the end.
    with open(os.memfd_create("certificate", os.MFD_CLOEXEC), "r+b") as file:
        file.write(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        file.write(certificate.public_bytes(Encoding.PEM))
        file.flush()
        made.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
    return made, certificate.public_bytes(Encoding.DER)
