"""An API server with objects in memory, in a thread, that clients reach by a kubeconfig: gets, lists, merge patches, watches, logs."""

import asyncio
import copy
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml
from aiohttp import web

Object = dict[str, Any]
JOBS = "/apis/lmj.dev/v1alpha1/namespaces/{}/livemigrationjobs"
PODS = "/api/v1/namespaces/{}/pods"
EVENTS = "/api/v1/namespaces/{}/events"
GONE = {"kind": "Status", "code": 404, "reason": "NotFound", "message": "not found"}


class ApiServer:
    """Use it in ``with``."""

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.logs: dict[str, list[str] | None] = {}
        """Lines of each pod; None: it has no container yet."""
        self.ended: set[str] = set()
        """Pods whose logs have an end; the others' are followed for ever."""
        self.calls: list[tuple[str, str, Any]] = []
        """Method, path with query, and body of each, watches apart."""
        self.watches = 0
        self.reacts: Callable[[Object], None] = lambda thing: None
        """Called with each job that was changed: what an operator would do to it."""
        self.refuse: dict[str, list[tuple[int, Object]]] = {}
        """By method, answers to the next calls."""
        self._history: list[tuple[int, str, str, Object]] = []
        self._version = 0
        self._changed = threading.Condition()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self.port = asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(10)
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def cut(self) -> None:
        """Break all connections."""
        assert self._runner.server is not None
        asyncio.run_coroutine_threadsafe(self._runner.server.shutdown(0.1), self._loop).result(10)

    async def _start(self) -> int:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, shutdown_timeout=0.01)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return int(self._runner.addresses[0][1])

    async def _end(self) -> None:
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    def kubeconfig(self, folder: Path, namespace: str = "team") -> Path:
        """A file that leads here."""
        named = {"cluster": "here", "user": "me", "namespace": namespace}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "here", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}],
            "users": [{"name": "me", "user": {"token": "t"}}],
            "contexts": [{"name": "c", "context": named}, {"name": "other", "context": {**named, "namespace": "night"}}],
            "current-context": "c",
        }
        file = folder / "kubeconfig"
        file.write_text(yaml.safe_dump(config))
        return file

    def put(self, path: str, body: Object) -> None:
        """Have the object at ``path``, in any thread."""
        with self._changed:
            kind = "MODIFIED" if path in self.objects else "ADDED"
            self._version += 1
            body = copy.deepcopy(body)
            metadata = {
                "uid": f"00000000-0000-0000-0000-{self._version:012}",
                "creationTimestamp": "2026-01-01T00:00:00Z",
                **body["metadata"],
            }
            body["metadata"] = {**metadata, "resourceVersion": str(self._version)}
            self.objects[path] = body
            self._history.append((self._version, kind, path, copy.deepcopy(body)))

    def status(self, path: str, **status: Any) -> None:
        """Have the job at ``path`` say so, as well as what it said."""
        thing = copy.deepcopy(self.objects[path])
        thing["status"] = {**(thing.get("status") or {}), **status}
        self.put(path, thing)

    def drop(self, path: str) -> None:
        with self._changed:
            self._version += 1
            body = self.objects.pop(path)
            body["metadata"]["resourceVersion"] = str(self._version)
            self._history.append((self._version, "DELETED", path, body))

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        path, query = request.path, request.query
        if query.get("watch") == "true":
            return await self._watch(request)
        body = await request.json() if request.can_read_body else None
        self.calls.append((request.method, request.path_qs, body))
        if self.refuse.get(request.method):
            code, told = self.refuse[request.method].pop(0)
            return web.json_response(told, status=code)
        match request.method:
            case "GET" if path.endswith("/log"):
                return await self._log(request, path.split("/")[-2])
            case "GET" if path in self.objects:
                return web.json_response(self.objects[path])
            case "GET" if path.rsplit("/", 1)[-1] in ("livemigrationjobs", "pods", "events"):
                items = [copy.deepcopy(thing) for at, thing in list(self.objects.items()) if _within(at, path, thing, query)]
                return web.json_response({"items": items, "metadata": {"resourceVersion": str(self._version)}})
            case "POST":
                at = f"{path}/{body['metadata']['name']}"
                if at in self.objects:
                    return web.json_response({"reason": "AlreadyExists", "message": "there is one"}, status=409)
                self.put(at, body)
                return web.json_response(self.objects[at], status=201)
            case "PATCH" if path.removesuffix("/scale") in self.objects:
                assert request.content_type == "application/merge-patch+json"
                return web.json_response(self._patched(path, body))
            case "DELETE" if path in self.objects:
                self.drop(path)
                return web.json_response({})
        return web.json_response(GONE, status=404)

    def _patched(self, path: str, change: Object) -> Object:
        if path.endswith("/scale"):
            path, change = path.removesuffix("/scale"), {"spec": {"dataParallel": {"replicas": change["spec"]["replicas"]}}}
        thing = _merged(copy.deepcopy(self.objects[path]), change)
        self.reacts(thing)
        self.put(path, thing)
        return self.objects[path]

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        self.watches += 1
        response = web.StreamResponse()
        await response.prepare(request)
        since = int(request.query["resourceVersion"])
        while True:
            for version, kind, path, thing in list(self._history):
                if version > since and _within(path, request.path, thing, request.query):
                    since = version
                    await response.write(web.json_response({"type": kind, "object": thing}).body + b"\n")  # type: ignore[operator]
            await asyncio.sleep(0.01)

    async def _log(self, request: web.Request, pod: str) -> web.StreamResponse:
        if self.logs[pod] is None:
            return web.json_response({"message": "waiting to start"}, status=400)
        response = web.StreamResponse()
        await response.prepare(request)
        told = 0
        if tail := int(request.query.get("tailLines", 0)):
            told = max(0, len(self.logs[pod] or []) - tail)
        while True:
            for line in (self.logs[pod] or [])[told:]:
                await response.write(f"{line}\n".encode())
                told += 1
            if "follow" not in request.query or pod in self.ended:
                return response
            await asyncio.sleep(0.01)


def _within(at: str, collection: str, thing: Object, query: Any) -> bool:
    folder, _, name = at.rpartition("/")
    everywhere = "/namespaces/" not in collection and folder.rsplit("/", 1)[-1] == collection.rsplit("/", 1)[-1]
    fields = dict(part.split("=") for part in query.get("fieldSelector", "").split(",") if part)
    known = {"metadata.name": name, "involvedObject.uid": (thing.get("involvedObject") or {}).get("uid")}
    labels = dict(part.split("=") for part in query.get("labelSelector", "").split(",") if part)
    return (
        (folder == collection or everywhere)
        and all(known[field] == value for field, value in fields.items())
        and labels.items() <= (thing["metadata"].get("labels") or {}).items()
    )


def _merged(thing: Any, change: Any) -> Any:
    """A merge patch (RFC 7386)."""
    if not isinstance(change, dict):
        return change
    thing = thing if isinstance(thing, dict) else {}
    for key, value in change.items():
        if value is None:
            thing.pop(key, None)
        else:
            thing[key] = _merged(thing.get(key), value)
    return thing
