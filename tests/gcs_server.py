"""Google Cloud Storage's XML interface as far as it is used here, in memory. No server of it can be had: its emulators know no conditions
or no uploads in parts. What it answers is that of https://cloud.google.com/storage/docs/xml-api/reference-methods; the contract of stores runs
against the real service where ``LMJ_TEST_PLACE`` names a bucket.
"""

import base64
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.utils import formatdate
from functools import cached_property
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from http_thread import listening

EMAIL = "tests@project.iam.gserviceaccount.com"
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
LEAST_PART = 5 << 20
"""Bytes of each part but the last."""
PAGE = 1000
"""Names of a listing."""


@dataclass(frozen=True)
class _Object:
    content: bytes
    metadata: dict[str, str]
    generation: int
    time: float

    @property
    def etag(self) -> str:
        return f'"{hashlib.md5(self.content, usedforsecurity=False).hexdigest()}"'


@dataclass
class _Upload:
    key: str
    metadata: dict[str, str]
    parts: dict[int, bytes] = field(default_factory=dict)


class _RefusedError(Exception):
    """Status, code and text of an answer."""


@dataclass(frozen=True)
class GcsServer:
    """Where it is, and who may use it."""

    port: int
    private: rsa.RSAPrivateKey
    buckets: dict[str, dict[str, _Object]]
    service: "_Service"

    @cached_property
    def key(self) -> str:
        """The file of a service account's key."""
        form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        pem = self.private.private_bytes(*form).decode()
        return json.dumps({"type": "service_account", "client_email": EMAIL, "private_key_id": "1", "private_key": pem})

    @property
    def environment(self) -> dict[str, str]:
        """What leads a program to it."""
        return {"GOOGLE_BASE_URL": f"http://127.0.0.1:{self.port}", "GOOGLE_SERVICE_ACCOUNT_KEY": self.key}

    def bucket(self, name: str) -> str:
        """Make it; its URI."""
        self.buckets.setdefault(name, {})
        return f"gs://{name}"

    def renewed(self) -> "GcsServer":
        """The same, with another key: what this one signed is refused from now on."""
        private = _new_key()
        self.service.public = private.public_key()
        return replace(self, private=private)


@contextmanager
def serving() -> Iterator[GcsServer]:
    """Serve meanwhile."""
    private = _new_key()
    buckets: dict[str, dict[str, _Object]] = {}
    service = _Service(private.public_key(), buckets)
    with listening(_handler(service), "127.0.0.1", 0) as port:
        yield GcsServer(port, private, buckets, service)


def _new_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@dataclass(frozen=True)
class _Request:
    method: str
    bucket: str
    key: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class _Answer:
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    content: bytes = b""


class _Service:
    """What requests do. Each is done as a whole, one after the other."""

    def __init__(self, public: rsa.RSAPublicKey, buckets: dict[str, dict[str, _Object]]) -> None:
        self.public, self._buckets = public, buckets
        self._uploads: dict[str, _Upload] = {}
        self._generation = 0
        self._lock = threading.Lock()

    def answer(self, request: _Request) -> _Answer:
        with self._lock:
            try:
                self._require_signed(request.headers.get("authorization", ""))
                if request.bucket not in self._buckets:
                    raise _RefusedError(404, "NoSuchBucket", "The specified bucket does not exist.")
                return self._done(request)
            except _RefusedError as error:
                status, code, text = error.args
                content = f"<?xml version='1.0' encoding='UTF-8'?><Error><Code>{code}</Code><Message>{text}</Message></Error>"
                return _Answer(status, {"Content-Type": "application/xml"}, content.encode())

    def _require_signed(self, authorization: str) -> None:
        """A token that a service account signed itself: https://google.aip.dev/auth/4111."""
        try:
            scheme, _, token = authorization.partition(" ")
            said, _, signature = token.rpartition(".")
            self.public.verify(_decoded(signature), said.encode(), padding.PKCS1v15(), hashes.SHA256())
            head, claims = (json.loads(_decoded(part)) for part in said.split("."))
        except (ValueError, InvalidSignature):
            raise _RefusedError(401, "AuthenticationRequired", "Authentication required.") from None
        now = time.time()
        right = (scheme, head["alg"], claims["iss"], claims["scope"]) == ("Bearer", "RS256", EMAIL, SCOPE)
        if not (right and claims["iat"] - 60 <= now < claims["exp"] <= claims["iat"] + 3600):
            raise _RefusedError(403, "AccessDenied", "Access denied.")

    def _done(self, request: _Request) -> _Answer:
        query, method = request.query, request.method
        if not request.key:
            return self._listing(request)
        if "uploads" in query:
            return self._begin(request)
        if "uploadId" in query:
            return self._part(request)
        if method == "PUT":
            return self._put(request)
        if method == "DELETE":
            self._found(request.key, request)
            del self._buckets[request.bucket][request.key]
            return _Answer(204)
        return self._content(request)

    def _found(self, key: str, request: _Request) -> _Object:
        found = self._buckets[request.bucket].get(key)
        if found is None:
            raise _RefusedError(404, "NoSuchKey", "The specified key does not exist.")
        return found

    def _put(self, request: _Request) -> _Answer:
        source = request.headers.get("x-goog-copy-source")
        if source is None:
            return self._write(request, request.body, _metadata(request.headers))
        found = self._found(unquote(source).removeprefix(f"/{request.bucket}/").removeprefix(f"{request.bucket}/"), request)
        answer = self._write(request, found.content, found.metadata)
        return _Answer(200, answer.headers, f"<CopyObjectResult><ETag>{found.etag}</ETag></CopyObjectResult>".encode())

    def _write(self, request: _Request, content: bytes, metadata: dict[str, str]) -> _Answer:
        objects = self._buckets[request.bucket]
        there = objects[request.key].generation if request.key in objects else 0
        wanted = request.headers.get("x-goog-if-generation-match")
        if wanted is not None and int(wanted) != there:
            raise _RefusedError(412, "PreconditionFailed", "At least one of the pre-conditions you specified did not hold.")
        self._generation += 1
        written = objects[request.key] = _Object(content, metadata, self._generation, time.time())
        return _Answer(200, {"ETag": written.etag, "x-goog-generation": str(written.generation)})

    def _begin(self, request: _Request) -> _Answer:
        name = secrets.token_hex(16)
        self._uploads[name] = _Upload(request.key, _metadata(request.headers))
        told = f"<Bucket>{request.bucket}</Bucket><Key>{escape(request.key)}</Key><UploadId>{name}</UploadId>"
        return _Answer(200, {}, f"<InitiateMultipartUploadResult>{told}</InitiateMultipartUploadResult>".encode())

    def _part(self, request: _Request) -> _Answer:
        name = request.query["uploadId"]
        upload = self._uploads.get(name)
        if upload is None or upload.key != request.key:
            raise _RefusedError(404, "NoSuchUpload", "The requested upload was not found.")
        if request.method == "PUT":
            upload.parts[int(request.query["partNumber"])] = request.body
            return _Answer(200, {"ETag": f'"{hashlib.md5(request.body, usedforsecurity=False).hexdigest()}"'})
        del self._uploads[name]
        if request.method == "DELETE":
            return _Answer(204)
        parts = [upload.parts[number] for number in sorted(upload.parts)]
        if any(len(part) < LEAST_PART for part in parts[:-1]):
            raise _RefusedError(400, "EntityTooSmall", "Your proposed upload is smaller than the minimum object size.")
        done = self._write(request, b"".join(parts), upload.metadata)
        told = f"<Key>{escape(request.key)}</Key><ETag>{escape(done.headers['ETag'])}</ETag>"
        return _Answer(200, done.headers, f"<CompleteMultipartUploadResult>{told}</CompleteMultipartUploadResult>".encode())

    def _content(self, request: _Request) -> _Answer:
        found = self._found(request.key, request)
        size = len(found.content)
        headers = {f"x-goog-meta-{name}": value for name, value in found.metadata.items()} | {
            "ETag": found.etag,
            "Last-Modified": formatdate(found.time, usegmt=True),
            "x-goog-generation": str(found.generation),
            "Content-Type": "application/octet-stream",
        }
        if (wanted := request.headers.get("range")) is None:
            return _Answer(200, headers, found.content)
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        start, end = int(first), min(int(last) + 1 if last else size, size)
        if start >= size:
            raise _RefusedError(416, "InvalidRange", "The requested range cannot be satisfied.")
        return _Answer(206, {**headers, "Content-Range": f"bytes {start}-{end - 1}/{size}"}, found.content[start:end])

    def _listing(self, request: _Request) -> _Answer:
        query = request.query
        prefix, delimiter, after = query.get("prefix", ""), query.get("delimiter", ""), query.get("continuation-token", "")
        entries: dict[str, str] = {}
        for key, found in sorted(self._buckets[request.bucket].items()):
            if not key.startswith(prefix):
                continue
            below, cut, _ = key.removeprefix(prefix).partition(delimiter) if delimiter else (key, "", "")
            if cut:
                name = f"{prefix}{below}{cut}"
                entries[name] = f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>"
            else:
                entries[key] = _described(key, found)
        left = [name for name in entries if name > after]
        more = f"<NextContinuationToken>{escape(left[PAGE - 1])}</NextContinuationToken>" if len(left) > PAGE else ""
        told = "".join(entries[name] for name in left[:PAGE])
        truncated = f"<IsTruncated>{str(bool(more)).lower()}</IsTruncated>"
        return _Answer(200, {}, f"<ListBucketResult>{truncated}{more}{told}</ListBucketResult>".encode())


def _described(key: str, found: _Object) -> str:
    at = datetime.fromtimestamp(found.time, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    told = f"<Key>{escape(key)}</Key><LastModified>{at}</LastModified><ETag>{escape(found.etag)}</ETag>"
    return f"<Contents>{told}<Size>{len(found.content)}</Size></Contents>"


def _metadata(headers: dict[str, str]) -> dict[str, str]:
    begin = "x-goog-meta-"
    return {name.removeprefix(begin): value for name, value in headers.items() if name.startswith(begin)}


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _handler(service: _Service) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass(self) -> None:
            url = urlsplit(self.path)
            bucket, _, key = url.path.removeprefix("/").partition("/")
            query = {name: values[-1] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            answer = service.answer(_Request(self.command, bucket, unquote(key), query, headers, body))
            self.send_response_only(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            if answer.status != 204:
                self.send_header("Content-Length", str(len(answer.content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.content)

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _pass  # noqa: N815 - names that the library looks for

        def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - its name there
            pass

    return Handler
