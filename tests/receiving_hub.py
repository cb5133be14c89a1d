"""A hub on this machine that takes models: as much of the Hugging Face hub's interface as its client asks for to push one."""

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import urlparse

from http_thread import listening

TOKEN = "hf_ofTheTest"


@dataclass
class Received:
    """A repository."""

    private: bool
    commits: list[dict[str, bytes]] = field(default_factory=list)
    """Files after each commit."""
    messages: list[str] = field(default_factory=list)


@dataclass
class ReceivingHub:
    """Repositories by id."""

    repositories: dict[str, Received] = field(default_factory=dict)
    answers: list[int] = field(default_factory=list)
    """What the next requests get instead."""
    always: int | None = None
    blobs: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    port: int = 0

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @contextmanager
    def serving(self) -> Iterator["ReceivingHub"]:
        hub = self

        class Handler(_Handler):
            of = hub

        with listening(Handler, "127.0.0.1", self.port) as self.port:
            yield self


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    of: ReceivingHub

    def do_POST(self) -> None:
        self._answer()

    def do_PUT(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, *arguments: object) -> None:
        pass

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)) if not self._chunked else self._chunks()
        path = urlparse(self.path).path
        if path.startswith("/api/agent"):
            self._send(404)
            return
        self.of.asked.append(f"{self.command} {path}")
        if self.of.answers or self.of.always is not None:
            self._send(self.of.answers.pop(0) if self.of.answers else self.of.always or 500)
        elif path.startswith("/blobs/"):
            self.of.blobs[path.rpartition("/")[2]] = body
            self._send(200)
        elif self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._send(401)
        elif path == "/api/validate-yaml":
            self._send(
                200, {"errors": [], "warnings": []} if json.loads(body)["content"].startswith("---\n") else {"errors": [{}]}
            )
        elif path == "/api/repos/create":
            self._create(json.loads(body))
        elif found := re.fullmatch(r"/api/models/(.+)/(preupload|commit)/main", path):
            self._upload(found[1], found[2], body)
        elif found := re.fullmatch(r"/(.+)\.git/info/lfs/objects/batch", path):
            self._large(json.loads(body))
        else:
            self._send(404)

    @property
    def _chunked(self) -> bool:
        return self.headers.get("Transfer-Encoding", "").lower() == "chunked"

    def _chunks(self) -> bytes:
        content = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            content += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return content

    def _create(self, wanted: dict[str, Any]) -> None:
        name = f"{wanted.get('organization') or 'me'}/{wanted['name']}"
        there = name in self.of.repositories
        if not there:
            private = bool(wanted.get("private")) or wanted.get("visibility") == "private"
            self.of.repositories[name] = Received(private)
        self._send(409 if there else 200, {"url": f"{self.of.endpoint}/{name}"})

    def _upload(self, name: str, what: str, body: bytes) -> None:
        repository = self.of.repositories[name]
        if what == "preupload":
            files = json.loads(body)["files"]
            modes = [
                {
                    "path": f["path"],
                    "uploadMode": "lfs" if f["path"].endswith(".safetensors") else "regular",
                    "shouldIgnore": False,
                }
                for f in files
            ]
            self._send(200, {"files": modes})
            return
        files = dict(repository.commits[-1]) if repository.commits else {}
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            match line["key"]:
                case "header":
                    repository.messages.append(value["summary"])
                case "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                case "lfsFile":
                    files[value["path"]] = self.of.blobs[value["oid"]]
        repository.commits.append(files)
        commit = hashlib.sha1(repr(sorted(files.items())).encode(), usedforsecurity=False).hexdigest()
        self._send(200, {"commitUrl": f"{self.of.endpoint}/{name}/commit/{commit}", "commitOid": commit, "success": True})

    def _large(self, wanted: dict[str, Any]) -> None:
        objects = [
            {
                "oid": one["oid"],
                "size": one["size"],
                **(
                    {}
                    if one["oid"] in self.of.blobs
                    else {"actions": {"upload": {"href": f"{self.of.endpoint}/blobs/{one['oid']}"}}}
                ),
            }
            for one in wanted["objects"]
        ]
        self._send(200, {"transfer": "basic", "objects": objects})

    def _send(self, status: int, value: dict[str, Any] | None = None) -> None:
        body = json.dumps(value if value is not None else {}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
