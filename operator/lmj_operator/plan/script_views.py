"""The views of workers that hold no state: who is in the next one, when the one that runs is left for it, and what it waits for.

Every view begins the script anew, so one is worth a short wait: for who is about to be ready, and for who is still told to stop. And no
view begins while anybody who can be heard runs the script in an older one.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from lmj_api.protocol import WorkerPhase
from lmj_api.view import Member, Resume, View
from lmj_operator.plan.actions import Action, LeaveView, Pause
from lmj_operator.plan.failures.incidents import OF_REPLICAS, is_open
from lmj_operator.plan.membership.choice import ACCUSED_SECONDS, LEAVE_SECONDS
from lmj_operator.plan.membership.membership import (
    Identity,
    Membership,
    describe_members,
    identity,
    is_out,
    left,
    of_member,
    runs,
)
from lmj_operator.plan.observe.facts import RankFacts
from lmj_operator.plan.observe.lists import few, of_ranks
from lmj_operator.plan.observe.observed import Observed, PodObserved, PodPhase
from lmj_operator.plan.observe.times import epoch_seconds
from lmj_operator.plan.pods.wants import Want

JOIN_SECONDS = 5.0
"""Those that are ready wait so long for others that are about to be: all of them cost one restart of the script."""

KILL_SECONDS = 5.0
"""A member that was asked to stop in order has so long beyond what the script has to save; then it is told to leave at once."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The view that the ranks are to be in, and what they do for it."""

    membership: Membership
    actions: tuple[Action, ...] = ()
    due: tuple[float, ...] = ()
    """Seconds until something is due."""


@dataclass(frozen=True, slots=True)
class Group:
    """What is known of the ranks of a job whose workers hold nothing, and of its newest view."""

    observed: Observed
    ranks: tuple[RankFacts, ...]
    wanted: Mapping[int, Want]
    """What each rank needs, as decided in this pass."""
    newest: View | None
    left_since: float | None
    not_before: float
    """What was restarted waits until then."""
    now: float

    @property
    def save_seconds(self) -> float:
        """So long a script may take to save and end once it is asked to."""
        command = self.observed.spec.command
        return command.save_seconds if command is not None else 0.0

    @property
    def members(self) -> dict[str, Member]:
        """Of the newest view, by pod."""
        return {m.pod: m for m in self.newest.members} if self.newest is not None else {}

    def next_view(self) -> Choice:
        """The newest view while it holds, else one of all that are there."""
        newest = self.newest
        if newest is not None and self._holds(newest):
            return self._held(newest)
        at_work = self._at_work()
        if at_work:
            return self._until_left(at_work)
        ready = {f.rank: i for f in self.ranks if (i := self._may_join(f)) is not None}
        wait = self._wait(ready)
        if wait is not None:
            reason, due = wait
            return Choice(Membership(newest, False, reason), due=(due,) if due is not None else ())
        formed = [Member(rank=r, pod=pod, incarnation=worker, address=at) for r, pod, worker, at in ready.values()]
        reason = f"{describe_members(newest, formed)}; starts the script"
        resume = Resume(step=0, told_by=formed[0].rank)
        view = View(number=newest.number + 1 if newest else 1, members=formed, resume=resume, reason=reason)
        return Choice(Membership(view, True, reason))

    def broken_since(self) -> float | None:
        """When it was first known that the newest view is over; None: it is not, for all that is known."""
        if self.newest is None:
            return None
        number, ranks = self.newest.number, {m.rank for m in self.newest.members}
        told = [
            epoch_seconds(i.time)
            for i in self.observed.status.incidents
            if is_open(i) and i.kind not in OF_REPLICAS and i.view == number and i.rank in ranks
        ]
        times = [*told, *([self.left_since] if self.left_since is not None else [])]
        return min(min(times), self.now) if times else None

    def is_late(self) -> bool:
        """Whether the newest view is over for so long that who runs yet hangs."""
        since, limit = self.broken_since(), self.observed.spec.recovery.hang_timeout_seconds
        return since is not None and self.now - since > limit + self.save_seconds

    def is_asked(self) -> bool:
        """Whether the newest view is being left because somebody asked for it: then its processes save, and end by themselves."""
        if self.newest is None:
            return False
        number = self.newest.number
        for pod in self.observed.every_pod:
            if pod.name in self.members and pod.phase is not PodPhase.GONE:
                agent = pod.agent
                if pod.phase is PodPhase.TERMINATING or pod.leaves:
                    return True
                if agent is not None and (agent.draining or max(agent.pause, agent.handover) >= number):
                    return True
        return False

    def _is_paused(self) -> bool:
        """Whether the newest view was left for the next one."""
        agents = [pod.agent for pod in self.observed.every_pod if pod.name in self.members and pod.agent is not None]
        return self.newest is not None and any(max(agent.pause, agent.handover) >= self.newest.number for agent in agents)

    def _stays(self, facts: RankFacts) -> bool:
        """Whether the rank's pod is the one that it is to have, and may be in another view."""
        pod = facts.pod
        if pod is None or facts.agent is None or pod.outdated or facts.agent.draining:
            return False
        return self.wanted[facts.rank].serial == facts.serial

    def _may_join(self, facts: RankFacts) -> Identity | None:
        fresh = self.wanted[facts.rank].incarnation == facts.incarnation
        leaves = facts.pod is not None and facts.pod.leaves
        ready = self._stays(facts) and fresh and not leaves and facts.in_phase(WorkerPhase.READY)
        return identity(facts) if ready else None

    def _holds(self, newest: View) -> bool:
        """Whether all members are in ``newest``, or on their way into it."""
        pods = {pod.name: pod for pod in self.observed.every_pod}
        for member in newest.members:
            pod = pods.get(member.pod)
            if member.rank >= len(self.ranks):
                # The job has it no more, and it leaves with the others.
                if pod is None or pod.phase is PodPhase.GONE or is_out(member, pod, newest.number):
                    return False
                continue
            facts = self.ranks[member.rank]
            want = self.wanted[member.rank]
            if (want.serial, want.incarnation) != (facts.serial, facts.incarnation):
                return False
            silent = pod is not None and pod is facts.pod and pod.phase is PodPhase.RUNNING and pod.agent is None
            if silent:
                continue  # its agent may only be slow; that it is lost is a failure, and said as one
            if identity(facts) != of_member(member) or left(facts, newest):
                return False
        return True

    def _held(self, newest: View) -> Choice:
        """``newest`` runs, until it is left for one with others."""
        membership = Membership(newest, False, f"view {newest.number} holds")
        if self.is_asked() or not self._all_run(newest):
            return Choice(membership)
        fewer = [m.rank for m in newest.members if m.rank >= len(self.ranks)]
        inside = {m.rank for m in newest.members}
        outside = [f for f in self.ranks if f.rank not in inside]
        more = [f for f in outside if self._may_join(f) is not None]
        if not fewer and not more:
            return Choice(membership)
        since = [f.worker.since for f in more if f.worker is not None]
        due = min(since) + JOIN_SECONDS - self.now if since and not fewer else 0.0
        if due > 0 and any(self._is_about_to(f) for f in outside):
            return Choice(membership, due=(due,))
        first = next((f for m in newest.members if m.rank < len(self.ranks) for f in [self.ranks[m.rank]] if f.agent), None)
        return Choice(membership, (Pause(first.pod.name, newest.number),) if first is not None and first.pod is not None else ())

    def _all_run(self, newest: View) -> bool:
        """Whether those members that the job keeps are in ``newest``."""
        kept = [m for m in newest.members if m.rank < len(self.ranks)]
        return bool(kept) and runs(self.ranks, newest.model_copy(update={"members": kept}))

    def _is_about_to(self, facts: RankFacts) -> bool:
        """Whether its worker starts, in a pod that is there."""
        if not self._stays(facts) or (facts.pod is not None and facts.pod.leaves):
            return False
        return self._may_join(facts) is None and (facts.worker is None or facts.in_phase(WorkerPhase.STARTING))

    def _at_work(self) -> list[PodObserved]:
        """Pods in which the script may run, in a view that is over."""
        return [pod for pod in self.observed.every_pod if pod.phase is not PodPhase.GONE and self._may_run(pod)]

    def _may_run(self, pod: PodObserved) -> bool:
        if pod.keyless:
            return pod.name in self.members
        return pod.agent is not None and pod.agent.worker.phase is WorkerPhase.RUNNING

    def _until_left(self, at_work: list[PodObserved]) -> Choice:
        """All leave the newest view by themselves when one does; who was not asked to stop is told, and who does not in time."""
        assert self.newest is not None
        number = self.newest.number
        since = self.broken_since()
        left_over = 0.0
        if self._is_orderly():
            left_over = (since if since is not None else self.now) + self.save_seconds + KILL_SECONDS - self.now
        names = few([pod.name for pod in at_work])
        membership = Membership(self.newest, False, f"waits for {names} to leave view {number}")
        if left_over > 0:
            return Choice(membership, due=(left_over,))
        return Choice(membership, tuple(LeaveView(pod.name, number) for pod in at_work if not pod.keyless))

    def _is_orderly(self) -> bool:
        """Whether those that run yet may be about to save: nobody failed, or somebody asked."""
        if self.is_asked():
            return True
        for facts in self.ranks:
            member = self.members.get(facts.pod.name) if facts.pod is not None else None
            if member is None:
                continue
            agent = facts.agent
            if agent is not None and agent.worker.phase is WorkerPhase.EXITED:
                return False
            want = self.wanted[facts.rank]
            if max(want.incarnation, facts.incarnation) > member.incarnation and want.serial == facts.serial:
                return False
            if facts.worker is not None and facts.worker.lost_rank is not None and self.newest and left(facts, self.newest):
                return False
        return True

    def _wait(self, ready: Mapping[int, Identity]) -> tuple[str, float | None] | None:
        """What the next view waits for, and for how many seconds where nobody reports it; None: nothing."""
        least = self.observed.spec.data_parallel.min_replicas
        missing = [f for f in self.ranks if f.rank not in ready]
        again = [f.rank for f in missing if self._is_restarted(f)]
        if again:
            return f"waits for {of_ranks(again)} to be ready again", None
        goes_on = any(pod in self.members for _, pod, _, _ in ready.values())
        if not goes_on:
            # As the first view: all that have room.
            placed = [f.rank for f in missing if f.pod is None or not f.pod.waits_anywhere]
            if placed or len(ready) < max(1, least):
                return f"waits for {of_ranks(placed or [f.rank for f in missing])}", None
            return None
        if self.not_before > self.now and all(self._is_there(m) for m in self.members.values()):
            return "waits before the script is started again", self.not_before - self.now
        since = self.left_since
        if since is None:
            since = min((f.worker.since for f in self.ranks if f.rank in ready and f.worker is not None), default=self.now)
        coming = [f.rank for f in missing if self._is_about_to(f)]
        # Where the view was left for one that was ready, that one has waited since then.
        new = [f.worker.since for f in self.ranks if f.rank in ready and f.worker and f.pod and f.pod.name not in self.members]
        until = min([since, *(new if self._is_paused() else [])]) + JOIN_SECONDS
        if coming and self.now < until:
            return f"waits for {of_ranks(coming)}", until - self.now
        lost = {f.worker.lost_rank for f in self.ranks if f.worker is not None}
        for facts in missing:
            limit = since + (ACCUSED_SECONDS if facts.rank in lost else LEAVE_SECONDS)
            if self._is_silent(facts) and self.now < limit:
                return f"waits for {of_ranks([facts.rank])}", limit - self.now
        if len(ready) < least:
            return f"waits for {of_ranks([f.rank for f in missing])}: fewer than dataParallel.minReplicas {least} are ready", None
        return None

    def _is_restarted(self, facts: RankFacts) -> bool:
        """Whether the rank was in the newest view, and is to have another worker in the same pod."""
        if facts.pod is None or facts.pod.name not in self.members or not self._stays(facts) or facts.pod.leaves:
            return False
        return not facts.in_phase(WorkerPhase.READY) or self.wanted[facts.rank].incarnation > facts.incarnation

    def _is_silent(self, facts: RankFacts) -> bool:
        """Whether the rank was in the newest view, and its pod is there but does not answer."""
        pod = facts.pod
        if pod is None or pod.name not in self.members or self.wanted[facts.rank].serial != facts.serial:
            return False
        return pod.phase is PodPhase.RUNNING and pod.agent is None and not pod.dark

    def _is_there(self, member: Member) -> bool:
        """Whether the pod of ``member`` is, and is to stay."""
        return any(f.pod is not None and f.pod.name == member.pod and self._stays(f) for f in self.ranks)
