"""Where the processes of a script report their progress: a small HTTP server on 127.0.0.1, in the event loop of whoever asks for it.

``POST /trainer-status`` takes what the Trainer of transformers posts (``trainer_status`` has the facts). ``POST /progress/TOKEN`` takes lines of
JSON, so that one ``curl -d '{"step": 3}' $LMJ_PROGRESS_URL`` is enough. Either takes the token in a header. A connection is for one request.
"""

import asyncio
import hmac
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Self

from lmj_api.protocol import Progress
from lmj_trainer.launch.progress import RateLimit, ReportError, Reports

HOST = "127.0.0.1"
LEAST_SECONDS = 0.25
"""Between two of what is told."""
MOST_HEAD = 16_384
MOST_BODY = 65_536
"""Bytes of a request."""
MOST_UNREAD = 1 << 20
"""Bytes of a refused body that are read and dropped, so that its sender gets to the answer."""
MOST_CONNECTIONS = 64
"""At a time; another is closed at once."""
REQUEST_SECONDS = 10.0
"""A connection lasts no longer."""
_PROXIES = ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")


class RefusedError(Exception):
    """A request that is answered with ``status`` and a line for its sender."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class ProgressServer:
    """Serves while it is entered; what the reports say together goes to ``on_progress``, in the event loop, at most four times a second.

    One is for one view: what a process of an older view still says finds no server. What waits when it is left is told first.
    """

    def __init__(self, on_progress: Callable[[Progress], None], *, folder: Path | None = None, first_step: int = 0) -> None:
        """``folder``: for the token's file, of the worker's own. Unset: a temporary one. ``first_step``: see ``Reports``."""
        self._on_progress, self._folder, self._reports = on_progress, folder, Reports(first_step)
        self._limit = RateLimit(LEAST_SECONDS)
        self._timer: asyncio.TimerHandle | None = None
        self._token = secrets.token_urlsafe(24)
        self._connections: set[asyncio.Task[None]] = set()
        self._temporary: Path | None = None
        self._token_file: Path | None = None

    async def __aenter__(self) -> Self:
        """Listen on a free port. Raise OSError if there is none, or if the token cannot be written."""
        self._loop = asyncio.get_running_loop()
        self._server = await asyncio.start_server(self._connected, HOST, 0, limit=MOST_HEAD)
        self.port: int = self._server.sockets[0].getsockname()[1]
        try:
            self._write_token()
        except OSError:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        if self._timer is not None:
            self._timer.cancel()
        if self._token_file is not None:
            self._token_file.unlink(missing_ok=True)
        if self._temporary is not None:
            shutil.rmtree(self._temporary)
        self._tell()

    def _write_token(self) -> None:
        """Into a file that nobody else may read: the Trainer wants one."""
        if self._folder is None:
            self._folder = self._temporary = Path(tempfile.mkdtemp(prefix="lmj-progress-"))
        path = self._folder.absolute() / f"progress-token-{self.port}"
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            self._token_file = path
            file.write(self._token)

    def environment(self, given: Mapping[str, str] = os.environ) -> dict[str, str]:
        """Variables for the script's processes, which have ``given`` else. Where that names a proxy, this server is exempted from it."""
        address = f"http://{HOST}:{self.port}"
        variables = {
            "LMJ_PROGRESS_URL": f"{address}/progress/{self._token}",
            "KUBEFLOW_TRAINER_SERVER_URL": f"{address}/trainer-status",
            "KUBEFLOW_TRAINER_SERVER_TOKEN": str(self._token_file),
        }
        if any(given.get(name) for name in _PROXIES):
            for name, other in (("no_proxy", "NO_PROXY"), ("NO_PROXY", "no_proxy")):
                exempt = given.get(name) or given.get(other) or ""
                variables[name] = exempt if exempt.strip() == "*" else ",".join(filter(None, [exempt, HOST]))
        return variables

    def take_lines(self, text: bytes) -> None:
        """Take lines that came another way, as from a file. Raise ReportError at the first that is no report; those before it count."""
        try:
            self._reports.take_lines(text, self._loop.time())
        finally:
            self._offer()

    def _offer(self) -> None:
        if self._reports.progress is not None:
            self._limit.offer(self._reports.progress)
        wait = self._limit.due_in(self._loop.time())
        if wait is not None and self._timer is None:
            self._timer = self._loop.call_later(wait, self._tell)

    def _tell(self) -> None:
        self._timer = None
        progress = self._limit.take(self._loop.time())
        if progress is not None:
            self._on_progress(progress)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._connections) >= MOST_CONNECTIONS:
            writer.transport.abort()
            return
        self._connections.add(task)
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                await self._serve(reader, writer)
        except (OSError, EOFError, TimeoutError):
            pass  # the sender is gone, or does not get on: its next report is as good
        except asyncio.CancelledError:
            if self._server.is_serving():
                raise  # not by __aexit__, which is the one to cancel this
        finally:
            self._connections.discard(task)
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            path, length = await self._head(reader, writer)
            self._take(path, await reader.readexactly(length))
            status, text = HTTPStatus.OK, ""
        except RefusedError as refused:
            status, text = refused.status, f"{refused}\n"
        head = f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close"
        body = text.encode()
        writer.write(f"{head}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()
        writer.write_eof()
        unread = 0
        while unread < MOST_UNREAD and (dropped := await reader.read(MOST_HEAD)):
            unread += len(dropped)

    async def _head(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[str, int]:
        """Read the head of a request; its path and the length of its body. Raise RefusedError unless both are to be taken."""
        try:
            lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        except asyncio.LimitOverrunError:
            raise RefusedError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"a head of more than {MOST_HEAD:,} bytes") from None
        method, _, target = lines[0].partition(" ")
        path = target.partition(" ")[0].partition("?")[0]
        fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        if method != "POST":
            raise RefusedError(HTTPStatus.METHOD_NOT_ALLOWED, "reports are posted: curl -d '{\"step\": 3}' $LMJ_PROGRESS_URL")
        kind, _, token = path.removeprefix("/").partition("/")
        token = token or fields.get("authorization", "").removeprefix("Bearer ")
        if kind not in ("progress", "trainer-status"):
            raise RefusedError(HTTPStatus.NOT_FOUND, "no such path: post to $LMJ_PROGRESS_URL as it is")
        if not hmac.compare_digest(token.encode(), self._token.encode()):
            raise RefusedError(HTTPStatus.UNAUTHORIZED, "a wrong token: post to $LMJ_PROGRESS_URL as it is now")
        given = fields.get("content-length", "")
        if not (given.isascii() and given.isdigit()) or "transfer-encoding" in fields:
            raise RefusedError(HTTPStatus.LENGTH_REQUIRED, "no Content-Length: send the report at once")
        if len(given) > 9 or int(given) > MOST_BODY:
            raise RefusedError(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a body of {given[:20]} bytes: at most {MOST_BODY:,} are read"
            )
        if fields.get("expect", "").lower() == "100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return kind, int(given)

    def _take(self, kind: str, body: bytes) -> None:
        try:
            if kind == "progress":
                self.take_lines(body)
            else:
                self._reports.take_trainer_status(body, self._loop.time())
                self._offer()
        except ReportError as error:
            raise RefusedError(HTTPStatus.BAD_REQUEST, str(error)) from None
