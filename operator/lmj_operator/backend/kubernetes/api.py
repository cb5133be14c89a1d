"""Calls to the API server: JSON in and out, each with a deadline, each counted."""

import asyncio
import json
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from typing import Any
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio.client import ApiClient

from lmj_api.bounds import printable
from lmj_operator.backend.kubernetes.nesting import parsed
from lmj_operator.backend.kubernetes.pages import page
from lmj_operator.backend.kubernetes.resources import TOKEN_KEYS, Resource
from lmj_operator.backend.kubernetes.trimming import EVENT, OBJECT, trimmed
from lmj_operator.backend.lines import whole_lines
from lmj_operator.backend.turns import Turns

Object = dict[str, Any]
Count = Callable[[str, str, int], None]
"""``count(verb, resource, code)``; code 0: no answer."""

CALL_SECONDS = 15.0
LIST_SECONDS = 60.0
"""The same of a page of a list: a server may look through all pods of the cluster for those of jobs."""
CALLS_AT_ONCE = 20
"""The server does not get faster by more of them, and each has a connection with buffers of its own for TLS."""
CALLS_OF_ONE = 16
"""Of one job: some are left for the others."""
LARGE_AT_ONCE = 2
"""A pod of the largest template takes a megabyte here, and its answer another."""
BUSY_TRIES = 3
"""A server that is too busy is asked so often, each time after the wait that it asks for."""
QUIET_SECONDS = 120.0
"""A watch on which nothing comes is not believed longer: most servers send a bookmark about once a minute."""
WATCH_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=QUIET_SECONDS)
TEXT_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=10.0)
"""A log may be silent for as long as nothing is logged: who follows it has a deadline, or another source that says when it ends."""
MOST_IN_A_ROUND = 16 << 10
"""Bytes of lines that a watch takes before others have their turn."""
LONGEST_MESSAGE = 1000
"""Characters of what the server says of a call that it refuses. It lists all that is wrong with an object, in the words of whoever made it."""
JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml;charset=utf-8"
"""With its charset, which a server does not look at, the client takes text as it is: else it would write JSON."""
_METADATA = JSON + ";as=PartialObjectMetadata{};g=meta.k8s.io;v=v1"
MANAGER = "lmj"
"""Field manager of everything that is applied."""


class ApiError(Exception):
    """The API server refused a call (``status``: its HTTP code) or did not answer (0)."""

    def __init__(
        self, verb: str, path: str, status: int, reason: str, message: str, retry_after: float | None = None, took: float = 0.0
    ) -> None:
        super().__init__(f"{verb} {path}: {f'{status} ' if status else ''}{message or reason}")
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after
        """Seconds to wait before the same is asked again, as a busy server wishes."""
        self.took = took
        """Seconds that the server had it; 0 where there was no answer, nor one to any other call meanwhile."""

    @property
    def exists(self) -> bool:
        """There is an object of this name. Not every 409 says so: a quota that others use at the same time is one too."""
        return self.status == 409 and self.reason == "AlreadyExists"

    @property
    def unknown(self) -> bool:
        """Whether nobody knows what became of the call: there was no answer, or one that says that the server could not."""
        return self.status == 0 or self.status >= 500

    @property
    def invalid(self) -> bool:
        """The object itself is wrong: to send it again is of no use."""
        return self.status in (400, 422)


class Api:
    """The API server that ``client`` is configured for."""

    def __init__(self, client: ApiClient, count: Count | None = None) -> None:
        self._client = client
        self._count = count or (lambda verb, resource, code: None)
        self._turns = Turns(CALLS_AT_ONCE, CALLS_OF_ONE)
        self.large = Turns(LARGE_AT_ONCE, LARGE_AT_ONCE)
        """Turns to have a large object in memory, and to make it; small ones never wait for them."""
        self._answered = 0.0
        """When the last call was answered."""

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Object | None:
        """The object; None: there is none. Raises :class:`ApiError`."""
        try:
            return await self._call("get", "GET", resource, resource.path(namespace, name))
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def serves(self, resource: Resource) -> bool:
        """Whether the server says that it has this kind: in the list of its groups, and in that of the group's kinds. Raises
        :class:`ApiError`.
        """
        groups = await self._call("get", "GET", resource, "/apis")
        if all(group.get("name") != resource.group for group in groups.get("groups") or ()):
            return False
        try:
            kinds = await self._call("get", "GET", resource, f"/apis/{resource.group}/{resource.version}")
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return any(kind.get("name") == resource.plural for kind in kinds.get("resources") or ())

    async def token_keys(self) -> Object:
        """The public keys of the tokens that the server signs, as a JSON Web Key Set. Raises :class:`ApiError`."""
        accept = f"application/jwk-set+json, {JSON}"
        return await self._call("get", "GET", TOKEN_KEYS, "/openid/v1/jwks", accept=accept)

    async def list(
        self, resource: Resource, namespace: str | None, query: Mapping[str, str], *, metadata: bool = False
    ) -> Object:
        """The list of all in ``namespace``, or a page of it; of each all, or its ``metadata`` alone. Raises :class:`ApiError`."""
        accept = _METADATA.format("List") if metadata else JSON
        return await self._call(
            "list", "GET", resource, resource.path(namespace), None, query, seconds=LIST_SECONDS, accept=accept
        )

    async def watch(
        self, resource: Resource, namespace: str | None, query: Mapping[str, str], *, metadata: bool = False
    ) -> AsyncIterator[tuple[str, Object]]:
        """Events as they come: their type and object, or its ``metadata`` alone. Ends when the server ends it, and when nothing comes any more:
        whether the server is still there, the next one shows.

        Raises :class:`ApiError`, for an error event too.
        """
        path, code = resource.path(namespace), 0
        try:
            accept = _METADATA.format("") if metadata else JSON
            answer = await self._request("GET", path, None, {"watch": "true", **query}, JSON, WATCH_TIMEOUT, accept)
            code = answer.status
            try:
                if code >= 400:
                    raise _error("watch", path, code, await answer.read())
                async for line in lines(answer.response.content):
                    event = _parse(await trimmed(line, EVENT))
                    kind, thing = str(event.get("type")), event.get("object") or {}
                    if kind == "ERROR":
                        raise _error("watch", path, int(thing.get("code") or 500), line, thing)
                    yield kind, thing
                    del event, thing, line  # the next may be long in coming
            except aiohttp.SocketTimeoutError:
                # One whose etcd does not report progress (before 3.4.31 and 3.5.13) has no bookmarks for what does not change.
                return
            finally:
                answer.response.close()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiError("watch", path, 0, "Unreachable", str(error) or type(error).__name__) from error
        finally:
            self._count("watch", resource.plural, code)

    async def text(
        self, resource: Resource, namespace: str, name: str, subresource: str, query: Mapping[str, str]
    ) -> AsyncGenerator[str]:
        """Lines of a subresource that is text, as they come, until the server ends it: the log of a pod. Raises :class:`ApiError`."""
        path, code = resource.path(namespace, name, subresource), 0
        try:
            answer = await self._request("GET", path, None, query, JSON, TEXT_TIMEOUT, "*/*")
            code = answer.status
            try:
                if code >= 400:
                    raise _error("get", path, code, await answer.read())
                async for line in lines(answer.response.content):
                    yield line.decode(errors="replace")
            finally:
                answer.response.close()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiError("get", path, 0, "Unreachable", str(error) or type(error).__name__) from error
        finally:
            self._count("get", resource.plural, code)

    async def create(self, resource: Resource, body: Object) -> Object:
        """Make an object. Raises :class:`ApiError` (status 409: there is one of this name)."""
        path = resource.path(body["metadata"].get("namespace"))
        return await self._call("create", "POST", resource, path, body, {"fieldManager": MANAGER})

    async def apply(
        self,
        resource: Resource,
        body: Object,
        *,
        subresource: str | None = None,
        force: bool = False,
        metadata: bool = False,
        manager: str = MANAGER,
        seconds: float = CALL_SECONDS,
    ) -> Object:
        """Server-side apply by ``manager``, in ``seconds``; the answer is all of the object, or its ``metadata`` alone.

        Raises :class:`ApiError` (status 409: another manager's field, or not the resourceVersion in ``body``).
        """
        path = resource.path(body["metadata"].get("namespace"), body["metadata"]["name"], subresource)
        query = {"fieldManager": manager, "force": "true" if force else "false"}
        accept, text = _METADATA.format("") if metadata else JSON, _yaml(body)
        del body  # the call may wait for its turn
        return await self._call("patch", "PATCH", resource, path, text, query, APPLY_PATCH, seconds, accept)

    async def merge(
        self, resource: Resource, namespace: str, name: str, change: Object, *, subresource: str | None = None
    ) -> Object:
        """Change the fields that ``change`` names, whoever set them. Raises :class:`ApiError`."""
        path = resource.path(namespace, name, subresource)
        return await self._call("patch", "PATCH", resource, path, change, {"fieldManager": MANAGER}, MERGE_PATCH)

    async def delete(self, resource: Resource, namespace: str | None, name: str, *, uid: str, grace: int | None = None) -> bool:
        """Delete the object with ``uid``; False: it is gone already, or another has its name. Raises :class:`ApiError`."""
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        options["preconditions"] = {"uid": uid}
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        try:
            await self._call("delete", "DELETE", resource, resource.path(namespace, name), options)
        except ApiError as error:
            if error.status == 404:
                return False
            if error.status == 409:
                # Another object, or a conflict of some other kind: then this one is still there.
                there = await self.get(resource, namespace, name)
                if there is None or there["metadata"]["uid"] != uid:
                    return False
            raise
        return True

    async def _call(
        self,
        verb: str,
        method: str,
        resource: Resource,
        path: str,
        body: Object | str | None = None,
        query: Mapping[str, str] | None = None,
        content_type: str = JSON,
        seconds: float = CALL_SECONDS,
        accept: str = JSON,
    ) -> Object:
        for _ in range(BUSY_TRIES - 1):
            try:
                return await self._call_once(verb, method, resource, path, body, query, content_type, seconds, accept)
            except ApiError as error:
                if error.retry_after is None:
                    raise
                await asyncio.sleep(min(error.retry_after, CALL_SECONDS))
        return await self._call_once(verb, method, resource, path, body, query, content_type, seconds, accept)

    async def _call_once(
        self,
        verb: str,
        method: str,
        resource: Resource,
        path: str,
        body: Object | str | None,
        query: Mapping[str, str] | None,
        content_type: str,
        seconds: float,
        accept: str,
    ) -> Object:
        code, retry_after, began = 0, None, time.monotonic()
        try:
            # To wait for its turn is not the server's time: else, behind a thousand other calls, it ends before it began.
            async with self._turns.taken():
                began = time.monotonic()
                answer = await self._request(method, path, body, query, content_type, seconds, accept)
                code, data = answer.status, await answer.read()
            self._answered = time.monotonic()
            wait = answer.headers.get("Retry-After", "")
            # Only a 429 says for certain that nothing was done.
            retry_after = float(wait) if code == 429 and wait.isdigit() else None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            text, took = str(error) or type(error).__name__, time.monotonic() - began
            raise ApiError(verb, path, 0, "Unreachable", text, took=took if self._answered > began else 0.0) from error
        finally:
            self._count(verb, resource.plural, code)
        if code >= 400:
            raise _error(verb, path, code, data, retry_after=retry_after, took=time.monotonic() - began)
        return await _parse_page(data) if verb == "list" else _parse(await trimmed(data, OBJECT))

    async def _request(
        self,
        method: str,
        path: str,
        body: Object | str | None,
        query: Mapping[str, str] | None,
        content_type: str,
        limit: float | aiohttp.ClientTimeout,
        accept: str,
    ) -> Any:
        headers = {"Accept": accept, "Content-Type": content_type}
        await self._client.update_params_for_auth(headers, [], ["BearerToken"], path, method, body)
        url = self._client.configuration.host + path + (f"?{urlencode(query)}" if query else "")
        return await self._client.rest_client.request(  # type: ignore[no-untyped-call]
            method, url, headers=headers, body=body, _request_timeout=limit
        )


_NOT_PLAIN = re.compile(r"[^\x00-\x7e]")


def _yaml(body: Object) -> str:
    """``body`` as YAML: JSON but for what is not ASCII in its texts. JSON has two escapes for 😀, each of which YAML refuses."""
    return _NOT_PLAIN.sub(_escaped, json.dumps(body, ensure_ascii=False))


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    return "\\ufffd" if 0xD800 <= code < 0xE000 else f"\\U{code:08x}"


def _error(
    verb: str, path: str, code: int, data: bytes, told: Object | None = None, retry_after: float | None = None, took: float = 0.0
) -> ApiError:
    told = _parse(data) if told is None else told
    message = str(told.get("message", "")) or data[:200].decode(errors="replace")
    if len(message) > LONGEST_MESSAGE:
        message = message[: LONGEST_MESSAGE - 1] + "…"
    message = printable(message)
    return ApiError(verb, path, code, str(told.get("reason", "")), message, retry_after, took)


async def lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Lines of any length: an object may be larger than the buffer that a reader of lines has."""
    rest, taken = bytearray(), 0
    async for part in content.iter_any():
        for line in whole_lines(rest, part):
            taken += len(line)
            yield line
            del line
            if taken > MOST_IN_A_ROUND:
                await asyncio.sleep(0)
                taken = 0
        await asyncio.sleep(0)  # who always has more to read lets others have their turn


def _parse(data: bytes) -> Object:
    try:
        value = parsed(data)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


async def _parse_page(data: bytes) -> Object:
    try:
        value = await page(data, parsed)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
