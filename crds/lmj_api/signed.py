"""What a request to an agent is signed over, and how the signature travels. Both ends build the same bytes; neither needs a secret of the other."""

import base64
import hashlib
import re
from dataclasses import dataclass

SCHEME = "LMJ-Ed25519"
"""Of the ``Authorization`` header, and of ``WWW-Authenticate`` where a request is refused."""
CHALLENGE = "LMJ-Challenge"
"""Header of each answer of an agent: what the next requests are to be signed over."""
LONGEST_HEADER = 512
"""Characters of an ``Authorization`` header; one of ours has some 300."""

PUBLIC_KEY = re.compile(r"[A-Za-z0-9_-]{43}")
"""32 bytes in base64url without padding, as all of these."""
_PRIME = 2**255 - 19
_D = -121665 * pow(121666, -1, _PRIME) % _PRIME
"""Ed25519 is the curve ``-x**2 + y**2 == 1 + d * x**2 * y**2`` modulo this prime."""
_WORD = r"[A-Za-z0-9_-]{16,64}"
_HEADER = re.compile(
    rf"{SCHEME} key=(?P<key>{PUBLIC_KEY.pattern}),challenge=(?P<challenge>{_WORD}|),nonce=(?P<nonce>{_WORD}),"
    r"digest=(?P<digest>[0-9a-f]{64}),signature=(?P<signature>[A-Za-z0-9_-]{86})"
)


@dataclass(frozen=True, slots=True)
class Credential:
    """What a caller says of one request, beside its signature."""

    key: str
    """The public key that the signature is by."""
    challenge: str
    """The agent's, as the caller heard it last; empty: it has heard none."""
    nonce: str
    """Never used twice with a challenge."""
    digest: str
    """Of the body: SHA-256, in hexadecimal digits."""

    def statement(self, job: str, pod: str, method: str, path: str, certificate: str = "") -> bytes:
        """What is signed: this, of the request ``method`` ``path`` (with its query) to the agent of the pod with uid ``pod``, which is of the
        job with uid ``job``. ``certificate``: the digest of the one that was shown on the connection; empty: it is not encrypted. So what is
        sent to one who is between the two is of no use to him. Raises ValueError where a part could be read as two.
        """
        parts = ["lmj agent request 1", job, pod, method, path, self.key, self.challenge, self.nonce, self.digest]
        if certificate:
            parts.append(certificate)
        if any("\n" in part for part in parts):
            raise ValueError("a part of what is signed has more than one line")
        return "\n".join(parts).encode()

    def header(self, signature: bytes) -> str:
        """The ``Authorization`` header of the request."""
        fields = f"key={self.key},challenge={self.challenge},nonce={self.nonce},digest={self.digest}"
        return f"{SCHEME} {fields},signature={encoded(signature)}"


def parse(header: str) -> tuple[Credential, bytes]:
    """The inverse of :meth:`Credential.header`: with the signature, of 64 bytes. Raises ValueError for all else."""
    found = _HEADER.fullmatch(header) if len(header) <= LONGEST_HEADER else None
    if found is None:
        raise ValueError("it is not a signature of a request")
    return Credential(found["key"], found["challenge"], found["nonce"], found["digest"]), decoded(found["signature"])


def is_challenge(text: str) -> bool:
    """Whether ``text``, which an agent said, may be signed over."""
    return re.fullmatch(_WORD, text) is not None


def is_public_key(text: str) -> bool:
    """Whether ``text`` may say who somebody is: a public key as :func:`encoded` writes it, of a point that is not of small order.

    For a key of small order everybody can make signatures, over anything. Nobody who makes an honest key comes upon one.
    """
    if PUBLIC_KEY.fullmatch(text) is None or encoded(decoded(text)) != text:
        return False
    y = int.from_bytes(decoded(text), "little") & ((1 << 255) - 1)  # the bit above is the sign of x
    square = y * y % _PRIME
    # Those of order 1 and 2 have y**2 == 1, those of order 4 have y == 0, which is that of twice one of order 8: d * y**4 + 2 * y**2 == 1.
    return y < _PRIME and y * (square - 1) * (_D * square * square + 2 * square - 1) % _PRIME != 0


def digest_of(body: bytes) -> str:
    """As :attr:`Credential.digest`."""
    return hashlib.sha256(body).hexdigest()


def encoded(data: bytes) -> str:
    """``data`` in base64url, without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def decoded(text: str) -> bytes:
    """The inverse of :func:`encoded`, for text of its characters alone."""
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
