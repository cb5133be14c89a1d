"""Who may command this agent: whoever signs with a key that its pod was made to trust."""

from collections.abc import Sequence

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from lmj_api.signed import PUBLIC_KEY, decoded, digest_of, parse
from lmj_trainer.agent.challenges import Challenges
from lmj_trainer.errors import UserError


class RefusedError(Exception):
    """A request does not count; the text says why."""


class Gate:
    """Of one agent. It has public keys alone: what can be stolen from it commands nobody."""

    def __init__(
        self, job: str, pod: str, trusted: Sequence[str], challenges: Challenges | None = None, certificate: str = ""
    ) -> None:
        """``job``, ``pod``: their uids. ``trusted``: public keys. ``certificate``: the digest of the agent's own, which whoever asks must have
        seen; empty: requests come in the clear. Raises UserError: one of the keys is none.
        """
        self._job, self._pod, self._certificate = job, pod, certificate
        self._keys = {text: _public_key(text) for text in trusted}
        self._challenges = challenges or Challenges()

    @property
    def challenge(self) -> str:
        """What the next requests are to be signed over."""
        return self._challenges.current

    def admit(self, method: str, path: str, header: str) -> str:
        """Let one request in, by its ``Authorization`` header, and none that is the same: the digest that its body must have.

        ``path``: with the query, as it was sent. Raises RefusedError. What costs little is looked at first, and no body before this.
        """
        try:
            credential, signature = parse(header)
        except ValueError:
            raise RefusedError("the request is not signed") from None
        key = self._keys.get(credential.key)
        if key is None:
            raise RefusedError("it is signed with a key that this pod does not trust")
        if not self._challenges.is_open(credential.challenge, credential.nonce):
            raise RefusedError("it was signed over a challenge that is over, or was sent before")
        try:
            key.verify(signature, credential.statement(self._job, self._pod, method, path, self._certificate))
        except (InvalidSignature, ValueError):
            raise RefusedError("its signature is of another request, another pod, or a connection to somebody else") from None
        self._challenges.use(credential.challenge, credential.nonce)
        return credential.digest

    def check(self, body: bytes, digest: str) -> None:
        """Refuse a body that is not the one of ``digest``. Raises RefusedError."""
        if digest_of(body) != digest:
            raise RefusedError("its body is not the one that was signed")


def _public_key(text: str) -> Ed25519PublicKey:
    if PUBLIC_KEY.fullmatch(text) is None:
        raise UserError(f"--trust {text[:60]!r}: not a public key of Ed25519 (43 characters of base64url)")
    return Ed25519PublicKey.from_public_bytes(decoded(text))
