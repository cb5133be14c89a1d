"""Signs what is asked of one agent: for its pod alone, each request once."""

import secrets

from lmj_api.signed import Credential, is_challenge
from lmj_operator.backend.channel import Channel
from lmj_operator.backend.signing_key import SigningKey


class Caller:
    """Of one agent, for as long as its pod is there: it remembers what the agent wants the next request to be signed over."""

    __slots__ = ("_job", "_pod", "challenge", "channel", "key")

    def __init__(self, key: SigningKey, job: str, pod: str, channel: Channel | None = None) -> None:
        """``key``: one that the pod trusts. ``job``, ``pod``: their uids. ``channel``: None: the agent takes requests in the clear."""
        self.key, self._job, self._pod, self.channel = key, job, pod, channel
        self.challenge = ""
        """The agent's; empty: it has told none yet, and refuses what comes."""

    def authorization(self, method: str, path: str, digest: str, certificate: str = "") -> str:
        """The ``Authorization`` header of one request. ``path``: with its query, as it is sent. ``digest``: of its body. ``certificate``: the
        digest of the one on whose connection it is sent; empty: in the clear.
        """
        credential = Credential(self.key.public, self.challenge, secrets.token_urlsafe(16), digest)
        return credential.header(self.key.sign(credential.statement(self._job, self._pod, method, path, certificate)))

    def heard(self, challenge: str | None) -> None:
        """The agent's answer had this challenge; whatever runs in the pod may have said it."""
        if challenge is not None and is_challenge(challenge):
            self.challenge = challenge
