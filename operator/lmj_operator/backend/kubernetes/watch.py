"""Follows all objects of a kind: what is there, then every change, for as long as the process lives.

Kopf watches jobs; for pods and nodes it does more than we need, and less. It hands each news through a queue, a task and a dozen
objects (a third of what the start of a job cost); and what is deleted while its watch is broken it tells to nobody. Here a list is
compared with what was known, so nothing stays that is gone.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from lmj_operator.backend.kubernetes.api import Api, ApiError, Object
from lmj_operator.backend.kubernetes.resources import Resource

PAGE = 50
"""Objects of a list that are in memory at once: who may make pods decides how large they are, up to the server's 1.5 MB each."""
WATCH_SECONDS = 300
"""The server ends a watch after so long; another goes on where it was."""
REST_SECONDS = 0.1
"""Between a watch that ended and the next."""
FIRST_RETRY_SECONDS = 0.2
LONGEST_RETRY_SECONDS = 10.0
GONE = 410
"""The server has forgotten what came after the version that it was asked for, which is nothing to worry about."""
BUSY = 429

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Sink:
    """Where the news go."""

    known: Callable[[], Iterable[Mapping[str, Any]]]
    """What was put and not dropped; of each, what ``drop`` reads."""
    put: Callable[[Object], None]
    drop: Callable[[Mapping[str, Any]], None]


class Watch:
    """One kind, in one namespace or (None) all; of each object all, or its ``metadata`` alone."""

    def __init__(
        self,
        api: Api,
        resource: Resource,
        sink: Sink,
        *,
        namespace: str | None = None,
        selector: str = "",
        metadata: bool = False,
    ) -> None:
        self._api = api
        self._resource = resource
        self._sink = sink
        self._namespace = namespace
        self._metadata = metadata
        self._query = {"labelSelector": selector} if selector else {}
        self._version: str | None = None
        self.informed = asyncio.Event()
        """All that there was has been told."""
        self._problem = "no answer yet"

    @property
    def waits(self) -> str | None:
        """Why nothing is known of the kind yet, in one line; None: it is."""
        return None if self.informed.is_set() else f"does not watch {self._resource.plural} yet: {self._problem}"

    async def run(self) -> None:
        """Until cancelled. What fails is logged and tried again, later and later."""
        wait = FIRST_RETRY_SECONDS
        while True:
            begin, before = time.monotonic(), self._version
            try:
                if self._version is None:
                    self._version = await self._list()
                    self.informed.set()
                await self._follow(self._version)
            except ApiError as error:
                if error.status not in (0, BUSY):
                    self._version = None  # it may be one that the server does not know any more, or not yet
                self._problem = str(error)
                level = logging.INFO if error.status == GONE else logging.WARNING
                log.log(level, "watches %s again in %g s: %s", self._resource.plural, wait, error)
            except Exception as error:
                self._version, self._problem = None, f"{type(error).__name__}: {error}"
                log.exception("watches %s again in %g s", self._resource.plural, wait)
            else:
                wait = FIRST_RETRY_SECONDS
                await asyncio.sleep(REST_SECONDS)
                continue
            await asyncio.sleep(wait)
            # Where something came before it broke, the next is no more likely to fail than this one was.
            worked = self._version not in (None, before) or time.monotonic() - begin > 2 * LONGEST_RETRY_SECONDS
            wait = FIRST_RETRY_SECONDS if worked else min(2 * wait, LONGEST_RETRY_SECONDS)

    async def _list(self) -> str:
        """Tell of all that there is, and of what is there no more. Returns the version of the list. Raises ApiError."""
        # What is made from here on may be known, and not be in the list.
        missing = {_key(thing): thing for thing in self._sink.known()}
        query = {**self._query, "limit": str(PAGE)}
        while True:
            page = await self._api.list(self._resource, self._namespace, query, metadata=self._metadata)
            for thing in page["items"] or ():  # null, where a list of metadata is empty
                missing.pop(_key(thing), None)
                self._tell(self._sink.put, thing)
            if not page["metadata"].get("continue"):
                break
            query["continue"] = page["metadata"]["continue"]
        for thing in missing.values():
            self._tell(self._sink.drop, thing)
        return str(page["metadata"]["resourceVersion"])

    async def _follow(self, version: str) -> None:
        """Tell of every change since ``version``, until the server ends the watch. Raises ApiError."""
        query = {**self._query, "resourceVersion": version, "allowWatchBookmarks": "true", "timeoutSeconds": str(WATCH_SECONDS)}
        async for kind, thing in self._api.watch(self._resource, self._namespace, query, metadata=self._metadata):
            if kind in ("ADDED", "MODIFIED"):
                self._tell(self._sink.put, thing)
            elif kind == "DELETED":
                self._tell(self._sink.drop, thing)
            self._version = str(thing["metadata"]["resourceVersion"])
            del thing  # the next may be long in coming

    def _tell(self, to: Callable[[Any], None], thing: Mapping[str, Any]) -> None:
        """One that we cannot read does not keep us from the others."""
        try:
            to(thing)
        except (KeyError, TypeError, ValueError, AttributeError):
            log.exception("%s %s cannot be read", self._resource.plural, thing.get("metadata", {}).get("name"))


def _key(thing: Mapping[str, Any]) -> tuple[str | None, str]:
    return thing["metadata"].get("namespace"), thing["metadata"]["name"]
