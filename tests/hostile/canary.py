"""Jobs of another tenant, one after another: how long each waits for its pods while all else goes on."""

import asyncio
import copy
import secrets
import time
from dataclasses import dataclass, field
from typing import Any

from hostile.good import SPEC
from hostile.server import Refused, Server
from lmj_api.names import API_VERSION, KIND

LOOK_SECONDS = 0.1
LONGEST = 60.0
"""Seconds: one whose pods are not there by then is not waited for any more."""


@dataclass(frozen=True, slots=True)
class Wait:
    """How long a job waited for all of its pods."""

    seconds: float
    """From its making."""
    slowest: float
    """Seconds of the slowest call that was made to look at it: an operator's calls are not faster."""
    restarted: bool
    """Whether there was no operator for a part of it."""


@dataclass
class Canary:
    """Makes a job every ``seconds`` in ``namespace``, and takes it away again."""

    server: Server
    namespace: str
    seconds: float
    waited: list[Wait] = field(default_factory=list)
    restarts: int = 0
    """Of the operator so far; whoever restarts it counts."""
    _slowest: float = 0.0

    async def run(self) -> None:
        """Until cancelled."""
        # What is left of one of another run with its name would keep it from starting.
        run, number = secrets.token_hex(2), 0
        while True:
            begin = time.monotonic()
            self.waited.append(await self._one(f"canary-{run}-{number:04d}"))
            number += 1
            await asyncio.sleep(max(0.0, self.seconds - (time.monotonic() - begin)))

    async def _one(self, name: str) -> Wait:
        jobs = f"/apis/lmj.dev/v1alpha1/namespaces/{self.namespace}/livemigrationjobs"
        pods = f"/api/v1/namespaces/{self.namespace}/pods"
        body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": copy.deepcopy(SPEC)}
        self._slowest, restarts = 0.0, self.restarts
        begin = time.monotonic()
        await self._call("POST", jobs, body)
        wanted = SPEC["pipeline"]["stages"]
        while len(await self._there(f"{pods}?labelSelector=lmj.dev/job={name}")) < wanted:
            if time.monotonic() - begin > LONGEST:
                break
            await asyncio.sleep(LOOK_SECONDS)
        waited = Wait(time.monotonic() - begin, self._slowest, self.restarts != restarts)
        await self.server.call("DELETE", f"{jobs}/{name}")
        await self.server.call("DELETE", f"{pods}?labelSelector=lmj.dev/job={name}", {"gracePeriodSeconds": 0})
        return waited

    async def _there(self, path: str) -> list[Any]:
        try:
            found: list[Any] = (await self._call("GET", path))["items"]
        except Refused:
            return []
        return found

    async def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        begin = time.monotonic()
        try:
            return await self.server.call(method, path, body)
        finally:
            self._slowest = max(self._slowest, time.monotonic() - begin)
