"""Azure Files' REST interface as far as it is used here, in memory. No emulator knows it. What it answers is that of
https://learn.microsoft.com/rest/api/storageservices/file-service-rest-api; the contract of stores runs against the real service where
``LMJ_TEST_PLACE`` names a share.
"""

import base64
import hmac
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from http_thread import listening

ACCOUNT = "tests"
MOST_RANGE = 4 << 20
"""Bytes of a range that is put."""
KNOWN = ("2021-04-10", "2022-11-02")
"""From which version of the interface to which: from the first that renames."""
_REFUSED = set('"\\:|<>*?')
_SIGNED = ("content-encoding", "content-language", "content-length", "content-md5", "content-type", "date")
_CONDITIONS = ("if-modified-since", "if-match", "if-none-match", "if-unmodified-since", "range")


@dataclass
class _Node:
    """A folder, or (with a content) a file."""

    path: str
    """As it was written: it is found whatever its capitals."""
    content: bytearray | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    time: float = field(default_factory=time.time)


_Share = dict[str, _Node]
"""By the path in small letters; the share itself is not in it."""


class _RefusedError(Exception):
    """Status, code and text of an answer."""


@dataclass(frozen=True)
class AzureFiles:
    """Where it is, and who may use it."""

    port: int
    secret: str
    shares: dict[str, _Share]
    service: "_Service"

    @property
    def environment(self) -> dict[str, str]:
        """What leads a program to it."""
        return {
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": self.secret,
            "AZURE_STORAGE_FILE_ENDPOINT": f"http://127.0.0.1:{self.port}",
        }

    def bucket(self, name: str) -> str:
        """Make a share, if it is not there; its URI."""
        self.shares.setdefault(name, {})
        return f"azfile://{name}"

    def renewed(self) -> "AzureFiles":
        """The same, with another key: this one is refused from now on."""
        secret = _new_secret()
        self.service.secret = secret
        return replace(self, secret=secret)


@contextmanager
def serving() -> Iterator[AzureFiles]:
    """Serve meanwhile."""
    secret = _new_secret()
    shares: dict[str, _Share] = {}
    service = _Service(secret, shares)
    with listening(_handler(service), "127.0.0.1", 0) as port:
        yield AzureFiles(port, secret, shares, service)


def _new_secret() -> str:
    return base64.b64encode(secrets.token_bytes(64)).decode()


@dataclass(frozen=True)
class _Request:
    method: str
    raw: str
    """The path, as it was sent."""
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    @property
    def where(self) -> tuple[str, str]:
        """The share, and the path in it."""
        share, _, path = unquote(self.raw).removeprefix("/").partition("/")
        return share, path.strip("/")


@dataclass(frozen=True)
class _Answer:
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    content: bytes = b""


class _Service:
    """What requests do. Each is done as a whole, one after the other."""

    def __init__(self, secret: str, shares: dict[str, _Share]) -> None:
        self.secret, self._shares = secret, shares
        self._lock = threading.Lock()

    def answer(self, request: _Request) -> _Answer:
        with self._lock:
            try:
                self._require_signed(request)
                name, path = request.where
                if name not in self._shares:
                    raise _RefusedError(404, "ShareNotFound", "The specified share does not exist.")
                if any(set(part) & _REFUSED or part.endswith(".") for part in path.split("/")):
                    raise _RefusedError(400, "InvalidResourceName", "The specified resource name contains invalid characters.")
                return _Files(self._shares[name]).done(request, path)
            except _RefusedError as error:
                status, code, text = error.args
                told = f"<Error><Code>{code}</Code><Message>{escape(text)}\nRequestId:0\nTime:0</Message></Error>"
                content = f'<?xml version="1.0" encoding="utf-8"?>{told}'.encode()
                return _Answer(status, {"x-ms-error-code": code, "Content-Type": "application/xml"}, content)

    def _require_signed(self, request: _Request) -> None:
        """https://learn.microsoft.com/rest/api/storageservices/authorize-with-shared-key."""
        headers = request.headers
        if not KNOWN[0] <= headers.get("x-ms-version", "") <= KNOWN[1]:
            raise _RefusedError(400, "InvalidHeaderValue", "The value for one of the HTTP headers is not in the correct format.")
        plain = [headers.get(name, "") for name in (*_SIGNED, *_CONDITIONS)]
        plain[2] = plain[2] if plain[2] != "0" else ""
        own = sorted((name, value) for name, value in headers.items() if name.startswith("x-ms-"))
        told = "\n".join([request.method, *plain, *(f"{name}:{value}" for name, value in own)])
        told += f"\n/{ACCOUNT}{request.raw}" + "".join(f"\n{name}:{request.query[name]}" for name in sorted(request.query))
        signature = base64.b64encode(hmac.digest(base64.b64decode(self.secret), told.encode(), "sha256")).decode()
        if not hmac.compare_digest(headers.get("authorization", ""), f"SharedKey {ACCOUNT}:{signature}"):
            text = "Server failed to authenticate the request. Make sure the value of Authorization header is formed correctly."
            raise _RefusedError(403, "AuthenticationFailed", f"{text}\nThe MAC signature is not {signature}")


class _Files:
    """Of one share."""

    def __init__(self, nodes: _Share) -> None:
        self._nodes = nodes

    def done(self, request: _Request, path: str) -> _Answer:
        query, method = request.query, request.method
        folder, what = query.get("restype") == "directory", query.get("comp", "")
        if what == "rename":
            return self._rename(request, path, folder=folder)
        if folder:
            return self._of_folder(request, path, what)
        if method == "PUT":
            put = {"": self._create, "range": self._put_range, "properties": self._resize}[what]
            put(request, path)
            return _answer(200 if what == "properties" else 201)
        file = self._file(path)
        if method == "DELETE":
            del self._nodes[path.lower()]
            return _answer(202)
        return _content(file, request)

    def _of_folder(self, request: _Request, path: str, what: str) -> _Answer:
        if request.method == "PUT":
            self._require_parent(path)
            if path.lower() in self._nodes or not path:
                raise _RefusedError(409, "ResourceAlreadyExists", "The specified resource already exists.")
            self._nodes[path.lower()] = _Node(path)
            return _answer(201)
        if path:
            node = self._found(path)
            if node.content is not None:
                raise _RefusedError(409, "ResourceTypeMismatch", "The specified resource type does not match.")
        if what == "list":
            return self._listing(request, path)
        if request.method == "DELETE":
            if self._below(path):
                raise _RefusedError(409, "DirectoryNotEmpty", "The specified directory is not empty.")
            del self._nodes[path.lower()]
            return _answer(202)
        return _answer(200)

    def _found(self, path: str) -> _Node:
        self._require_parent(path)
        node = self._nodes.get(path.lower())
        if node is None:
            raise _RefusedError(404, "ResourceNotFound", "The specified resource does not exist.")
        return node

    def _file(self, path: str) -> _Node:
        node = self._found(path)
        if node.content is None:
            raise _RefusedError(409, "ResourceTypeMismatch", "The specified resource type does not match.")
        return node

    def _require_parent(self, path: str) -> None:
        parent = path.rpartition("/")[0].lower()
        if parent and (parent not in self._nodes or self._nodes[parent].content is not None):
            raise _RefusedError(404, "ParentNotFound", "The specified parent path does not exist.")

    def _below(self, path: str) -> list[_Node]:
        """All that is in the folder, at any depth."""
        begin = f"{path.lower()}/" if path else ""
        return [node for key, node in sorted(self._nodes.items()) if key.startswith(begin)]

    def _create(self, request: _Request, path: str) -> None:
        """One that is there is replaced: by zeros."""
        self._require_parent(path)
        there = self._nodes.get(path.lower())
        if there is not None and there.content is None:
            raise _RefusedError(409, "ResourceTypeMismatch", "The specified resource type does not match.")
        if request.headers.get("x-ms-type") != "file":
            raise _RefusedError(400, "MissingRequiredHeader", "An HTTP header that's mandatory for this request isn't specified.")
        size = int(request.headers["x-ms-content-length"])
        self._nodes[path.lower()] = _Node(path, bytearray(size), _metadata(request.headers))

    def _put_range(self, request: _Request, path: str) -> None:
        content = self._file(path).content
        assert content is not None
        first, last = map(int, request.headers["x-ms-range"].removeprefix("bytes=").split("-"))
        if len(request.body) > MOST_RANGE:
            raise _RefusedError(413, "RequestBodyTooLarge", "The request body is too large.")
        if last >= len(content) or request.headers.get("x-ms-write") != "update":
            raise _RefusedError(416, "InvalidRange", "The range specified is invalid for the current size of the resource.")
        if last - first + 1 != len(request.body):
            raise _RefusedError(400, "InvalidHeaderValue", "The value for one of the HTTP headers is not in the correct format.")
        content[first : last + 1] = request.body

    def _resize(self, request: _Request, path: str) -> None:
        content = self._file(path).content
        assert content is not None
        size = int(request.headers["x-ms-content-length"])
        del content[size:]
        content.extend(bytes(size - len(content)))

    def _rename(self, request: _Request, path: str, *, folder: bool) -> _Answer:
        headers = request.headers
        source = unquote(urlsplit(headers["x-ms-file-rename-source"]).path).removeprefix("/").partition("/")[2].strip("/")
        node = self._found(source) if folder else self._file(source)
        if folder and node.content is not None:
            raise _RefusedError(409, "ResourceTypeMismatch", "The specified resource type does not match.")
        self._require_parent(path)
        there = self._nodes.get(path.lower())
        may = not folder and there is not None and there.content is not None
        if there is not None and not (may and headers.get("x-ms-file-rename-replace-if-exists") == "true"):
            raise _RefusedError(409, "ResourceAlreadyExists", "The specified resource already exists.")
        for each in [node, *(self._below(source) if folder else [])]:
            del self._nodes[each.path.lower()]
            each.path = path + each.path[len(source) :]
            self._nodes[each.path.lower()] = each
        node.metadata = _metadata(headers) or node.metadata
        return _answer(200)

    def _listing(self, request: _Request, path: str) -> _Answer:
        most, after = int(request.query.get("maxresults", "5000")), request.query.get("marker", "")
        depth = path.count("/") + 1 if path else 0
        left = [node for node in self._below(path) if node.path.count("/") == depth and node.path.lower() > after]
        told = "".join(
            f"<{kind}><Name>{escape(node.path.rpartition('/')[2])}</Name><Properties>{size}</Properties></{kind}>"
            for node in left[:most]
            for kind, size in [_kind(node)]
        )
        more = escape(left[most - 1].path.lower()) if len(left) > most else ""
        own = f'ServiceEndpoint="http://127.0.0.1/" ShareName="{request.where[0]}" DirectoryPath="{escape(path)}"'
        content = f"<EnumerationResults {own}><Entries>{told}</Entries><NextMarker>{more}</NextMarker></EnumerationResults>"
        whole = f'<?xml version="1.0" encoding="utf-8"?>{content}'.encode()
        return _Answer(200, {"Content-Type": "application/xml"}, whole)


def _kind(node: _Node) -> tuple[str, str]:
    if node.content is None:
        return "Directory", ""
    return "File", f"<Content-Length>{len(node.content)}</Content-Length>"


def _content(file: _Node, request: _Request) -> _Answer:
    assert file.content is not None
    size = len(file.content)
    headers = {f"x-ms-meta-{name}": value for name, value in file.metadata.items()} | {
        "ETag": '"0"',
        "Last-Modified": formatdate(file.time, usegmt=True),
        "Content-Type": "application/octet-stream",
        "x-ms-type": "File",
    }
    wanted = request.headers.get("x-ms-range") or request.headers.get("range")
    if request.method == "HEAD" or wanted is None:
        return _Answer(200, headers, bytes(file.content))
    first, _, last = wanted.removeprefix("bytes=").partition("-")
    start, end = int(first), min(int(last) + 1 if last else size, size)
    if start >= size:
        raise _RefusedError(416, "InvalidRange", "The range specified is invalid for the current size of the resource.")
    return _Answer(206, {**headers, "Content-Range": f"bytes {start}-{end - 1}/{size}"}, bytes(file.content[start:end]))


def _answer(status: int) -> _Answer:
    return _Answer(status, {"ETag": '"0"', "Last-Modified": formatdate(usegmt=True)})


def _metadata(headers: dict[str, str]) -> dict[str, str]:
    begin = "x-ms-meta-"
    return {name.removeprefix(begin): value for name, value in headers.items() if name.startswith(begin)}


def _handler(service: _Service) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass(self) -> None:
            url = urlsplit(self.path)
            query = {name.lower(): values[-1] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            answer = service.answer(_Request(self.command, url.path, query, headers, body))
            self.send_response_only(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer.content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.content)

        do_GET = do_PUT = do_HEAD = do_DELETE = _pass  # noqa: N815 - names that the library looks for

        def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - its name there
            pass

    return Handler
