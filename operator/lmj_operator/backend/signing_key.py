"""A key with which requests to agents are signed."""

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from lmj_api.signed import encoded


class SigningKey:
    """An Ed25519 key."""

    __slots__ = ("_private", "public")

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private
        self.public = encoded(private.public_key().public_bytes_raw())
        """The public key, as pods are given it."""

    @classmethod
    def generate(cls) -> "SigningKey":
        """A new one."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def of_pem(cls, text: bytes) -> "SigningKey":
        """The one that ``openssl genpkey -algorithm ed25519`` wrote. Raises ValueError."""
        try:
            private = load_pem_private_key(text, None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            raise ValueError("it has no private key in PEM that can be read without a password") from None
        if not isinstance(private, Ed25519PrivateKey):
            raise ValueError("its key is not one of Ed25519")
        return cls(private)

    def pem(self) -> bytes:
        """The private key in PEM (PKCS 8)."""
        return self._private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    def sign(self, data: bytes) -> bytes:
        """The signature, 64 bytes."""
        return self._private.sign(data)
