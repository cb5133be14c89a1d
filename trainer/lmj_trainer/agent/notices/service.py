"""A machine's metadata service, as whoever asks it sees it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiohttp import ClientSession

ADDRESS = "http://169.254.169.254"
"""Where every cloud has it."""
MOST_BYTES = 1 << 16
"""Longer answers are none of a metadata service."""


class ServiceError(Exception):
    """The service did not answer, or not as such a service does. The text says what came."""


@dataclass(frozen=True)
class Answer:
    """What it says."""

    status: int
    body: bytes

    @property
    def text(self) -> str:
        """The body, on one line."""
        return " ".join(self.body.decode(errors="replace").split())

    @property
    def table(self) -> dict[str, Any]:
        """The body as a JSON object. Raises ServiceError."""
        try:
            value = json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise ServiceError(f"it answers what is no JSON: {self.text[:80]!r}") from error
        if not isinstance(value, dict):
            raise ServiceError(f"it answers what is no JSON object: {self.text[:80]!r}")
        return value

    def required(self, what: str) -> Answer:
        """Itself, where the status is 200. Raises ServiceError."""
        if self.status != 200:
            raise ServiceError(f"it answers {self.status} when it is asked for {what}")
        return self


class MetadataService:
    """Asks over HTTP. Redirects are not followed, and proxies of the environment not used."""

    def __init__(self, session: ClientSession, address: str) -> None:
        self._session, self._address = session, address.rstrip("/")

    async def ask(self, path: str, headers: Mapping[str, str], method: str = "GET") -> Answer:
        """What it answers. Raises ServiceError."""
        from aiohttp import ClientError

        try:
            async with self._session.request(method, self._address + path, headers=headers, allow_redirects=False) as response:
                body = b""
                while len(body) <= MOST_BYTES and (part := await response.content.read(MOST_BYTES)):
                    body += part
        except TimeoutError as error:
            raise ServiceError("it does not answer in time") from error
        except (ClientError, OSError, ValueError) as error:
            raise ServiceError(str(error) or type(error).__name__) from error
        if len(body) > MOST_BYTES:
            raise ServiceError(f"it answers more than {MOST_BYTES} bytes")
        return Answer(response.status, body)
