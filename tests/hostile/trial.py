"""Many hostile jobs before a real API server and a real operator, in batches: what each came to, and what was wrong."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hostile.canary import Canary
from hostile.journal import Journal, Key
from hostile.objects import Case
from hostile.server import JSON, MERGE, Refused, Server
from hostile.told import FAILED_PASS, has_had, unsaid

AT_ONCE = 16
BATCH = 100
SETTLE_SECONDS = 300.0
"""In which all jobs of a batch say what is to be said of them: for a status of ten thousand levels a busy API server needs a minute."""
LOOK_SECONDS = 0.3
LOOKS_AT_ONCE = 4
TIMED_OUT = 504
CHANGE_SECONDS = 0.05
"""Between two changes of a job: some come while the operator is at the one before."""
LEFT = (
    "/apis/lmj.dev/v1alpha1/namespaces/{}/livemigrationjobs",
    "/api/v1/namespaces/{}/pods",
    "/api/v1/namespaces/{}/secrets",
    "/api/v1/namespaces/{}/services",
    "/api/v1/namespaces/{}/events",
    "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies",
    "/apis/policy/v1/namespaces/{}/poddisruptionbudgets",
)
"""What is of a batch. Nothing else deletes it: there is no collector of garbage beside this API server."""


@dataclass
class Outcome:
    """Of all cases."""

    taken: int = 0
    """Objects that the API server accepted,"""
    refused: int = 0
    """and those that it did not."""
    changes: Counter[str] = field(default_factory=Counter)
    """Changes that it accepted, by what was changed."""
    phases: Counter[str] = field(default_factory=Counter)
    """In which the jobs were at last."""
    failed_passes: int = 0
    """Jobs that said of the operator's own passes that they fail."""
    wrong: list[str] = field(default_factory=list)
    """What should not be, each with the case."""


@dataclass
class Trial:
    """Cases, an API server, and an operator whose log is ``journal``."""

    server: Server
    namespace: str
    journal: Journal
    alive: Callable[[], object]
    """Raises when the operator has ended."""
    outcome: Outcome = field(default_factory=Outcome)
    _told: set[Key] = field(default_factory=set)
    """Jobs with an error in the log that a condition told."""

    async def run(self, cases: Sequence[Case], canary: Canary, restart: Callable[[], None], restarts: Sequence[int]) -> Outcome:
        """Go through all, while ``canary`` lives. With the jobs of the batches ``restarts`` there the operator is killed and started again."""
        other = asyncio.create_task(canary.run())
        try:
            for number, first in enumerate(range(0, len(cases), BATCH)):
                batch = cases[first : first + BATCH]
                kept = await self._made(batch)
                await self._settle(kept)
                if number in restarts:
                    self.journal.read()
                    restart()
                    canary.restarts += 1
                    await self._touch(kept)
                    await self._settle(kept)
                await self._hear()
                await self._clear()
                if other.done():
                    other.result()
        finally:
            other.cancel()
            await asyncio.gather(other, return_exceptions=True)
        self._answer_for_the_rest()
        return self.outcome

    async def _made(self, batch: Sequence[Case]) -> list[Case]:
        """The cases whose object was accepted, after all that is done to each."""
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(case: Case) -> bool:
            async with gate:
                return await self._make(case)

        return [case for case, made in zip(batch, await asyncio.gather(*map(one, batch)), strict=True) if made]

    async def _make(self, case: Case) -> bool:
        try:
            await self.server.call("POST", LEFT[0].format(self.namespace), case.body)
        except Refused:
            self.outcome.refused += 1
            return False
        self.outcome.taken += 1
        for change in case.changes:
            await asyncio.sleep(CHANGE_SECONDS)
            of = f"/{change.of}" if change.of else ""
            try:
                await self.server.call("PATCH", self._path(case.name) + of, change.body, MERGE)
                self.outcome.changes[change.of or "object"] += 1
            except Refused:
                self.outcome.changes["refused"] += 1
        return True

    async def _touch(self, cases: Sequence[Case]) -> None:
        """Change all specs a little: an operator that has begun anew has to say something of each."""
        for case in cases:
            try:
                await self.server.call("PATCH", self._path(case.name), b'{"spec":{"suspend":true}}', MERGE)
            except Refused:
                continue  # of what it was made with, its changes or a newer rule leave no room for one more

    async def _settle(self, cases: Sequence[Case]) -> None:
        """Until each of them says why it is as it is; those that do not by the deadline are wrong."""
        waiting, end = {case.name: case for case in cases}, time.monotonic() + SETTLE_SECONDS
        while waiting:
            self.alive()
            self.journal.read()
            begin, gate = time.monotonic(), asyncio.Semaphore(LOOKS_AT_ONCE)
            jobs = await asyncio.gather(*(self._look(name, gate) for name in waiting))
            why = {case.name: self._wrong(case, job) for case, job in zip(waiting.values(), jobs, strict=True)}
            late = time.monotonic() > end
            for (name, case), job in zip(list(waiting.items()), jobs, strict=True):
                if why[name] is not None and not late:
                    continue
                del waiting[name]
                if why[name] is not None:
                    self.outcome.wrong.append(f"{name} ({case.kind}): {why[name]}")
                elif job is not None:
                    self.outcome.phases[job["status"].get("phase", "")] += 1
                    self.outcome.failed_passes += has_had(job, FAILED_PASS)
            # Half of the time others have the server: jobs are of a megabyte, and what they say is read with all of it.
            await asyncio.sleep(max(LOOK_SECONDS, time.monotonic() - begin))

    def _wrong(self, case: Case, job: dict[str, Any] | None) -> str | None:
        """What is wrong of it by now; None: nothing. A job may have gone by itself: its time to live is over."""
        trouble = self.journal.troubles.get((self.namespace, case.name))
        if job is None:
            return None if trouble is None else f"it is gone, and the log had an error that nothing told: {trouble}"
        if trouble is not None and not has_had(job, FAILED_PASS):
            return f"the log has an error that no condition tells: {trouble}"
        return unsaid(job, any(change.of == "status" for change in case.changes))

    async def _look(self, name: str, gate: asyncio.Semaphore) -> dict[str, Any] | None:
        try:
            async with gate:
                found: dict[str, Any] = await self.server.call("GET", self._path(name))
        except Refused as error:
            if error.status != 404:
                raise
            return None
        return found

    async def _hear(self) -> None:
        """Which of the errors in the log the jobs that are there tell of."""
        self.journal.read()
        for namespace, name in self.journal.troubles.keys() - self._told:
            if namespace == self.namespace:
                job = await self._look(name, asyncio.Semaphore())
                if job is not None and has_had(job, FAILED_PASS):
                    self._told.add((namespace, name))

    async def _clear(self) -> None:
        """Take away all that is of the batch. Raises TimeoutError when it is still there after a while."""
        end = time.monotonic() + SETTLE_SECONDS
        for path in LEFT:
            while not await self._deleted(path.format(self.namespace)):
                if time.monotonic() > end:
                    raise TimeoutError(f"{path}: what was deleted is still there")
                await asyncio.sleep(LOOK_SECONDS)

    async def _deleted(self, path: str) -> bool:
        """Whether nothing is there any more, after it was asked to be deleted."""
        try:
            await self.server.call("DELETE", path, {"gracePeriodSeconds": 0}, JSON)
            return not (await self.server.call("GET", f"{path}?limit=1"))["items"]
        except Refused as error:
            # It has a minute for all of them: a busy machine may have it come back for the rest.
            if error.status != TIMED_OUT:
                raise
            return False

    def _answer_for_the_rest(self) -> None:
        """What the log has of jobs that were looked at already, of others, and of none."""
        self.journal.read()
        for key, trouble in self.journal.troubles.items():
            if key not in self._told:
                self.outcome.wrong.append(f"an error that no condition tells, of {'/'.join(key)}: {trouble}")

    def _path(self, name: str) -> str:
        return f"{LEFT[0].format(self.namespace)}/{name}"
