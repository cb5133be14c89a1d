"""TLS to one agent. Its certificate is its own work: whose it is, is proven by the token of its pod.

Who is between the two has another certificate. A request is signed over the one that the operator was shown, so an agent answers none that came
through somebody else, and shows nobody else its token.
"""

import asyncio
import hashlib
import ssl
from collections.abc import Awaitable, Callable

from aiohttp import Fingerprint

from lmj_api.tls import context
from lmj_operator.backend.reach import place

Prove = Callable[[str], Awaitable[None]]
"""Returns when a token is the pod's. Raises :class:`ProofError`."""


class ProofError(Exception):
    """It is not known whose certificate an agent has; the text says why."""


class Channel:
    """To one agent, for as long as its pod is there."""

    __slots__ = ("pin", "prove", "turn")

    def __init__(self, prove: Prove) -> None:
        self.prove = prove
        self.turn = asyncio.Lock()
        """Of who meets the agent: all others wait for what comes of it."""
        self.pin: Fingerprint | None = None
        """Of the certificate that is the agent's; None: it is not known."""

    def forget(self, pin: Fingerprint) -> None:
        """Somebody else answers there now."""
        if self.pin is pin:
            self.pin = None


CONTEXT = context(ssl.PROTOCOL_TLS_CLIENT)


async def shown_at(address: str) -> Fingerprint:
    """Of the certificate that who answers at ``address`` (``host:port``) shows, and has the key of. Raises OSError."""
    _, writer = await asyncio.open_connection(*place(address), ssl=CONTEXT)
    try:
        return fingerprint(writer.transport)
    finally:
        writer.transport.abort()


def fingerprint(transport: asyncio.BaseTransport) -> Fingerprint:
    """Of the certificate that was shown on it."""
    shown: ssl.SSLObject = transport.get_extra_info("ssl_object")
    return Fingerprint(hashlib.sha256(shown.getpeercert(binary_form=True) or b"").digest())
