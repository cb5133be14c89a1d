"""A hub on this machine: as much of the Hugging Face hub's interface as its client asks for to fetch a model or dataset, and its bad days."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import parse_qs, urlparse

from http_thread import listening


@dataclass
class Hub:
    """Models by id, and datasets by ``datasets/`` and id, each a folder for each commit."""

    commits: dict[str, dict[str, Path]] = field(default_factory=dict)
    """Model → commit → its files."""
    branches: dict[str, str] = field(default_factory=dict)
    """Model → the commit of ``main``."""
    answers: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    """What the next questions about a model get instead: a status and headers each."""
    always: int | None = None
    """What every request gets instead."""
    asked: list[str] = field(default_factory=list)
    """Paths of all requests."""
    sent: list[str] = field(default_factory=list)
    """Names of the files of which the content was asked for."""
    slow: threading.Event | None = None
    """Of weights and rows half is sent, and the rest when this is set."""
    torn: bool = False
    """Of weights and rows half is sent, and then the connection ends."""
    port: int = 0
    host: str = "127.0.0.1"
    """The address that it has."""

    @property
    def endpoint(self) -> str:
        return f"http://{self.host}:{self.port}"

    def publish(self, model: str, folder: Path) -> str:
        """Make ``folder`` the newest commit of ``model``; its name."""
        digest = hashlib.sha1(usedforsecurity=False)
        for path in sorted(folder.iterdir()):
            digest.update(path.name.encode() + path.read_bytes())
        self.commits.setdefault(model, {})[digest.hexdigest()] = folder
        self.branches[model] = digest.hexdigest()
        return digest.hexdigest()

    @contextmanager
    def serving(self) -> Iterator["Hub"]:
        """Answer meanwhile, at the same port each time."""
        hub = self

        class Handler(_Handler):
            of = hub

        with listening(Handler, self.host, self.port) as self.port:
            yield self


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    of: Hub

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def log_message(self, *arguments: object) -> None:
        pass

    def _answer(self) -> None:
        path = urlparse(self.path).path
        if path.startswith("/api/agent"):
            # The client looks once what programs it may run in, whatever that is; it has no use for the answer.
            self._send(404, b"", {})
            return
        self.of.asked.append(path)
        if self.of.answers and path.startswith("/api/"):
            status, headers = self.of.answers.pop(0)
            self._send(status, b"", headers)
        elif self.of.always is not None:
            self._send(self.of.always, b"", {})
        else:
            self._model(path)

    def _model(self, path: str) -> None:
        api = path.startswith("/api/")
        parts = path.removeprefix("/api" if api else "").strip("/").split("/")
        kind = parts.pop(0) if parts[0] in ("models", "datasets") else "models"
        owner, name, *rest = parts
        model = f"{owner}/{name}" if kind == "models" else f"{kind}/{owner}/{name}"
        revision = rest[1] if len(rest) > 1 else "main"
        commit = self.of.branches.get(model) if revision == "main" else revision
        folder = self.of.commits.get(model, {}).get(commit or "")
        if folder is None or commit is None:
            self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound" if model in self.of.commits else "RepoNotFound"})
        elif api and rest[:1] == ["tree"]:
            self._json([_entry(path) for path in sorted(folder.iterdir())] if not rest[2:] else [])
        elif api and rest[:1] == ["paths-info"]:
            asked = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())["paths"]
            self._json([_entry(folder / name) for name in asked if (folder / name).is_file()])
        elif api:
            siblings = [{"rfilename": p.name} for p in sorted(folder.iterdir())]
            id_ = f"{owner}/{name}"
            self._json({"_id": "0", "id": id_, "modelId": id_, "sha": commit, "siblings": siblings, "private": False, "tags": []})
        elif rest[:1] == ["resolve"] and (folder / rest[2]).is_file():
            self._file(folder / rest[2], commit)
        else:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})

    def _file(self, file: Path, commit: str) -> None:
        content, headers = file.read_bytes(), {"ETag": f'"{_oid(file)}"', "X-Repo-Commit": commit}
        large = file.suffix in (".safetensors", ".csv")
        if self.command == "HEAD":
            self._send(200, content, headers)
            return
        self.of.sent.append(file.name)
        first = int((self.headers["Range"] or "bytes=0-").removeprefix("bytes=").partition("-")[0])
        if first:
            headers["Content-Range"] = f"bytes {first}-{len(content) - 1}/{len(content)}"
        self._headers(206 if first else 200, headers | {"Content-Length": str(len(content) - first)})
        half = len(content) // 2
        self.wfile.write(content[first:half])
        self.wfile.flush()
        if large and self.of.torn:
            self.close_connection = True
            return
        if large and self.of.slow is not None:
            assert self.of.slow.wait(100)
        self.wfile.write(content[max(first, half) :])

    def _json(self, answer: object) -> None:
        self._send(200, json.dumps(answer).encode(), {"Content-Type": "application/json"})

    def _headers(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self._headers(status, {**headers, "Content-Length": str(len(body))})
        if self.command != "HEAD":
            self.wfile.write(body)


def _entry(path: Path) -> dict[str, object]:
    return {"type": "file", "path": path.name, "size": path.stat().st_size, "oid": _oid(path)}


def _oid(path: Path) -> str:
    return hashlib.sha1(path.read_bytes(), usedforsecurity=False).hexdigest()
