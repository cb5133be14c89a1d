"""The Kubernetes backend: one job, a pod a rank. What it sees comes from the watches and from the agents themselves."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial

import aiohttp

from lmj_api.clock import steady_time
from lmj_api.protocol import AgentState, WorkerPhase
from lmj_api.spec import LiveMigrationJob
from lmj_api.spec.migration import MigrationStrategy
from lmj_api.spec.network import PolicyMode
from lmj_api.status import JobStatus, Phase, StandbyState
from lmj_api.topology import Topology
from lmj_operator.backend.agent_client import AgentClient, AgentError
from lmj_operator.backend.budget import Budget
from lmj_operator.backend.caller import Caller
from lmj_operator.backend.channel import Channel
from lmj_operator.backend.event_stream import Excess, slowly
from lmj_operator.backend.kubernetes import labels
from lmj_operator.backend.kubernetes.agents import Agents
from lmj_operator.backend.kubernetes.api import Api, ApiError
from lmj_operator.backend.kubernetes.build.grace import grace_seconds
from lmj_operator.backend.kubernetes.build.kept_template import is_large
from lmj_operator.backend.kubernetes.build.pod import build_pod, node_selector
from lmj_operator.backend.kubernetes.cache import Cache, Key, Object
from lmj_operator.backend.kubernetes.canaries import Canaries, Door
from lmj_operator.backend.kubernetes.children import Children
from lmj_operator.backend.kubernetes.creation import Creation
from lmj_operator.backend.kubernetes.keys import Keys
from lmj_operator.backend.kubernetes.labels import AGENT_PORT, DIGEST
from lmj_operator.backend.kubernetes.pod_labels import PodLabels
from lmj_operator.backend.kubernetes.pod_state import (
    NodeState,
    is_started,
    misplaced,
    owner_uid,
    pod_address,
    pod_observed,
    with_notice,
)
from lmj_operator.backend.kubernetes.pod_tokens import PodTokens
from lmj_operator.backend.kubernetes.resources import PODS
from lmj_operator.backend.kubernetes.settings import Settings
from lmj_operator.backend.kubernetes.sightings import Sightings
from lmj_operator.backend.kubernetes.start_trouble import StartTrouble
from lmj_operator.backend.kubernetes.status_store import StatusStore
from lmj_operator.backend.kubernetes.trainer_image import joining
from lmj_operator.backend.port import ActionError, PodEvent
from lmj_operator.backend.rounds import turn
from lmj_operator.backend.telling import Call, Telling
from lmj_operator.backend.turns import Turns
from lmj_operator.plan import (
    Action,
    CreatePod,
    DeletePod,
    EnlistPod,
    Observed,
    PodObserved,
    PodPhase,
)
from lmj_operator.plan.membership.looking import SILENT_SECONDS
from lmj_operator.plan.report.phases import TERMINAL

log = logging.getLogger(__name__)

CHILDREN_AGAIN_SECONDS = 15.0
"""What could not be put right of the job's other objects is tried again after so long."""

SLOW_ANSWER_SECONDS = 0.05
"""Agents that have not answered by then are waited for on and on, as long as their pods are there."""

LAST_WORD_SECONDS = 1.0
"""The agent of a pod that is being deleted is waited for so long: it may have its rank moved yet, or its machine be gone."""

TOLD_SECONDS = 5.0
"""A pod that is deleted hears of it within so long, or has less time than its agent thinks."""

DELETE_AGAIN_SECONDS = 10.0
"""A deletion that the watch did not report by then is asked for again."""

KEYLESS = "the operator has no key that its agent obeys"
"""Why such a pod is replaced: it is of a version before, or its key was taken away."""


class KubernetesBackend:
    """Pods of a cluster."""

    def __init__(
        self,
        job: LiveMigrationJob,
        api: Api,
        cache: Cache,
        store: StatusStore,
        session: aiohttp.ClientSession,
        settings: Settings,
        keys: Keys,
        lists: Budget,
        knocks: Turns,
        clock: Callable[[], float] = steady_time,
        excess: Excess = slowly,
    ) -> None:
        """``lists``: of events, by all jobs. ``knocks``: at canaries, by all jobs. ``excess``: before more is read than any agent tells."""
        self.job = job
        """The job; its watcher sets it again when its spec changes."""
        self.deleted = False
        """Set when the job is being deleted."""
        self.problem: str | None = None
        """Why a change of the spec is not followed."""
        self.move_request: str | None = None
        """Which ranks a person asked to move."""
        self.children = Children(api, cache.children, settings, clock)
        self._api = api
        self._cache = cache
        self._store = store
        self._session = session
        self._settings = settings
        self._keys = keys
        self._tokens = PodTokens(api, clock)
        self._callers: dict[str, Caller] = {}
        """By uid of the pod."""
        self._clock = clock
        self._excess = excess
        self._labels = PodLabels(api, cache, clock)
        self._trouble = StartTrouble(api, lists, clock)
        self._creation = Creation(api, cache, self.children, self._trusting(settings), clock)
        self._children_not_before = 0.0
        self._sightings = Sightings(clock)
        self._unreachable: dict[str, float] = {}
        self._gone: set[str] = set()
        """Names of pods that are not there any more: no name is used twice."""
        self._told_to_go: dict[tuple[str, bool], float] = {}
        self._let_go_at: dict[str, float] = {}
        self._digests: dict[str, tuple[LiveMigrationJob, Settings, str]] = {}
        """Of pods that wait, by their names: what they would be made as, of which job, with which settings."""
        self._there: set[str] = set()
        """Names of pods that were there in the last pass, and not about to go."""
        self._agents = Agents(settings.status_seconds, clock)
        news = self._agents.news
        self._canaries = Canaries(knocks, lambda pod: news.put(PodEvent(pod, None, None)))
        self._telling = Telling()
        self._view = 0
        """Number of the newest view that is stored."""

    @property
    def key(self) -> Key:
        """Namespace and name of the job."""
        return self.job.metadata.namespace or "", self.job.metadata.name

    async def observe(self) -> Observed:
        """As the port says. Raises as :meth:`write_status` does."""
        await self._store.flush()
        # One that is to be replaced binds nobody to its version.
        heeded = [pod for pod in self._pods() if self._keys.of(pod["trust"]) is not None]
        self._creation.settings = joining(self._trusting(self._settings), heeded)
        with contextlib.suppress(ActionError):
            await self._creation.retry(self.job)
        status = self._store.status
        self._telling = Telling()  # what was told in the pass before is of no use any more
        self._view = status.view.number if status.view is not None else 0
        await self._keep_children(status)
        await self._look_for_missing(status)
        await self._labels.keep(self.key, self._topology, self._pods(), status)
        pods = self._pods()
        self._there = {pod["metadata"]["name"] for pod in pods if "deletionTimestamp" not in pod["metadata"]}
        known = _Stored.of(status)
        looked = await self._trouble.told(self.key, [(pod, await self._look(pod, known)) for pod in pods])
        answered = await self._with_agents(looked, known)
        seen = [self._with_canary(pod, each) for (pod, _), each in zip(looked, answered, strict=True)]
        self._forget_others(pods)
        there = {pod.name for pod in seen}
        unmade = [u.observed(name) for name, u in self._creation.unmade.items() if name not in there]
        asked = self.move_request is not None and self.move_request != status.move_request
        return Observed(
            name=self.job.metadata.name,
            spec=self.job.spec,
            status=status,
            pods=(*seen, *unmade),
            run=self.job.metadata.run,
            generation=self.job.metadata.generation,
            deleted=self.deleted,
            problem=self.problem,
            move_request=self.move_request,
            nodes=self._cache.node_names() if asked else frozenset(),
            networked=True,
        )

    @property
    def sees_much(self) -> bool:
        """Whether what is observed is large, as far as is known."""
        return self._agents.say_much

    def write_status(self, status: JobStatus) -> Awaitable[None]:
        """As the port says; progress alone may be stored a little later. Raises ApiError, StatusConflict, JobGone."""
        return self._wrote(self._store.write(status), status.view.number if status.view is not None else 0)

    async def _wrote(self, stored: Awaitable[None], view: int) -> None:
        await stored
        self._view = view

    async def apply(self, action: Action) -> None:
        """As the port says."""
        match action:
            case CreatePod():
                await self._creation.create(self.job, action)
            case DeletePod(name):
                await self._delete(name)
            case EnlistPod(name, rank, serial):
                await self._enlist(name, rank, serial)
            case _:
                await self._tell(action.pod, self._telling.call_of(action))

    async def events(self) -> AsyncIterator[PodEvent]:
        """As the port says."""
        while (event := await self._agents.news.get()) is not None:
            yield event

    async def close(self) -> None:
        """Stop listening. The pods go on: they need no operator."""
        await self._canaries.close()
        await self._agents.close()

    def _pods(self) -> list[Object]:
        """Pods of this very job: one of the same name that was deleted may have left some that are not gone yet."""
        return [pod for pod in self._cache.pods(self.key) if owner_uid(pod) == self.job.metadata.uid]

    def _pod(self, name: str) -> Object | None:
        """The one of them that has this name."""
        pod = self._cache.pod(self.key, name)
        return pod if pod is not None and owner_uid(pod) == self.job.metadata.uid else None

    def _trusting(self, settings: Settings) -> Settings:
        """``settings`` for the next pod."""
        return replace(settings, trust=(self._keys.current.public,))

    async def _keep_children(self, status: JobStatus) -> None:
        """The job's other objects are as its spec wants them, also when no pod is made for that."""
        now = self._clock()
        # Before there are none, and behind it there are none any more.
        if status.started is None or status.phase in TERMINAL or self.deleted or now < self._children_not_before:
            return
        try:
            await self.children.keep(self.job)
        except ApiError as error:
            # Pods are looked after all the same.
            self._children_not_before = now + CHILDREN_AGAIN_SECONDS
            log.warning("an object of the job is not as it should be: %s; will try again", error, extra={"job": self.key})

    async def _look_for_missing(self, status: JobStatus) -> None:
        """A pod that the status names and the cache lacks is looked for once: what a watch begins with may be old news.

        So is one that was there and went without a word: to a watch of a label, one that lost it is gone.
        """
        known = {pod["metadata"]["name"] for pod in self._pods()} | self._creation.unmade.keys()
        named = {rank.pod for rank in status.ranks if rank.pod is not None}
        named |= {standby.pod for standby in status.standbys if standby.state is not StandbyState.WANTED}
        for name in sorted((named - self._gone | self._there) - known):
            pod = await self._api.get(PODS, self.key[0], name)
            if pod is not None and owner_uid(pod) == self.job.metadata.uid:
                self._cache.add_pod(pod)
            else:
                self._gone.add(name)

    async def _look(self, pod: Object, stored: "_Stored") -> PodObserved:
        """The pod without what its agent says."""
        node = self._node(pod)
        seen = self._by_own_clock(pod, pod_observed(pod, node, self.job.spec.migration.on_taints))
        seen = self._may_stay(pod, node, seen, stored)
        # What trusts nobody may have been made so by a webhook, and another would be too: it is replaced when it runs, later and later.
        if self._keys.of(pod["trust"]) is None and (pod["trust"] or seen.phase is not PodPhase.PENDING):
            return _keyless(seen, node)
        if node is not None and seen.phase is PodPhase.RUNNING:
            selector = node_selector(self.job.cut_into(seen.cut), stored.rank(seen))
            seen = replace(seen, misplaced=misplaced(pod, node, selector))
        return replace(seen, outdated=True) if await self._outdated(pod, seen) else seen

    async def _with_agents(self, pods: list[tuple[Object, PodObserved]], stored: "_Stored") -> list[PodObserved]:
        """``pods`` with what the agents say; those of which nothing is known are asked at the same time."""
        known = {seen.name: await self._agents.recent(_agent_key(pod)) for pod, seen in pods if self._is_asked(pod, seen, stored)}
        asked = [(pod, seen) for pod, seen in pods if seen.name in known and known[seen.name] is None]
        at = self._clock()
        if asked:
            known |= await self._answers(asked)
        return [self._with_agent(pod, seen, known[seen.name], at) if seen.name in known else seen for pod, seen in pods]

    def _is_asked(self, pod: Object, seen: PodObserved, stored: "_Stored") -> bool:
        """Whether the agent of ``pod`` is asked: it runs, or its rank may have led and may save a checkpoint before it ends."""
        if seen.keyless:
            return False
        if seen.phase is not PodPhase.TERMINATING:
            return seen.phase is PodPhase.RUNNING
        rank = stored.rank(seen)
        if (
            rank is None
            or self.job.cut_into(seen.cut).spec.topology.stage(rank) != 0
            or self.deleted
            or stored.phase in TERMINAL
            or not is_started(pod)
        ):
            return False
        since = self._unreachable.get(pod["metadata"]["uid"])
        # Every pass would wait for it.
        return since is None or self._clock() - since <= SILENT_SECONDS

    async def _answers(self, asked: list[tuple[Object, PodObserved]]) -> dict[str, AgentState | None]:
        """What each agent says, by its pod's name; None: it does not answer, or its pod went meanwhile, which is news that waits."""
        tasks = {asyncio.create_task(self._ask(pod, seen)): pod for pod, seen in asked}
        end = time.monotonic() + LAST_WORD_SECONDS
        try:
            pending = set(tasks)
            while pending:
                _, pending = await asyncio.wait(pending, timeout=SLOW_ANSWER_SECONDS)
                late = time.monotonic() > end
                for task in pending:
                    if not self._is_there(tasks[task], late):
                        task.cancel()
        finally:
            for task in tasks:
                task.cancel()
        return {pod["metadata"]["name"]: None if task.cancelled() else task.result() for task, pod in tasks.items()}

    def _is_there(self, pod: Object, late: bool) -> bool:
        """Whether the watch has not told since that ``pod`` goes; of one that went before, whether it is not gone, or (``late``) goes."""
        now = self._cache.pod(self.key, pod["metadata"]["name"])
        if now is None or now["metadata"]["uid"] != pod["metadata"]["uid"]:
            return False
        return "deletionTimestamp" not in now["metadata"] or ("deletionTimestamp" in pod["metadata"] and not late)

    def _may_stay(self, pod: Object, node: NodeState | None, seen: PodObserved, stored: "_Stored") -> PodObserved:
        """``seen``, as one that runs while it is being deleted when its rank can move meanwhile: it has all the time that its agent thinks.

        Not where the node is about to be taken away too: nobody knows how soon.
        """
        if seen.phase is not PodPhase.TERMINATING or seen.name not in stored.pods or self.deleted:
            return seen
        metadata = pod["metadata"]
        has_time = (metadata.get("deletionGracePeriodSeconds") or 0) >= grace_seconds(self.job, self._settings)
        moves = self.job.spec.migration.strategy is MigrationStrategy.LIVE
        doomed = node is not None and any(taint.effect == "NoExecute" for taint in node.taints)
        stays = moves and has_time and not doomed and self._left(pod) > 0
        return replace(seen, phase=PodPhase.RUNNING) if stays else seen

    async def _ask(self, pod: Object, seen: PodObserved) -> AgentState | None:
        client = self._client(pod)
        return await self._agents.state(_agent_key(pod), seen.name, seen.rank, client) if client is not None else None

    def _with_agent(self, pod: Object, seen: PodObserved, agent: AgentState | None, asked: float) -> PodObserved:
        """``seen``, which runs or ends, with what its agent said when it was ``asked``, or that it did not answer."""
        uid = pod["metadata"]["uid"]
        if "deletionTimestamp" in pod["metadata"]:
            idle = agent is not None and not agent.leaving and agent.worker.phase is not WorkerPhase.RUNNING
            if seen.phase is PodPhase.TERMINATING or agent is None or agent.draining or idle:
                seen = replace(seen, phase=PodPhase.TERMINATING)
            else:
                # Where it was told late (a hook ran before), too little may be left for both.
                in_time = agent.staying or self._left(pod) > grace_seconds(self.job, self._settings) - TOLD_SECONDS
                seen = replace(seen, leaves=agent.leaving and in_time)
        if agent is not None:
            self._unreachable.pop(uid, None)
            return with_notice(replace(seen, agent=agent))
        since = self._unreachable.setdefault(uid, asked)
        return replace(seen, unreachable_since=since, dark=self._agents.is_dark(_agent_key(pod)))

    def _with_canary(self, pod: Object, seen: PodObserved) -> PodObserved:
        """``seen`` with what is known of the pod's canary, which is knocked at when that is due."""
        key = _agent_key(pod)
        listens = seen.phase is PodPhase.RUNNING and seen.agent is not None and seen.agent.canary
        if listens and self._canaries.is_due(key):
            address, client = pod_address(pod), self._client(pod)
            if address is not None and client is not None:
                awaited = self.job.spec.network.policy is PolicyMode.REQUIRED
                self._canaries.visit(Door(key, seen.name, address.strip("[]"), client.state, awaited))
        enforced = self._canaries.enforced(key)
        return seen if enforced is None else replace(seen, enforced=enforced)

    async def _outdated(self, pod: Object, seen: PodObserved) -> bool:
        """Whether nothing runs in the pod yet, and nothing will on its node, or the template says by now that it must be another."""
        if seen.phase is not PodPhase.PENDING:
            return False
        if self._is_lost(self._node(pod)):
            return True
        if (self.job.metadata.generation or 1) == 1:
            return False  # the spec is as it was at first
        made_as = (pod["metadata"].get("annotations") or {}).get(DIGEST)
        return made_as is not None and made_as != await self._digest(seen)

    async def _digest(self, seen: PodObserved) -> str:
        """What a pod in the place of ``seen`` would be made as by now."""
        known, settings = self._digests.get(seen.name), self._creation.settings
        if known is None or known[0] is not self.job or known[1] != settings:
            # A template may be large, a job have many pods, and all of them wait.
            await turn(long=is_large(self.job))
            pod = build_pod(self.job.cut_into(seen.cut), settings, seen.rank, seen.serial)
            known = self._digests[seen.name] = self.job, settings, pod["metadata"]["annotations"][DIGEST]
        return known[2]

    def _by_own_clock(self, pod: Object, seen: PodObserved) -> PodObserved:
        uid = pod["metadata"]["uid"]
        waits = seen.waits
        if waits is not None:
            waits = replace(waits, since=self._sightings.since(uid, "waits", (waits.reason, waits.since)))
        return replace(seen, created=self._sightings.since(uid, "made", seen.created), waits=waits)

    def _left(self, pod: Object) -> float:
        """Seconds that the pod, which is being deleted, has left for that."""
        metadata = pod["metadata"]
        told = self._sightings.since(metadata["uid"], "deleted", metadata["deletionTimestamp"])
        return told + float(metadata.get("deletionGracePeriodSeconds") or 0) - self._clock()

    def _node(self, pod: Object) -> NodeState | None:
        """The node of the pod."""
        node = self._cache.node_of(pod)
        if node is None:
            return None
        return replace(node, since=self._sightings.since(pod["metadata"]["uid"], "node", (node.ready, node.since)))

    def _is_lost(self, node: NodeState | None) -> bool:
        """Whether ``node`` is gone, or has not been ready for as long as a pod there is worth waiting for."""
        limit = self.job.spec.recovery.node_gone_seconds
        return node is not None and (node.gone or (not node.ready and self._clock() - node.since >= limit))

    def _client(self, pod: Object) -> AgentClient | None:
        """None: it has no address yet, or none of the operator's keys is one that its agent obeys."""
        address, caller = pod_address(pod), self._caller(pod)
        if address is None or caller is None:
            return None
        return AgentClient(self._session, f"{address}:{AGENT_PORT}", caller, self._view, self._excess)

    def _caller(self, pod: Object) -> Caller | None:
        key, uid = self._keys.of(pod["trust"]), pod["metadata"]["uid"]
        if key is None:
            return None
        known = self._callers.get(uid)
        if known is None or known.key.public != key.public:
            channel = Channel(partial(self._tokens.check, uid)) if pod["token"] else None
            known = self._callers[uid] = Caller(key, self.job.metadata.uid or "", uid, channel)
        return known

    async def _delete(self, name: str) -> None:
        self._creation.forget(name)
        pod = self._pod(name)
        if pod is None:
            return
        uid, now = pod["metadata"]["uid"], self._clock()
        leaving = "deletionTimestamp" in pod["metadata"]
        # Nobody is left on such a node to say that the pod ended: the API server would wait for that for ever.
        force = self._is_lost(self._node(pod))
        if leaving and not force:
            await self._let_go(pod)
            return
        if now - self._told_to_go.get((uid, force), 0.0) < DELETE_AGAIN_SECONDS:
            return
        try:
            there = await self._api.delete(PODS, self.key[0], name, uid=uid, grace=0 if force else None)
        except ApiError as error:
            raise ActionError(str(error)) from error
        self._told_to_go[uid, force] = now
        if not there:
            self._cache.drop_pod(pod)

    async def _let_go(self, pod: Object) -> None:
        """A pod that goes may have been told to stay for its rank, which is not its any more. It goes by itself too, only later."""
        uid, now = pod["metadata"]["uid"], self._clock()
        if now - self._let_go_at.get(uid, 0.0) < DELETE_AGAIN_SECONDS:
            return
        self._let_go_at[uid] = now
        client = self._client(pod)
        if client is not None:
            try:
                await client.drain()
            except AgentError as error:
                log.debug("pod %s goes without a word: %s", pod["metadata"]["name"], error)

    async def _enlist(self, name: str, rank: int, serial: int) -> None:
        """The labels say what the pod is by now: budgets and people select by them."""
        pod = self._pod(name)
        if pod is None:
            return
        try:
            await self._labels.set(pod, labels.enlisted(self.job.metadata.name, self._topology(pod), rank, serial))
        except ApiError as error:
            raise ActionError(str(error)) from error

    def _topology(self, pod: Object) -> Topology:
        """Of the cut that it is of: what computes what in it."""
        return self.job.cut_into(pod["cut"]).spec.topology

    async def _tell(self, name: str, call: Call) -> None:
        pod = self._pod(name)
        try:
            client = self._client(pod) if pod is not None else None
            if client is None or pod is None:
                raise ActionError(f"pod {name} does not listen")
            await self._agents.tell(_agent_key(pod), client, call)
        except (AgentError, ApiError) as error:
            raise ActionError(f"pod {name}: {error}") from error

    def _forget_others(self, pods: list[Object]) -> None:
        keys = {_agent_key(pod) for pod in pods}
        self._agents.keep(keys)
        self._canaries.keep(keys)
        uids = {pod["metadata"]["uid"] for pod in pods}
        self._sightings.keep(uids)
        self._callers = {uid: caller for uid, caller in self._callers.items() if uid in uids}
        names = {pod["metadata"]["name"] for pod in pods}
        self._digests = {name: known for name, known in self._digests.items() if name in names}
        self._unreachable = {uid: since for uid, since in self._unreachable.items() if uid in uids}
        self._told_to_go = {key: at for key, at in self._told_to_go.items() if key[0] in uids}
        self._let_go_at = {uid: at for uid, at in self._let_go_at.items() if uid in uids}


@dataclass(frozen=True, slots=True)
class _Stored:
    """What is asked of the stored status for each pod."""

    phase: Phase
    pods: frozenset[str | None]
    """Those of the ranks."""
    promoted: dict[str, int]
    """The rank of each pod that began as a standby."""

    @classmethod
    def of(cls, status: JobStatus) -> "_Stored":
        return cls(status.phase, frozenset(rank.pod for rank in status.ranks), {p.pod: p.rank for p in status.promotions})

    def rank(self, seen: PodObserved) -> int | None:
        return self.promoted.get(seen.name, seen.rank)


def _keyless(seen: PodObserved, node: NodeState | None) -> PodObserved:
    """A pod that nobody can ask: before it runs another takes its place, and while it runs it is taken away, with its last checkpoint."""
    if seen.phase is PodPhase.PENDING:
        return replace(seen, outdated=True)
    if seen.phase not in (PodPhase.RUNNING, PodPhase.TERMINATING):
        return seen
    lives = node is not None and node.ready and not node.gone
    return replace(seen, phase=PodPhase.TERMINATING, disrupted=seen.disrupted or KEYLESS, keyless=lives)


def _agent_key(pod: Object) -> str:
    return f"{pod['metadata']['uid']} {pod_address(pod)}"
