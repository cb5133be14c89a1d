"""The only reconciler of one job: lives from the job's first sight to its deletion."""

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from lmj_api.clock import steady_time
from lmj_api.layout import Layout
from lmj_api.problems import SpecError
from lmj_api.spec import LiveMigrationJob
from lmj_api.status import JobStatus, Phase
from lmj_operator.backend.budget import Budget
from lmj_operator.backend.flag import Flag
from lmj_operator.backend.kubernetes.api import LARGE_AT_ONCE, Api, ApiError
from lmj_operator.backend.kubernetes.backend import KubernetesBackend
from lmj_operator.backend.kubernetes.build.kept_template import is_large, share_text, with_kept_template
from lmj_operator.backend.kubernetes.cache import Cache
from lmj_operator.backend.kubernetes.canaries import turns_to_knock
from lmj_operator.backend.kubernetes.cluster_job import checked_job, read_job
from lmj_operator.backend.kubernetes.job_object import kept_metadata, move_request, packed_spec
from lmj_operator.backend.kubernetes.keys import Keys
from lmj_operator.backend.kubernetes.lane import Lane
from lmj_operator.backend.kubernetes.packed import is_packed, unpacked
from lmj_operator.backend.kubernetes.resources import JOBS
from lmj_operator.backend.kubernetes.settings import Settings
from lmj_operator.backend.kubernetes.start_trouble import event_lists
from lmj_operator.backend.kubernetes.status_store import JobGone, Replicas, StatusConflict, StatusStore, StatusUnreadable
from lmj_operator.backend.port import PodEvent
from lmj_operator.backend.rounds import turn
from lmj_operator.backend.turns import JOB, Turns
from lmj_operator.controller.failed_pass import with_error, without_error
from lmj_operator.controller.metrics import Metrics
from lmj_operator.controller.notes import Note, Notebook, notes
from lmj_operator.controller.refusal import corrected, refused, with_problem
from lmj_operator.controller.unreadable import leave_alone
from lmj_operator.plan import Action, Plan
from lmj_operator.plan.failures.budget import is_stuck
from lmj_operator.plan.report.phases import AT_REST, TERMINAL
from lmj_operator.reconcile import Pass, Reconciler

log = logging.getLogger(__name__)

FIRST_RETRY_SECONDS = 0.5
LONGEST_RETRY_SECONDS = 30.0
STARTS_AT_ONCE = 16
"""So many jobs make all of their objects at the same time. The server does not get faster by more, and of a thousand that come at once
the first is to train while the last waits, rather than all of them have a part of their objects."""
LOOKS_AT_ONCE = 4
"""At jobs whose agents say much. An agent may take seconds to answer, so others have turns beside it."""
START_SECONDS = 0.25
"""Pods come one by one, and so do their agents and their workers: what comes in so long is looked at in one pass."""
PASSES_AT_ONCE = 200
PASS_SECONDS = 0.2
"""One job makes so many passes as fast as its pods bring news, far more than any recovery takes, and then one in so long: each takes the loop
from all others, and may store a status."""
STUCK_PASSES, STUCK_PASSES_AT_ONCE = 5.0, 50
"""Passes in a second, and at once after a rest, of all jobs together that fail again and again: each may cost pods, events and a status, and
so the time of the API server, a scheduler and kubelets."""
EXCESS_LINES = 500.0
"""A second, of agents who tell more than any agent does, all of them together: a few hundredths of a processor."""
REST_SECONDS = 30.0
"""A job of which nothing is heard is looked at so often: watches and agents report what happens."""


@dataclass(frozen=True, slots=True)
class Place:
    """What all jobs' tasks share."""

    api: Api
    cache: Cache
    session: aiohttp.ClientSession
    settings: Settings
    keys: Keys
    metrics: Metrics
    notebook: Notebook
    clock: Callable[[], float] = steady_time
    starts: Turns = field(default_factory=lambda: Turns(STARTS_AT_ONCE, STARTS_AT_ONCE))
    """Turns to make a first pass,"""
    large_starts: Turns = field(default_factory=lambda: Turns(LARGE_AT_ONCE, LARGE_AT_ONCE))
    """and those of jobs with a large template, whose pods are made a few at a time: nobody waits behind them."""
    large_reads: Turns = field(default_factory=lambda: Turns(1, 1))
    """Turns to read a large job: parsed, it has a megabyte until it was checked."""
    large_looks: Turns = field(default_factory=lambda: Turns(LOOKS_AT_ONCE, 1))
    """Turns to look at a job whose agents say much: that of one has a megabyte until its pass has planned."""
    excess: Lane = field(default_factory=lambda: Lane(EXCESS_LINES))
    """For what agents tell that is more than any agent does."""
    stuck: Lane = field(default_factory=lambda: Lane(STUCK_PASSES, STUCK_PASSES_AT_ONCE))
    """For passes of jobs that fail again and again."""
    lists: Budget = field(default_factory=event_lists)
    knocks: Turns = field(default_factory=turns_to_knock)
    """Turns to knock at a pod."""


class JobTask:
    """One job. ``body`` is its object as the watch told it last."""

    def __init__(self, body: Mapping[str, Any], place: Place) -> None:
        self._take(body)
        self._place = place
        self._changed = Flag()
        self._backend: KubernetesBackend | None = None
        self._reconciler: Reconciler | None = None
        self._store = StatusStore(place.api, body, place.settings.status_seconds, place.clock)
        self._complaint = ""
        self._unread = True
        """Its spec changed since it was read."""
        self._shown = True
        """The status may say that passes fail; an operator before this one may have written it."""

    @property
    def phase(self) -> Phase:
        """The job's phase."""
        return self._store.phase

    @property
    def replicas(self) -> Replicas | None:
        """How many replicas it has; None: it is at rest, or is one that has one and no more."""
        return self._store.replicas if self._shared and self.phase not in AT_REST else None

    @property
    def leaving(self) -> bool:
        """It is being deleted."""
        return "deletionTimestamp" in self._metadata

    def wake(self) -> None:
        """One of its pods changed."""
        if self._reconciler is not None:
            self._reconciler.wake()

    def seen(self, body: Mapping[str, Any]) -> None:
        """The job's object changed."""
        before, request, left = self._metadata, self._request, self.leaving
        self._take(body)
        if self._backend is not None:
            share_text(self._backend.job, self._spec)
        self._store.seen(body)
        if self._request != request and self._backend is not None:
            self._backend.move_request = self._request
            self.wake()
        if body["metadata"]["generation"] == before["generation"] and self.leaving == left:
            return
        self._unread = True
        if self._backend is not None:
            self._backend.deleted = self.leaving
        self._changed.set()
        self.wake()

    async def run(self) -> None:
        """Reconcile until the job is gone. What fails is told and tried again, later and later."""
        JOB.set((self._metadata["namespace"], self._metadata["name"]))
        wait = FIRST_RETRY_SECONDS
        conflict = -LONGEST_RETRY_SECONDS
        failed: Exception | None = None
        while True:
            begin, writes, before = time.monotonic(), self._store.writes, failed
            failed = None
            try:
                await self._live()
            except JobGone:
                return
            except StatusUnreadable as error:
                # Somebody else wrote it. With the next news of the job it is looked at again.
                await self.close()
                await leave_alone(self._place.api, self._metadata, None, str(error), self._place.clock())
                return
            except StatusConflict as error:
                self._say(logging.INFO, f"looks again: {error}")
                last, conflict = conflict, time.monotonic()
                if conflict - last >= LONGEST_RETRY_SECONDS:
                    continue  # at once, for the first: a second on its heels may not be the last
            except ApiError as error:
                self._say(logging.WARNING, str(error))
                failed = error
            except Exception as error:  # whatever it is, the job is not left alone for good, and people hear of it
                log.exception("a pass failed", extra=self._extra)
                failed = error
            crashed = failed is not None and not isinstance(failed, ApiError)
            self._place.metrics.passes.labels("crashed" if crashed else "failed").inc()
            took = failed.took if isinstance(failed, ApiError) else 0.0
            if (self._store.writes > writes and not crashed) or time.monotonic() - begin - took > LONGEST_RETRY_SECONDS:
                wait = FIRST_RETRY_SECONDS  # in between it went well
            # A call may fail once; and while the server does not answer, it takes no status.
            if failed is not None and (crashed or (before is not None and _is_refused(failed))):
                await self._show(failed)
            # A server may work in vain for as long as a call may take, on an object of thousands of levels: others have it twice as long.
            await asyncio.sleep(max(wait, 2 * took))
            wait = min(2 * wait, LONGEST_RETRY_SECONDS)

    async def _show(self, error: Exception) -> None:
        """Have the job's status say that passes fail, and why."""
        before = self._store.status
        after = with_error(before, error, self._metadata["generation"], self._place.clock())
        self._shown = True
        if after == before:
            return
        try:
            await self._store.write(after)
        except (ApiError, StatusConflict, JobGone) as failed:
            self._say(logging.WARNING, f"the status does not say so: {failed}")
        except Exception:  # what ended the pass may end this too
            log.exception("the status does not say so", extra=self._extra)
        else:
            self._note(before, after)

    async def worked(self) -> None:
        """A pass went through: if the status says that passes fail, it is not so any more. Raises as the store does."""
        if self._shown:
            before = self._store.status
            after = without_error(before, self._metadata["generation"], self._place.clock())
            if after != before:
                await self._store.write(after)
            self._shown = False

    async def close(self) -> None:
        """Let go of the agents."""
        # It refers to this task: together they would stay until garbage is collected.
        self._reconciler = None
        if self._backend is not None:
            await self._backend.close()
            self._backend = None

    async def _live(self) -> None:
        while True:
            self._changed.clear()
            job = await self._accepted()
            if job is not None:
                await self._reconcile(job)
            await self._rest(job)

    async def _accepted(self) -> LiveMigrationJob | None:
        """The job, or None when it cannot be run: its status says so then."""
        generation = self._metadata["generation"]
        try:
            job = await self._job()
        except SpecError as error:
            problem, store, now = self._complain(error), self._store, self._place.clock()
            if self._backend is not None:
                self._backend.problem = problem
                return self._backend.job
            if store.status.started is not None or self.leaving:
                # It trains on by itself. What its spec was before is not known any more, so nothing is done to it.
                await store.write(with_problem(store.status, problem, now))
                return None
            if store.status.phase is not Phase.FAILED or store.status.observed_generation != generation:
                before = store.status
                status = refused(before, problem, generation, now)
                await store.write(status)
                self._note(before, status)
            return None
        if self._backend is not None:
            self._backend.job, self._backend.problem = job, None
        if corrected(self._store.status, generation):
            await self._store.write(JobStatus(observed_generation=generation))
        return job

    async def renew(self) -> None:
        """Read the job if its spec changed since, while it is reconciled: it goes on as it was if that cannot be run."""
        if not self._unread or self._backend is None:
            return
        try:
            self._backend.job, self._backend.problem = await self._job(), None
        except SpecError as error:
            self._backend.problem = self._complain(error)

    async def _reconcile(self, job: LiveMigrationJob) -> None:
        place = self._place
        if self._backend is None:
            self._backend = KubernetesBackend(
                job,
                place.api,
                place.cache,
                self._store,
                place.session,
                place.settings,
                place.keys,
                place.lists,
                place.knocks,
                place.clock,
                place.excess.wait,
            )
        self._backend.deleted = self.leaving
        self._backend.move_request = self._request
        kept = job.spec.storage.output is not None or Layout.of(job.spec).results is not None
        if self._store.status.started is None and not kept and job.spec.world_size == 1:
            text = "spec.storage.output is not set: unless the template mounts a volume, results go when the pod does"
            place.notebook.post(self._metadata, Note("NoOutputVolume", text, warning=True), place.clock())
        if self._reconciler is None:
            self._reconciler = MeasuredReconciler(self._backend, self, self._store, place)
        await self._reconciler.run()

    async def _rest(self, job: LiveMigrationJob | None) -> None:
        """The job is at rest: tidy up, and wait for a change of its spec, or for its end of life."""
        await self.worked()
        place, seconds = self._place, None
        if self.phase in TERMINAL:
            status = self._store.status
            if not status.cleaned and self._backend is not None and job is not None:
                await self._backend.children.release(job)
                await self._store.write(status.model_copy(update={"cleaned": True}))
            # A refused spec has a time to live too.
            ttl = json.loads(unpacked(self._spec)).get("ttlSecondsAfterFinished")
            if ttl is not None and status.finished is not None:
                seconds = max(0.0, status.finished + ttl - place.clock())
            del status  # the rest may be long
        try:
            await asyncio.wait_for(self._changed.wait(), seconds)
        except TimeoutError:
            self._say(logging.INFO, "deleted: ttlSecondsAfterFinished is over")
            metadata = self._metadata
            await place.api.delete(JOBS, metadata["namespace"], metadata["name"], uid=metadata["uid"])
            await self._changed.wait()

    # What the reconciler tells.

    def heard(self, event: PodEvent) -> None:
        """As a listener."""

    def planned(self, before: JobStatus, plan: Plan) -> None:
        """As a listener."""
        self._note(before, plan.status)

    def trouble(self, action: Action, reason: str) -> None:
        """As a listener."""
        self._say(logging.WARNING, f"{action}: {reason}; will try again")

    def _note(self, before: JobStatus, after: JobStatus) -> None:
        self.news(before, after)()

    def news(self, before: JobStatus, after: JobStatus) -> Callable[[], None]:
        """Tells of ``after``, of which no more is kept until then than what is new in it."""
        place, counts, new = self._place, list(self._place.metrics.counts(before, after)), notes(before, after)

        def tell() -> None:
            for count in counts:
                count()
            for note in new:
                self._say(logging.WARNING if note.warning else logging.INFO, f"{note.reason}: {note.message}")
                place.notebook.post(self._metadata, note, place.clock())

        return tell

    def _complain(self, error: SpecError) -> str:
        """The first line of ``error``, after it was told once."""
        text = error.lines[0]
        if text != self._complaint and self._store.status.started is not None:
            note = Note("ChangeRefused", f"the job goes on as it was: {text}", warning=True)
            self._place.notebook.post(self._metadata, note, self._place.clock())
            self._say(logging.WARNING, note.message)
        self._complaint = text
        return text

    @property
    def _extra(self) -> dict[str, Any]:
        return {"job": (self._metadata["namespace"], self._metadata["name"])}

    async def _job(self) -> LiveMigrationJob:
        """The job as its object says; a large one is read in one round of the loop and checked in another. Raises SpecError."""
        self._unread = False
        metadata, spec, long = self._metadata, self._spec, is_packed(self._spec)
        async with self._place.large_reads.taken() if long else nullcontext():
            await turn(long=long)
            job = read_job({"metadata": metadata, "spec": json.loads(unpacked(spec))})
            if long:
                await turn(long=True)
            return with_kept_template(checked_job(job, self._place.settings), spec)

    def _take(self, body: Mapping[str, Any]) -> None:
        """Keep what is read of the job's object: not its status, which is kept elsewhere."""
        metadata, spec = body["metadata"], body.get("spec") or {}
        self._request = move_request(metadata)
        self._metadata = kept_metadata(metadata)
        self._spec = packed_spec(spec)  # as text, which is small: it is seldom read
        shards = (spec.get("dataParallel") or {}).get("shards", 1)
        self._shared = isinstance(shards, int) and shards > 1

    def _say(self, level: int, text: str) -> None:
        log.log(level, "%s", text, extra=self._extra)


def _is_refused(error: Exception) -> bool:
    return isinstance(error, ApiError) and 400 <= error.status < 500


class MeasuredReconciler(Reconciler):
    """A reconciler that counts its passes and their time, and waits for its turn to make a job's objects."""

    def __init__(self, backend: KubernetesBackend, listener: JobTask, store: StatusStore, place: Place) -> None:
        super().__init__(backend, listener, place.clock, REST_SECONDS, START_SECONDS)
        self._kubernetes = backend
        self._task = listener
        self._store = store
        self._place = place
        self._started = False
        self._passes = Budget(PASSES_AT_ONCE, PASS_SECONDS)
        self._stuck = False

    async def step(self) -> Pass:
        """As the base says."""
        if (wait := self._passes.wait(time.monotonic())) > 0:
            await asyncio.sleep(wait)
        self._passes.take(time.monotonic())
        if self._stuck and not self._task.leaving:
            await self._place.stuck.wait()
        await self._task.renew()
        await self.turn()
        self._started = self._started or self._store.status.started is not None
        if self._started:
            return await self._measured()
        starts = self._place.large_starts if is_large(self._kubernetes.job) else self._place.starts
        async with starts.taken():
            return await self._measured()

    def looking(self) -> AbstractAsyncContextManager[None]:
        """As the base says."""
        return self._place.large_looks.taken() if self._kubernetes.sees_much else nullcontext()

    async def turn(self) -> None:
        """As the base says."""
        await turn()

    def telling(self, before: JobStatus, made: Plan) -> Callable[[], None]:
        """As the base says."""
        return self._task.news(before, made.status)

    def kept(self, made: Plan) -> Pass:
        """As the base says."""
        self._stuck = is_stuck(made.status, self._place.clock())
        return super().kept(made)

    async def _measured(self) -> Pass:
        begin = time.monotonic()
        made = await super().step()
        await self._task.worked()
        self._place.metrics.pass_seconds.observe(time.monotonic() - begin)
        self._place.metrics.passes.labels("done").inc()
        return made
