"""The session by which Kopf lists and watches jobs: what it delivers can be parsed, and is no larger than what is read of it.

Kopf parses by itself, and what its parser raises ends the process: one job nested deep enough would end the operator for all, and
again whenever it starts. It also holds what it heard of all jobs until pods and nodes are known.
"""

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import kopf
from aiohttp.connector import Connection
from kubernetes.aio.client import Configuration

from lmj_operator.backend.kubernetes.api import lines
from lmj_operator.backend.kubernetes.job_object import kept, kept_event
from lmj_operator.backend.kubernetes.pages import page
from lmj_operator.backend.kubernetes.trimming import EVENT, trimmed


class _Content:
    """The body of an answer, of which a watch gets whole lines, each an event."""

    def __init__(self, content: aiohttp.StreamReader) -> None:
        self._content = content

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)

    async def iter_chunked(self, _: int) -> AsyncIterator[bytes]:
        async for line in lines(self._content):
            yield kept_event(await trimmed(line, EVENT)) + b"\n"
            del line  # the next may be long in coming


class ShallowResponse(aiohttp.ClientResponse):
    """An answer in JSON, or in lines of JSON."""

    async def start(self, connection: Connection) -> aiohttp.ClientResponse:
        """As the base says."""
        await super().start(connection)
        self.content: Any = _Content(self.content)
        return self

    async def json(self, **_: Any) -> Any:
        """As the base says."""
        return await page(await self.read(), kept)


async def session_of(reached: Configuration) -> kopf.AiohttpSession:
    """The session that Kopf would make of how the API server is ``reached``, with such answers. One that is refused is made anew."""
    header = await reached.get_api_key_with_prefix("BearerToken") or ""
    scheme, _, token = header.rpartition(" ")
    info = kopf.ConnectionInfo(
        server=reached.host,
        ca_path=reached.ssl_ca_cert,
        insecure=not reached.verify_ssl,
        username=reached.username or None,
        password=reached.password or None,
        scheme=scheme or None,
        token=token or None,
        certificate_path=reached.cert_file,
        private_key_path=reached.key_file,
        proxy_url=reached.proxy,
    )
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=info.as_ssl_context()),
        headers=info.as_http_headers(),
        proxy=info.proxy_url,
        trust_env=info.trust_env,
        response_class=ShallowResponse,
    )
    return kopf.AiohttpSession(aiohttp_session=session, server=info.server)
