"""Who a launcher is to others: a key of its own, whose public half is a part of the address that the operator tells all members of a view."""

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from lmj_api.signed import decoded, encoded, is_public_key
from lmj_api.view import View
from lmj_trainer.launch.words import statement, told

_MARK = "#"


class Identity:
    """Of one launcher, for as long as it lives. Nobody else has the private key: what another pod can read says who it is, and no more."""

    def __init__(self) -> None:
        self._private = Ed25519PrivateKey.generate()
        self._public = encoded(self._private.public_key().public_bytes_raw())

    def address(self, place: str) -> str:
        """``place`` (``HOST:PORT``), where it listens, as others are to know it."""
        return place + _MARK + self._public

    def sign(self, data: bytes) -> str:
        """In hexadecimal digits."""
        return self._private.sign(data).hex()


class Credentials:
    """Of one launcher in one view: shows which rank it is, and knows whether others are whom they say."""

    def __init__(self, identity: Identity, run: str, view: View) -> None:
        """``run``: the id of the job's run. Proofs are of it, and of the view as it was told."""
        self._identity, self._told = identity, told(run, view)
        self._addresses = {member.rank: member.address for member in view.members}

    def show(self, role: str, nonce: str, rank: int) -> str:
        """That whoever answers ``nonce``, as ``role`` towards or of ``rank``, is this launcher."""
        return self._identity.sign(statement(self._told, role, nonce, rank))

    def hold(self, shown: str, by: int, role: str, nonce: str, rank: int) -> bool:
        """Whether ``shown`` is what :meth:`show` of the launcher of rank ``by`` makes of the same."""
        public = self._addresses.get(by, "").partition(_MARK)[2]
        if not is_public_key(public):
            return False
        try:
            key = Ed25519PublicKey.from_public_bytes(decoded(public))
            key.verify(bytes.fromhex(shown), statement(self._told, role, nonce, rank))
        except (InvalidSignature, ValueError):
            return False
        return True
