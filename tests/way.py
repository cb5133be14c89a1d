"""A way to a storage server on which requests fail: lost before or after they are done, or answered with an error."""

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from http.server import BaseHTTPRequestHandler
from urllib.parse import urlsplit

from http_thread import listening
from storage_server import StorageServer

_OF_A_CONNECTION = {"connection", "keep-alive", "transfer-encoding"}


class Fate(Enum):
    """What becomes of a request."""

    PASSES = "it is done and answered"
    LOST = "it does not reach the server"
    UNHEARD = "it is done, and its answer is lost"
    TORN = "it is done, and half of what its answer has comes"


class Way:
    """Requests that were made here; ``fate``: what becomes of each, by its number from 1, or the HTTP status that it gets in place of that."""

    def __init__(self, fate: Callable[[int], Fate | int]) -> None:
        self._fate, self._lock = fate, threading.Lock()
        self.environment: dict[str, str] = {}
        """What leads a program here, and by it to the server."""
        self.requests: list[str] = []
        """Method and path of each, without the query."""

    def take(self, request: str) -> Fate | int:
        with self._lock:
            self.requests.append(request)
            return self._fate(len(self.requests))


@contextmanager
def way_to(storage: StorageServer, fate: Callable[[int], Fate | int]) -> Iterator[Way]:
    """A way to ``storage``."""
    ((variable, endpoint),) = [
        (name, value) for name, value in storage.environment.items() if name.endswith(("_URL", "_ENDPOINT"))
    ]
    way, server = Way(fate), urlsplit(endpoint)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.close_connection = True
            fate = way.take(f"{self.command} {urlsplit(self.path).path}")
            if isinstance(fate, int):
                self._answer(fate, [], b"")
            elif fate is not Fate.LOST:
                answer, content = self._onward(body)
                if fate is not Fate.UNHEARD:
                    end = len(content) // 2 if fate is Fate.TORN else len(content)
                    self._answer(answer.status, answer.getheaders(), content, end)

        def _onward(self, body: bytes) -> tuple[http.client.HTTPResponse, bytes]:
            connection = http.client.HTTPConnection(str(server.hostname), server.port, timeout=30)
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():  # the host too: requests are signed with it
                if name.lower() not in _OF_A_CONNECTION:
                    connection.putheader(name, value)
            connection.endheaders(body)
            answer = connection.getresponse()
            content = answer.read()
            connection.close()
            return answer, content

        def _answer(self, status: int, headers: list[tuple[str, str]], content: bytes, end: int | None = None) -> None:
            self.send_response_only(status)
            length = str(len(content))
            for name, value in headers:
                if name.lower() == "content-length" and self.command == "HEAD":
                    length = value
                elif name.lower() not in _OF_A_CONNECTION | {"content-length"}:
                    self.send_header(name, value)
            if status != http.client.NO_CONTENT:
                self.send_header("Content-Length", length)
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(content[:end])

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _pass  # noqa: N815 - names that the library looks for

        def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - its name there
            pass

    with listening(Handler, str(server.hostname), 0) as port:
        way.environment = {**storage.environment, variable: f"http://{server.hostname}:{port}{server.path}"}
        yield way
