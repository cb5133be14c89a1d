"""The local backend: one job on this machine, one agent process a rank."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp

from lmj_api.clock import steady_time
from lmj_api.layout import Layout
from lmj_api.names import pod_name, standby_name
from lmj_api.protocol import Event, EventKind
from lmj_api.spec.job import LiveMigrationJob
from lmj_api.spec.network import Encryption
from lmj_api.status import JobStatus, Phase
from lmj_operator.backend.agent_client import AgentClient, AgentError
from lmj_operator.backend.ages import by_own_clock
from lmj_operator.backend.caller import Caller
from lmj_operator.backend.local.pod import LocalPod, PodPlace, agent_command, grace_of
from lmj_operator.backend.local.store import RunStore
from lmj_operator.backend.port import ActionError, PodEvent
from lmj_operator.backend.signing_key import SigningKey
from lmj_operator.backend.telling import Call, Telling
from lmj_operator.plan import (
    Action,
    CreatePod,
    DeletePod,
    EnlistPod,
    Observed,
    PodObserved,
    PodPhase,
    StartWorker,
)

Command = Callable[[PodPlace, Path, str], list[str]]
"""From a pod's place, the job's file and the public key that its agent is to trust to the command line of that."""

ADDRESS_POLL_SECONDS = 0.05
RECONNECT_SECONDS = 0.2


class LocalBackend:
    """Pods as process groups. Use it in ``async with``: leaving it ends every process."""

    def __init__(self, job: LiveMigrationJob, store: RunStore, status: JobStatus, command: Command = agent_command) -> None:
        self._job = job
        self._store = store
        self.status = status
        """As it was written last."""
        self._command = command
        self._layout = Layout.of(job.spec)
        self._pods: dict[str, LocalPod] = {}
        self._watchers: dict[str, asyncio.Task[None]] = {}
        self._events: asyncio.Queue[PodEvent | None] = asyncio.Queue()
        self._session: aiohttp.ClientSession | None = None
        self._key = SigningKey.generate()
        self._telling = Telling()
        self._stored = self._told_stored = False
        self.interrupted = False
        """Set when the person at the terminal asks to leave."""

    async def __aenter__(self) -> "LocalBackend":
        self._store.write_key(self._key.pem())
        self._store.write_scale(None)
        self._store.write_job(self._job)
        # Loopback only: a proxy from the environment must not see these calls.
        self._session = aiohttp.ClientSession(trust_env=False, cookie_jar=aiohttp.DummyCookieJar())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def observe(self) -> Observed:
        """As the port says."""
        self._scale()
        pods = await asyncio.gather(*(self._look(pod) for pod in list(self._pods.values())))
        return Observed(
            name=self._job.metadata.name,
            spec=self._job.spec,
            status=self.status,
            pods=tuple(pods),
            run=self._job.metadata.run,
            generation=self._job.metadata.generation,
            interrupted=self.interrupted,
            move_request=self._store.read_request(),
            one_node=True,
        )

    def _scale(self) -> None:
        """Take up numbers of replicas and stages that were asked for. What the job cannot have was refused by who was asked."""
        wanted, spec = self._store.read_scale(), self._job.spec
        replicas, stages = wanted.replicas or spec.data_parallel.replicas, wanted.stages or spec.pipeline.stages
        if (replicas, stages) == (spec.data_parallel.replicas, spec.pipeline.stages):
            return
        with contextlib.suppress(ValueError):
            self._job = self._job.model_copy(update={"spec": spec.scaled(replicas, stages)})
            self._store.write_job(self._job)

    async def write_status(self, status: JobStatus) -> None:
        """As the port says."""
        try:
            self._store.write_status(status)
        except OSError as error:
            if not self._stored:
                raise
            self._store.refuse()
            if self._told_stored:
                text = f"{self._store.status_file} cannot be written: {error.strerror}; training goes on"
                self._events.put_nowait(PodEvent("", 0, Event(time=steady_time(), kind=EventKind.WARNING, message=text)))
            # Pods end with this process, so nobody else acts on what is stored; and to end a run because of it would lose what it has in memory.
            self._told_stored = False
        else:
            self._stored = self._told_stored = True
        self.status = status

    async def apply(self, action: Action) -> None:
        """As the port says."""
        match action:
            case CreatePod(rank, serial, cut=cut):  # one node: none to avoid
                await self._create(rank, serial, self._job.cut_into(cut))
            case DeletePod(name):
                await self._delete(name)
            case EnlistPod():
                pass  # no pod has labels here
            case _:
                await self._tell(action.pod, self._telling.call_of(action))
                if isinstance(action, StartWorker) and action.rank is not None and action.pod in self._pods:
                    self._pods[action.pod].rank = action.rank

    async def events(self) -> AsyncIterator[PodEvent]:
        """As the port says."""
        while (event := await self._events.get()) is not None:
            yield event

    async def close(self) -> None:
        """End every pod at once and for good."""
        for task in self._watchers.values():
            task.cancel()
        await asyncio.gather(*self._watchers.values(), return_exceptions=True)
        self._watchers.clear()
        for pod in self._pods.values():
            pod.kill()
        await asyncio.gather(*(pod.process.wait() for pod in self._pods.values()))
        self._pods.clear()
        if self._session is not None:
            await self._session.close()
            self._session = None
        self._events.put_nowait(None)

    async def _look(self, pod: LocalPod) -> PodObserved:
        agent, asked = None, steady_time()
        client = self._client(pod)
        if pod.exit_code is None and client is not None:
            with contextlib.suppress(AgentError):
                agent = by_own_clock(await client.state(), 0.0, steady_time())
        if agent is not None:
            pod.worker_pid = agent.worker.pid or pod.worker_pid
            pod.unreachable_since = None
        elif pod.unreachable_since is None:
            pod.unreachable_since = asked
        return PodObserved(
            name=pod.place.name,
            rank=pod.place.rank,
            serial=pod.place.serial,
            phase=PodPhase.RUNNING if pod.exit_code is None else PodPhase.GONE,
            created=pod.created,
            node="localhost",
            exit_code=pod.exit_code,
            exit_message=pod.exit_message,
            agent=agent,
            unreachable_since=pod.unreachable_since,
            cut=pod.cut,
            leaves=agent is not None and agent.leaving and not agent.draining,
        )

    def _client(self, pod: LocalPod) -> AgentClient | None:
        address = pod.address
        if self._session is None or address is None:
            return None
        view = self.status.view
        return AgentClient(self._session, address, pod.caller, view.number if view is not None else 0)

    async def _create(self, rank: int | None, serial: int, job: LiveMigrationJob) -> None:
        owner = job.metadata.name
        name = standby_name(owner, serial) if rank is None else pod_name(owner, rank, serial)
        if name in self._pods:
            return
        behind = trains_without(self.status, rank)
        log, grace = self._layout.logs / f"{name}.log", grace_of(job.spec)
        relayed = job.spec.network.encryption is Encryption.REQUIRED and sys.platform == "linux"
        place = PodPlace(name, rank, serial, self._store.pods / name, log, behind, grace, relayed)
        try:
            caller = Caller(self._key, job.metadata.uid or "", place.uid)
            pod = await LocalPod.start(place, job, self._command(place, place.job_file, self._key.public), caller)
        except OSError as error:
            raise ActionError(f"pod {name} cannot be started: {error}") from error
        self._pods[name] = pod
        self._watchers[name] = asyncio.create_task(self._watch(pod))

    async def _delete(self, name: str) -> None:
        pod = self._pods.get(name)
        if pod is None:
            return
        await pod.delete()
        watcher = self._watchers.pop(name, None)
        if watcher is not None:
            watcher.cancel()
            await asyncio.gather(watcher, return_exceptions=True)
        self._pods.pop(name, None)

    async def _tell(self, name: str, call: Call) -> None:
        pod = self._pods.get(name)
        client = self._client(pod) if pod is not None else None
        if client is None:
            raise ActionError(f"pod {name} does not listen")
        try:
            await call(client)
        except AgentError as error:
            raise ActionError(f"pod {name}: {error}") from error

    async def _watch(self, pod: LocalPod) -> None:
        """Pass on the agent's events while it lives, and say when it is gone."""
        listener = asyncio.create_task(self._listen(pod))
        try:
            await pod.process.wait()
        finally:
            listener.cancel()
            await asyncio.gather(listener, return_exceptions=True)
        self._events.put_nowait(PodEvent(pod.place.name, pod.rank, None))

    async def _listen(self, pod: LocalPod) -> None:
        # A file is polled, because there is no portable way to wait for one; the wait ends with the agent's process.
        while (client := self._client(pod)) is None:  # noqa: ASYNC110
            await asyncio.sleep(ADDRESS_POLL_SECONDS)
        self._events.put_nowait(PodEvent(pod.place.name, pod.rank, None))
        after = 0
        while True:
            try:
                async for event in client.events(after):
                    after = max(after, event.seq)
                    self._events.put_nowait(PodEvent(pod.place.name, pod.rank, event))
            except AgentError:
                # The state says why, if it matters: the reconciler asks for it. Here only the news is taken up again.
                self._events.put_nowait(PodEvent(pod.place.name, pod.rank, None))
            await asyncio.sleep(RECONNECT_SECONDS)


def trains_without(status: JobStatus, rank: int | None) -> bool:
    """Whether the job trains, and ``rank`` is none of those that do: it is to join them."""
    view = status.view
    return rank is not None and status.phase is Phase.RUNNING and view is not None and all(m.rank != rank for m in view.members)
