"""A proxy in front of an API server that does to calls what networks and busy servers do, as programmed, and keeps a log of all calls.

Use it as ``async with Proxy(...)``, or ``with in_thread(Proxy(...))`` beside code that blocks. exec, attach and port-forward do not pass.
"""

import asyncio
import random
import ssl
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from types import TracebackType

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from cluster.api import Api
from cluster.calls import WRITES, Call, Write, target_of
from cluster.faults import CutWatch, Delay, Drop, Fault, Program, Refuse, Rule, Stale
from cluster.pki import write_kubeconfig

_HOP = frozenset({"connection", "host", "keep-alive", "transfer-encoding", "upgrade", "content-length"})
_REASONS = {409: "Conflict", 429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable", 504: "Timeout"}
_AUTOMATIC = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
"""Not added where the client did not send them: the API server answers 415 to a content type without a content."""
_ANSWERS_KEPT = 50


class Moment(Enum):
    """When a hook is called: a write did not reach the server yet, or was done and its answer has not left the proxy."""

    BEFORE = "before"
    AFTER = "after"


Hook = Callable[[Write, Moment], bool]
"""``on_write(write, moment)``; False drops the call there. It runs in the proxy's event loop: it must not block long."""


@dataclass(frozen=True)
class _Answer:
    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


class _Dropped(Exception):  # noqa: N818 - not an error: it ends a call
    """The connection is to be closed without an answer."""


class Proxy:
    """``upstream`` is the server's URL; ``upstream_tls`` None for plain HTTP there.

    ``token`` is sent for clients that bring none (kubectl does not send its token over plain HTTP). ``certificate``: certificate and key
    files, to speak TLS with clients.
    """

    def __init__(
        self,
        upstream: str,
        upstream_tls: ssl.SSLContext | None = None,
        *,
        token: str | None = None,
        certificate: tuple[Path, Path] | None = None,
        rules: Sequence[Rule] = (),
        seed: int = 0,
        on_write: Hook | None = None,
    ):
        self.calls: list[Call] = []
        self.on_write = on_write
        self.url = ""
        self._upstream = upstream.rstrip("/")
        self._tls = upstream_tls
        self._token = token
        self._certificate = certificate
        self._seed = seed
        self._program = Program(rules, seed)
        self._writes = 0
        self._answers: dict[str, list[_Answer]] = defaultdict(list)
        self._runner: web.AppRunner | None = None
        self._client: aiohttp.ClientSession | None = None

    @classmethod
    def before(cls, kubeconfig: Path, *, rules: Sequence[Rule] = (), seed: int = 0, on_write: Hook | None = None) -> "Proxy":
        """Before the server of one of this cluster's own kubeconfigs, with its token."""
        api = Api(kubeconfig)
        return cls(api.server, api.tls, token=api.token, rules=rules, seed=seed, on_write=on_write)

    def program(self, rules: Sequence[Rule], seed: int | None = None) -> None:
        """Replace the rules (none: faults stop); counts start again."""
        self._program = Program(rules, self._seed if seed is None else seed)

    def kubeconfig(self, file: Path, token: str | None = None) -> Path:
        """Write a kubeconfig of a client of this proxy. ``token``: another than the proxy's own."""
        write_kubeconfig(file, self.url, token or self._token or "", self._certificate[0] if self._certificate else None)
        return file

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Listen; returns the URL. Port 0 is one that is free."""
        self._client = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self._tls or False, limit=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
            auto_decompress=False,
        )
        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
        await self._runner.setup()
        served = None
        if self._certificate:
            served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            served.load_cert_chain(*self._certificate)
        await web.TCPSite(self._runner, host, port, ssl_context=served).start()
        self.url = f"{'https' if served else 'http'}://{host}:{self._runner.addresses[0][1]}"
        return self.url

    async def stop(self) -> None:
        """Close all connections and stop listening."""
        if self._runner:
            await self._runner.cleanup()
        if self._client:
            await self._client.close()

    async def __aenter__(self) -> "Proxy":
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.stop()

    # --- one call -----------------------------------------------------------------------------------------------------

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        target = target_of(request.method, request.rel_url.raw_path, request.query)
        write = None
        if request.method in WRITES:
            self._writes += 1
            write = Write(self._writes, request.method, request.path_qs, target, await request.read())
        index = len(self.calls)
        fault = self._program.fault_for(target, request.path)
        name = type(fault).__name__ if fault else ""
        number = write.number if write is not None else None
        self.calls.append(Call(index + 1, request.method, request.path, target, None, number, name))
        try:
            response = await self._respond(request, fault, write, index)
        except _Dropped:
            if request.transport:
                request.transport.abort()
            return web.Response()
        except aiohttp.ClientConnectionError as error:
            response = web.Response(status=502, text=f"the API server can't be reached: {error}")
        self.calls[index] = replace(self.calls[index], status=response.status)
        return response

    async def _respond(self, request: web.Request, fault: Fault | None, write: Write | None, index: int) -> web.StreamResponse:
        self._hook(write, Moment.BEFORE)
        if isinstance(fault, Delay):
            await asyncio.sleep(fault.seconds)
        if isinstance(fault, Drop) and not fault.forwarded:
            raise _Dropped
        if isinstance(fault, Refuse) and not fault.forwarded:
            return _refusal(fault)
        earlier = self._answers.get(_question(request), [])
        if isinstance(fault, Stale) and earlier:
            return _response(random.Random(f"{self._seed}/{len(self.calls)}").choice(earlier))
        response = await self._forward(request, fault)
        self.calls[index] = replace(self.calls[index], answered=response.status)
        self._hook(write, Moment.AFTER)
        if isinstance(fault, Drop):
            raise _Dropped
        return _refusal(fault) if isinstance(fault, Refuse) else response

    def _hook(self, write: Write | None, moment: Moment) -> None:
        if self.on_write and write is not None and not self.on_write(write, moment):
            raise _Dropped

    async def _forward(self, request: web.Request, fault: Fault | None) -> web.StreamResponse:
        assert self._client is not None
        headers = [(key, value) for key, value in request.headers.items() if key.lower() not in _HOP]
        if self._token and "Authorization" not in request.headers:
            headers.append(("Authorization", f"Bearer {self._token}"))
        url = self._upstream + request.raw_path
        async with self._client.request(
            request.method,
            URL(url, encoded=True),
            headers=headers,
            data=await request.read() or None,
            skip_auto_headers=_AUTOMATIC,
            allow_redirects=False,
        ) as answer:
            passed = tuple((key, value) for key, value in answer.headers.items() if key.lower() not in _HOP)
            streams = ("watch", "follow")
            if any(request.query.get(stream, "").lower() in ("1", "true") for stream in streams) and answer.status == 200:
                return await self._stream(request, answer, passed, fault.events if isinstance(fault, CutWatch) else None)
            kept = _Answer(answer.status, passed, await answer.read())
            if request.method == "GET" and answer.status == 200:
                question = _question(request)
                self._answers[question] = [*self._answers[question], kept][-_ANSWERS_KEPT:]
            return _response(kept)

    async def _stream(
        self, request: web.Request, answer: aiohttp.ClientResponse, headers: Sequence[tuple[str, str]], events: int | None
    ) -> web.StreamResponse:
        """Pass lines on as they come; after ``events`` of them the connection is closed."""
        response = web.StreamResponse(status=answer.status, headers=_headers(headers))
        await response.prepare(request)
        left = events
        if left is not None and left <= 0:
            raise _Dropped
        async for chunk, _ in answer.content.iter_chunks():
            if left is None:
                await response.write(chunk)
                continue
            lines = chunk.split(b"\n")
            if len(lines) > left:
                await response.write(b"".join(line + b"\n" for line in lines[:left]))
                await asyncio.sleep(0)
                await response.write_eof()
                if request.transport:
                    request.transport.close()
                return response
            left -= len(lines) - 1
            await response.write(chunk)
        await response.write_eof()
        return response


@contextmanager
def in_thread(proxy: Proxy) -> Iterator[Proxy]:
    """The proxy at work in a thread of its own, for code that blocks; its ``url`` is known inside."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="proxy", daemon=True)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(proxy.start(), loop).result(timeout=10)
        yield proxy
    finally:
        asyncio.run_coroutine_threadsafe(_end(proxy), loop).result(timeout=10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(timeout=10)
        loop.close()


async def _end(proxy: Proxy) -> None:
    """Stop it, with the calls that still wait: for a server's answer, or for a delay to be over."""
    await proxy.stop()
    waiting = asyncio.all_tasks() - {asyncio.current_task()}
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


def _question(request: web.Request) -> str:
    """Equal questions have answers of equal form: kubectl asks for tables and protobuf where others ask for JSON."""
    return f"{request.path_qs} {request.headers.get('Accept', '')}"


def _response(answer: _Answer) -> web.Response:
    return web.Response(status=answer.status, headers=_headers(answer.headers), body=answer.body)


def _headers(pairs: Sequence[tuple[str, str]]) -> CIMultiDict[str]:
    return CIMultiDict(pairs)


def _refusal(fault: Refuse) -> web.Response:
    """As Kubernetes says no."""
    reason = _REASONS.get(fault.status, "Unknown")
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": "injected",
        "reason": reason,
        "code": fault.status,
    }
    headers = {} if fault.retry_after is None else {"Retry-After": str(fault.retry_after)}
    return web.json_response(body, status=fault.status, headers=headers)
