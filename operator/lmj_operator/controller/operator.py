"""Starts the operator, and ends it."""

import asyncio
import contextlib
import ctypes
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import getproxies

import aiohttp
import kopf
from kubernetes.aio.client import ApiClient, Configuration

from lmj_api.names import GROUP
from lmj_operator.backend.kubernetes.api import Api
from lmj_operator.backend.kubernetes.connection import NoCluster, find
from lmj_operator.backend.kubernetes.keys import KeysError, open_keys
from lmj_operator.backend.kubernetes.settings import Settings
from lmj_operator.backend.kubernetes.watch import Watch
from lmj_operator.controller.controller import Controller, registry, watches
from lmj_operator.controller.garbage import collect_garbage
from lmj_operator.controller.http import listen
from lmj_operator.controller.job_task import Place
from lmj_operator.controller.metrics import Metrics
from lmj_operator.controller.notes import Notebook
from lmj_operator.controller.served import Served

IDENTITY = "lmj"
LARGE_BLOCK, _M_MMAP_THRESHOLD = 128 << 10, -3
"""Bytes, and the number of this setting in ``malloc.h``."""
JOBS_AT_ONCE = 25
"""Jobs in a page of their list."""
AGENT_SECONDS = 2.0
"""A connection to an agent for calls is kept so long: there are thousands, and a job at rest is looked at less often than that."""

log = logging.getLogger(__name__)


class StartError(Exception):
    """The operator cannot start; the text says why, in one line."""


@dataclass(frozen=True, slots=True)
class Options:
    """How the operator runs."""

    namespaces: tuple[str, ...]
    """Namespaces whose jobs it runs; empty: all."""
    listen: tuple[str, int]
    """Where ``/healthz``, ``/readyz`` and ``/metrics`` are."""
    keys: Path
    """Folder of the keys with which requests to agents are signed."""
    settings: Settings


class NoDiffs(kopf.DiffBaseStorage):
    """No handler asks what changed in an object, so no copy of it is made at each event, and nothing is kept in it."""

    def build(self, *, body: kopf.Body, extra_fields: Any = None) -> kopf.BodyEssence:
        """As the base says."""
        return kopf.BodyEssence()

    def fetch(self, *, body: kopf.Body) -> kopf.BodyEssence | None:
        """As the base says."""
        return None

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        """As the base says."""


def kopf_settings() -> kopf.OperatorSettings:
    """Kopf as we want it: quiet, with deadlines, and with our own names should it ever write one."""
    settings = kopf.OperatorSettings()
    settings.persistence.finalizer = f"{GROUP}/operator"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=GROUP)
    settings.persistence.diffbase_storage = NoDiffs()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    # While Kopf waits for more of an object it holds the last that it heard, all of it.
    settings.queueing.idle_timeout = 0.5
    settings.networking.connect_timeout = 10
    settings.networking.request_timeout = 60
    # Each may have 1.5 MB, and a page is in memory at once.
    settings.watching.chunk_size = JOBS_AT_ONCE
    # A watch ends on the server's side before the client gives it up, and a silent one is not believed for long.
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 330
    settings.watching.connect_timeout = 10
    return settings


def client_configuration() -> Configuration:
    """How the API server is reached."""
    made = Configuration.get_default_copy()
    made.connection_pool_maxsize = 0  # calls wait for their turn by themselves, and a watch keeps its connection
    # To look for a proxy and a .netrc costs a thread's work for each call.
    made.client_session_kwargs = {"trust_env": bool(getproxies())}
    return made


def _return_large_blocks() -> None:
    """Have glibc give large blocks back to the system as soon as they are free. It would keep those of sizes that were free before for the
    next, between others that stay: a megabyte of JSON now and then is tens of megabytes that nobody uses.
    """
    with contextlib.suppress(OSError, AttributeError):  # another C library has no such call
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, LARGE_BLOCK)


async def operate(options: Options) -> None:
    """Run until SIGTERM or SIGINT. Raises :class:`StartError`."""
    await _find_cluster()
    try:
        # In a cluster a key of its own would go with the operator's pod, and leave trainer pods that obey nobody.
        keys = open_keys(options.keys, make=options.settings.namespace is None)
    except KeysError as error:
        raise StartError(str(error)) from error
    _return_large_blocks()
    controller = Controller()
    metrics = Metrics(controller.phases, controller.replicas)
    # Agents are reached directly, each by a connection of its own for its events.
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=AGENT_SECONDS)
    session = aiohttp.ClientSession(trust_env=False, connector=connector, cookie_jar=aiohttp.DummyCookieJar())
    async with ApiClient(client_configuration()) as client, session:
        api = Api(client, metrics.count_call)
        watching = watches(controller, api, options.namespaces)
        host, port = options.listen
        served = Served(api)
        try:
            runner = await listen(
                host, port, metrics, lambda: [w for w in (served.waits, *(watch.waits for watch in watching)) if w is not None]
            )
        except OSError as error:
            raise StartError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
        notebook = Notebook(api)
        controller.place = Place(api, controller.cache, session, options.settings, keys, metrics, notebook)
        tasks = [asyncio.create_task(watch.run(), name="watch") for watch in watching]
        tasks += [asyncio.create_task(notebook.run(), name="events"), asyncio.create_task(_inform(controller, watching))]
        tasks.append(asyncio.create_task(collect_garbage(), name="garbage"))
        log.info("watches %s", ", ".join(options.namespaces) or "all namespaces")
        try:
            await served.wait()
            await kopf.operator(
                registry=registry(controller),
                settings=kopf_settings(),
                # Kopf's own would have the user's name in it, and an id that a cluster chose has none.
                identity=IDENTITY,  # type: ignore[arg-type]
                standalone=True,
                namespaces=options.namespaces,
                clusterwide=not options.namespaces,
            )
        finally:
            await controller.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await runner.cleanup()


async def _inform(controller: Controller, watching: Sequence[Watch]) -> None:
    for watch in watching:
        await watch.informed.wait()
    controller.informed.set()


async def _find_cluster() -> None:
    """Have all clients lead to the operator's cluster. Raises :class:`StartError`."""
    try:
        await find()
    except NoCluster as error:
        raise StartError(str(error)) from error
