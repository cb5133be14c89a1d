"""Calls to an API server, many at once, whose answers may be as hostile as what was sent."""

import json
import ssl
from typing import Any

import aiohttp

from lmj_operator.backend.kubernetes.nesting import shallow

SECONDS = 60.0
JSON, MERGE = "application/json", "application/merge-patch+json"


class Refused(Exception):  # noqa: N818 - it names what happened
    """The server's answer was no."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text[:500]}")
        self.status = status


class Server:
    """Open while in an ``async with`` block."""

    def __init__(self, url: str, token: str, tls: ssl.SSLContext | None) -> None:
        self._url, self._headers, self._tls = url, {"Authorization": f"Bearer {token}"}, tls

    async def __aenter__(self) -> "Server":
        connector = aiohttp.TCPConnector(ssl=self._tls or False)
        timeout = aiohttp.ClientTimeout(SECONDS)
        self._session = aiohttp.ClientSession(self._url, connector=connector, headers=self._headers, timeout=timeout)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def call(self, method: str, path: str, body: bytes | dict[str, Any] | None = None, kind: str = JSON) -> Any:
        """The answer, where it is JSON with what is too deep left out. Raises Refused, and ClientError where there is none."""
        data = json.dumps(body).encode() if isinstance(body, dict) else body
        async with self._session.request(method, path, data=data, headers={"Content-Type": kind}) as answer:
            text = await answer.read()
            if answer.status >= 300:
                raise Refused(answer.status, text.decode(errors="replace"))
            return json.loads(shallow(text))
