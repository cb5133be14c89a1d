"""A tenant who wants no more than one job after another: how long each takes from its making to Running."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from cluster.api import Api

from lmj_api.names import API_VERSION, JOB_LABEL, KIND
from operator_load.jobs import spec_of
from operator_load.load import insisted, opened
from operator_load.plane import NAMESPACE

RANKS = 2
LONGEST = 120.0
"""Seconds. A start that takes longer counts as this."""
_JOBS = f"/apis/lmj.dev/v1alpha1/namespaces/{NAMESPACE}/livemigrationjobs"
_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
_OTHERS = (
    f"/api/v1/namespaces/{NAMESPACE}/secrets",
    f"/api/v1/namespaces/{NAMESPACE}/services",
    f"/api/v1/namespaces/{NAMESPACE}/events",
    f"/apis/networking.k8s.io/v1/namespaces/{NAMESPACE}/networkpolicies",
    f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets",
)


@dataclass
class Neighbour:
    """Its jobs, each taken away when it runs."""

    api: Api
    _made: int = 0
    _runs: dict[str, asyncio.Event] = field(default_factory=dict)

    async def starts(self, pause: float, goes_on: Callable[[int], bool]) -> list[float]:
        """Seconds from making to Running of jobs of which one comes every ``pause`` seconds, as long as ``goes_on`` says of their number."""
        async with opened(self.api, timeout=aiohttp.ClientTimeout(LONGEST), read_bufsize=1 << 20) as session:
            watching = asyncio.create_task(self._watch(session))
            tasks: list[asyncio.Task[float]] = []
            try:
                while goes_on(len(tasks)):
                    tasks.append(asyncio.create_task(self._start(session)))
                    await asyncio.sleep(pause)
                    if watching.done():
                        watching.result()
                found = await asyncio.gather(*tasks)
            finally:
                for task in (watching, *tasks):
                    task.cancel()
                await asyncio.gather(watching, *tasks, return_exceptions=True)
            for path in _OTHERS:
                await _call(session, "DELETE", path)
        return list(found)

    async def _start(self, session: aiohttp.ClientSession) -> float:
        self._made += 1
        name = f"neighbour-{self._made:05d}"
        runs = self._runs[name] = asyncio.Event()
        body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": spec_of(RANKS)}
        begin = time.monotonic()
        await _call(session, "POST", _JOBS, body)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(runs.wait(), LONGEST)
        took = min(time.monotonic() - begin, LONGEST)
        del self._runs[name]
        await _call(session, "DELETE", f"{_JOBS}/{name}")
        await _call(session, "DELETE", f"{_PODS}?labelSelector={JOB_LABEL}={name}", {"gracePeriodSeconds": 0})
        return took

    async def _watch(self, session: aiohttp.ClientSession) -> None:
        """Hear of the jobs that run, until cancelled. Raises RuntimeError when the server ends it."""
        query = f"{_JOBS}?watch=true&timeoutSeconds=7200"
        async with session.get(query, timeout=aiohttp.ClientTimeout(total=None)) as answer:
            async for line in answer.content:
                job = json.loads(line)["object"]
                waiting = self._runs.get(job["metadata"]["name"])
                if waiting is not None and (job.get("status") or {}).get("phase") == "Running":
                    waiting.set()
        raise RuntimeError("the API server has ended the watch of the neighbour's jobs")


async def _call(session: aiohttp.ClientSession, method: str, path: str, body: dict[str, Any] | None = None) -> None:
    # What goes with its job may be gone by itself.
    await insisted(session, method, path, None if body is None else json.dumps(body).encode(), (404,))
