"""From what is observed to what is done: the whole of the operator's judgement.

The status that a plan returns is stored *before* its actions are carried out. So whatever an action needs to be unique (a
view's number, a pod's serial, a restart's count) is durable before anybody can see it, and a plan that is made again after a
crash in between, or from a stale observation, comes to the same actions and counts nothing twice.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from lmj_api.protocol import WorkerPhase
from lmj_api.spec.lifecycle import CleanPodPolicy
from lmj_api.status import JobStatus, NodeFailures, Phase
from lmj_api.view import View
from lmj_operator.plan.actions import Action, DeletePod, Drain, LeaveView
from lmj_operator.plan.budget import charge, in_row
from lmj_operator.plan.claims import kept_claims, take_standbys, with_claims
from lmj_operator.plan.conditions import conditions
from lmj_operator.plan.facts import RankFacts, rank_facts
from lmj_operator.plan.failures import Failure, find_dropped, find_failures, find_hang, find_stuck
from lmj_operator.plan.gathering import gather_left, gathers
from lmj_operator.plan.incidents import is_open, record, settle
from lmj_operator.plan.ladder import climb, fruitless
from lmj_operator.plan.membership import left_since, newest_view, next_view, runs
from lmj_operator.plan.moved import follower_wait, handing_over, moved, with_handed_over, with_kept, with_left
from lmj_operator.plan.moves import overdue
from lmj_operator.plan.nodes import avoiding, explained, lifted, stranded, with_failures
from lmj_operator.plan.observed import Observed, PodObserved, PodPhase
from lmj_operator.plan.phases import TERMINAL
from lmj_operator.plan.phases import move as move_to
from lmj_operator.plan.relocation import relocate
from lmj_operator.plan.report import checkpoint, checkpoint_trouble, evaluations, is_renewed, newest_step, progress, rank_table
from lmj_operator.plan.standbys import SERIALS, dismiss_standbys, keep_standbys
from lmj_operator.plan.wants import Want, pod_actions, view_actions, wants

POLL_SECONDS = 2.0
"""Look again after so long, even when nothing was heard."""

CHANGING_SECONDS = 0.5
"""The same while something is under way."""

COMPLETION_GRACE_SECONDS = 10.0
"""When one rank has completed, the outputs are on disk: the others get so long to say the same."""

SUSPEND_SECONDS = 300.0
"""Longest time for the last checkpoint of a suspension."""

WAIT_SECONDS = 3.0
"""A pod that does not start is told of after so long: a scheduler often has not heard yet of the claim that was made just before."""

LAST_CHECKPOINT = "takes a last checkpoint"
"""Message of a suspension."""

_WITHOUT_STANDBYS = frozenset({Phase.SUSPENDING, Phase.SUSPENDED, *TERMINAL})
_SAVES = (WorkerPhase.RUNNING, WorkerPhase.DRAINED)
_ENDED = (WorkerPhase.DRAINED, WorkerPhase.COMPLETED, WorkerPhase.EXITED)


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now: store ``status``, carry out ``actions``, look again after ``wake_after`` seconds or on news."""

    status: JobStatus
    reason: str
    actions: tuple[Action, ...] = ()
    wake_after: float | None = None
    """Seconds; None: nothing will change by itself."""
    due_after: float | None = None
    """Seconds until something is due that nobody will tell of. Where every change is told, nothing needs a look before."""
    brisk: bool = False
    """All ranks wait for what comes next: the news is looked at as it comes."""


@dataclass(frozen=True, slots=True)
class _Scene:
    """One pass: what was observed, and what follows from it at once."""

    observed: Observed
    now: float
    ranks: tuple[RankFacts, ...]
    newest: View | None
    step: int
    """Highest committed step that anybody told of."""
    wanted: dict[int, Want]
    left_since: float | None
    """When it was first seen that a member had left the newest view."""
    failures: tuple[Failure, ...] = ()
    changes: dict[str, Any] = field(default_factory=dict)
    """Changes to the stored status besides the report."""


def plan(observed: Observed, now: float) -> Plan:
    """The plan for what was ``observed`` at ``now`` (seconds since the epoch). Total: every observation has one."""
    observed = with_claims(observed)
    if observed.status.phase in TERMINAL or observed.deleted:
        return _clean_up(observed, now)
    ranks = rank_facts(observed)
    newest = newest_view(observed.status, observed.pods)
    scene = _Scene(
        observed=observed,
        now=now,
        ranks=ranks,
        newest=newest,
        step=newest_step(ranks, observed.status.progress),
        wanted=wants(ranks, ()),
        left_since=left_since(observed.status, ranks, newest, now),
    )
    if observed.status.phase is Phase.SUSPENDED:
        return _stay(scene) if observed.stop_wanted else _wake(scene)
    leaves = _leaving(observed) and not gathers(observed, ranks, scene.newest, scene.step, now)
    return _completed(scene) or _expired(scene) or (_suspend(scene) if leaves else _run(scene))


def _leaving(observed: Observed) -> bool:
    return observed.stop_wanted or observed.status.phase is Phase.SUSPENDING


def _clean_up(observed: Observed, now: float) -> Plan:
    """After the end: remove the pods that the policy does not keep."""
    policy = observed.spec.clean_pod_policy
    reason = "the job is deleted" if observed.deleted else f"the job has {observed.status.phase.value.lower()}"
    every = observed.deleted or policy is CleanPodPolicy.ALL
    gone = [p for p in observed.pods if every or p.rank is None or _counts_as_running(p, policy)]
    status = observed.status
    if not observed.deleted:  # nobody reads it any more, and there may be nothing left to write it to
        status = status.model_copy(update={"observed_generation": observed.generation})
    return Plan(status, reason, tuple(DeletePod(p.name, reason) for p in gone), CHANGING_SECONDS if gone else None)


def _counts_as_running(pod: PodObserved, policy: CleanPodPolicy) -> bool:
    return policy is CleanPodPolicy.RUNNING and pod.phase in (PodPhase.PENDING, PodPhase.RUNNING)


def _completed(scene: _Scene) -> Plan | None:
    """A worker completes when all outputs are on disk (rank 0 wrote them and told the others): no death after that matters."""
    if scene.left_since is None or not any(f.in_phase(WorkerPhase.COMPLETED) for f in scene.ranks):
        return None
    others = [f for f in scene.ranks if f.agent is not None and not f.in_phase(*_ENDED)]
    left = scene.left_since + COMPLETION_GRACE_SECONDS - scene.now
    if others and left > 0:
        status = _status(scene, scene.observed.status.phase, "trained to the end; the last ranks leave")
        return Plan(status, status.message, (), min(left, CHANGING_SECONDS), left)
    return _end(scene, Phase.SUCCEEDED, "trained to the end; the model is saved")


def _expired(scene: _Scene) -> Plan | None:
    limit, started = scene.observed.spec.active_deadline_seconds, scene.observed.status.started
    if limit is None or started is None or scene.now - started < limit:
        return None
    return _end(scene, Phase.FAILED, f"active for longer than {limit} s (activeDeadlineSeconds)")


def _end(scene: _Scene, phase: Phase, message: str) -> Plan:
    status = _status(scene, phase, message, finished=scene.now)
    after = _clean_up(Observed(scene.observed.name, scene.observed.spec, status, scene.observed.pods), scene.now)
    return Plan(status, message, after.actions, CHANGING_SECONDS)


def _stay(scene: _Scene) -> Plan:
    """Suspended: no pods."""
    pods = scene.observed.pods
    status = _status(scene, Phase.SUSPENDED, scene.observed.status.message)
    actions = tuple(DeletePod(p.name, "the job is suspended") for p in pods)
    return Plan(status, "suspended", actions, CHANGING_SECONDS if pods else None)


def _wake(scene: _Scene) -> Plan:
    """Out of suspension: pods of higher serials. They are made in the next pass, when the serials are durable."""
    serials = {**scene.observed.status.serials, **{str(f.rank): f.next_serial for f in scene.ranks}}
    status = _status(
        scene, Phase.PENDING, "resumes from its newest checkpoint", serials=serials, started=scene.now, not_before=None, nodes=[]
    )
    return Plan(status, status.message, (), 0.0)


def _suspend(scene: _Scene) -> Plan:
    """Ask all to take a last checkpoint; when nobody runs any more, remove the pods."""
    observed, now = scene.observed, scene.now
    if not observed.pods and observed.status.phase in (Phase.PENDING, Phase.SUSPENDING):
        saved = checkpoint(scene.ranks, observed.status.checkpoint)
        at = f"stopped; goes on from step {saved.step if saved is not None else 0}"
        status = _status(scene, Phase.SUSPENDED, at)
        blank = [r.model_copy(update={"pod": None, "incarnation": 0}) for r in status.ranks]
        return Plan(status.model_copy(update={"ranks": blank}), at, (), None)
    final = next(
        (f for f in find_failures(observed.name, scene.ranks, scene.newest, observed.spec.recovery, now) if f.final), None
    )
    if final is not None:
        return _end(scene, Phase.FAILED, final.message)
    # What a view for the last checkpoint mended is over, and its cost known, before the job rests.
    mended = scene.newest is not None and all(
        f.in_phase(*_SAVES) and f.worker is not None and f.worker.view == scene.newest.number for f in scene.ranks
    )
    status = _status(scene, Phase.SUSPENDING, LAST_CHECKPOINT, runs=mended)
    since = status.phase_since if status.phase_since is not None else now
    left = since + SUSPEND_SECONDS - now
    if all(_has_left(f) for f in scene.ranks) or left < 0:
        return Plan(
            status, status.message, tuple(DeletePod(p.name, "the job is suspended") for p in observed.pods), CHANGING_SECONDS
        )
    drains = tuple(Drain(f.pod.name) for f in scene.ranks if f.pod is not None and f.agent is not None and not f.agent.draining)
    actions = (*drains, *dismiss_standbys(observed, "the job is being suspended"))
    return Plan(status, status.message, actions, CHANGING_SECONDS, left)


def _has_left(facts: RankFacts) -> bool:
    """Only a running worker has anything to save, and it has not left before it says so."""
    agent = facts.agent
    if agent is None or agent.worker.incarnation == 0 or agent.worker.phase in _ENDED:
        return True
    return agent.draining and agent.worker.phase is not WorkerPhase.RUNNING


def _run(scene: _Scene) -> Plan:
    """Have every rank in the newest view; a job that is to stop too, when only that view can take its last checkpoint."""
    observed, spec, now = scene.observed, scene.observed.spec, scene.now
    not_before = observed.status.not_before or 0.0
    scene = _with_kept(_with_moved(scene))
    failures = find_failures(observed.name, scene.ranks, scene.newest, spec.recovery, now)
    final = next((f for f in failures if f.final), None)
    if final is not None:
        return _end(_with_failures(scene, failures), Phase.FAILED, final.message)
    hang = find_hang(scene.ranks, scene.newest, not_before, spec.recovery, now)
    dropped, grace = find_dropped(scene.ranks, scene.newest, scene.left_since, now)
    if handing_over(scene.ranks, scene.newest):
        dropped, grace = None, follower_wait(observed, scene.ranks, scene.newest, scene.left_since, now)
    if not failures and hang is not None:
        failures = (hang,)
    elif not failures and (stuck := find_stuck(scene.ranks, scene.newest, observed.pods, spec.recovery, now)):
        failures = stuck
    elif not failures and dropped is not None and not _counted(observed.status, scene.newest):
        failures = (dropped,)
    reason = ""
    if failures:
        failures = climb(failures, observed.status, spec.recovery, scene.step)
        scene = _with_failures(scene, failures)
        cost = charge(spec.recovery, observed.status, scene.step, len(failures), now)
        if not cost.allowed and _leaving(observed):
            return _suspend(scene)
        if not cost.allowed:
            return _end(scene, Phase.FAILED, f"{scene.failures[-1].message}; given up, for {cost.reason}")
        not_before = cost.not_before
        reason = f"{scene.failures[-1].message}; {cost.reason}"
        scene.changes.update(
            restarts=cost.restarts,
            restarts_without_progress=cost.without_progress,
            restart_step=cost.restart_step,
            not_before=cost.not_before,
        )
    return _advance(scene, not_before, grace, reason)


def _with_moved(scene: _Scene) -> _Scene:
    """With each rank that was handed over to its follower in that one's pod, and each that left through a checkpoint in need of one."""
    observed, view = scene.observed, scene.newest
    ranks = with_left(observed, with_handed_over(observed, scene.ranks, view))
    if ranks == scene.ranks:
        return scene
    incidents, count = moved(observed.status.incidents, scene.ranks, ranks, view, scene.step, scene.now)
    changes = {**scene.changes, "incidents": incidents, "migrations": observed.status.migrations + count}
    return replace(scene, ranks=ranks, wanted=wants(ranks, ()), changes=changes)


def _with_kept(scene: _Scene) -> _Scene:
    """With the follower in the place of each rank whose memory went with its worker."""
    ranks = with_kept(scene.ranks, in_row(scene.observed.status, scene.step))
    return scene if ranks == scene.ranks else replace(scene, ranks=ranks, wanted=wants(ranks, ()))


def _waiting(observed: Observed, now: float) -> PodObserved | None:
    """The pod that has waited longest for something that another pod would wait for too; None: that may pass by itself yet."""
    waiting = [(pod.waits.since, pod.name, pod) for pod in observed.pods if pod.waits is not None and pod.rank is not None]
    since, _, pod = min(waiting, default=(now, "", None))
    return pod if now - since >= WAIT_SECONDS else None


def _counted(status: JobStatus, view: View | None) -> bool:
    return any(i.kind == "ViewDropped" and view is not None and i.view == view.number for i in status.incidents)


def _with_failures(scene: _Scene, failures: tuple[Failure, ...]) -> _Scene:
    status = scene.observed.status
    nodes = {f.rank: f.pod.node if f.pod is not None else f.known.node for f in scene.ranks}
    bad = status.nodes
    if not scene.observed.one_node:
        rule = scene.observed.spec.recovery.avoid_node
        bad = with_failures(status.nodes, failures, nodes, rule, scene.step, scene.now)
        failures = explained(failures, nodes, status.nodes, bad)
    incidents = record(
        scene.changes.get("incidents", status.incidents),
        failures,
        nodes,
        scene.newest.number if scene.newest else 0,
        scene.step,
        scene.now,
    )
    changes = {**scene.changes, "incidents": incidents, "nodes": bad}
    return replace(scene, wanted=wants(scene.ranks, failures), failures=failures, changes=changes)


def _elsewhere_after_all(scene: _Scene) -> tuple[_Scene, list[NodeFailures]]:
    """Another pod for each that waits for a node that does not come."""
    observed, now = scene.observed, scene.now
    nodes = scene.changes.get("nodes", observed.status.nodes)
    asked = {entry.pod for entry in observed.status.followers if entry.to is not None}
    free = [pod for pod in observed.pods if pod.name not in asked]
    stuck = stranded(free, nodes, observed.spec.recovery.avoid_node, now)
    if stuck:
        # As any pod that is out of date before it runs: another one, and nobody's failure.
        nodes = scene.changes["nodes"] = lifted(nodes)
        anew = {f.rank: Want(f.next_serial, 1) for f in scene.ranks if f.pod in stuck and scene.wanted[f.rank].serial == f.serial}
        ranks = tuple(
            replace(f, follower=replace(f.follower, outdated=True)) if f.follower is not None and f.follower in stuck else f
            for f in scene.ranks
        )
        scene = replace(scene, ranks=ranks, wanted={**scene.wanted, **anew})
    late = overdue(observed.status.moves, scene.ranks, observed.spec.migration, now)
    return replace(scene, wanted={**scene.wanted, **{rank: Want(scene.ranks[rank].next_serial, 1) for rank in late}}), nodes


def _advance(scene: _Scene, not_before: float, grace: float | None, reason: str) -> Plan:
    """Pods, workers and the view, towards what is wanted."""
    observed, now = scene.observed, scene.now
    scene, nodes = _elsewhere_after_all(scene)
    taken = take_standbys(observed, scene.ranks, scene.wanted, not_before, now)
    scene = replace(scene, ranks=taken.ranks, wanted=taken.wanted)
    claims = kept_claims(observed, scene.wanted, taken.claims)
    reason = "; ".join(filter(None, (reason, taken.reason)))
    actions = pod_actions(observed.pods, scene.ranks, scene.wanted, observed.status.made, not_before, now)
    waits = [not_before - now] if now < not_before else []
    view, why = scene.newest, reason
    if grace is not None:
        waits.append(grace)
        why = why or "a member left the view; its cause may still show"
    elif not scene.failures and now >= not_before:
        saved = checkpoint(scene.ranks, observed.status.checkpoint)
        tries = in_row(observed.status, scene.step)
        choice = next_view(scene.ranks, scene.newest, observed.pods, tries, saved)
        view, why = choice.view, choice.reason
        if view is not None:
            actions += tuple(LeaveView(pod, view.number) for pod in choice.leaving)
            actions += view_actions(scene.ranks, view)
    elif not why:
        why = observed.status.message
    waiting = _waiting(observed, now)
    if waiting is not None and waiting.waits is not None and not scene.failures:
        why = f"pod {waiting.name} waits: {waiting.waits.reason}: {waiting.waits.message}"
    view_runs = view is not None and runs(scene.ranks, view)
    serials = {**observed.status.serials, **{str(rank): want.serial for rank, want in scene.wanted.items()}}
    if _leaving(observed):
        # Looked at again soon, told or not: nobody trains, and it does not last.
        soon = min([*waits, gather_left(observed, now), CHANGING_SECONDS])
        status = _status(scene, Phase.SUSPENDING, f"{LAST_CHECKPOINT}: {why}", view=view, serials=serials, claims=claims)
        return Plan(status, status.message, avoiding(actions, nodes), CHANGING_SECONDS, soon)
    kept = keep_standbys(observed, claims, view_runs, now)
    waits += [kept.due] if kept.due is not None else []
    phase = _phase(observed.status, view_runs, bool(scene.failures))
    trains = view_runs and not scene.failures
    elsewhere = relocate(observed, scene.ranks, scene.wanted, view, trains, nodes, actions + kept.actions, now)
    scene.changes.update(elsewhere.changes)
    waits += elsewhere.due
    started = observed.status.started if observed.status.started is not None else now
    message = f"view {view.number} trains" if view_runs and view is not None else why
    if kept.serial:
        serials[SERIALS] = kept.serial
    status = _status(
        scene,
        phase,
        message,
        view=view,
        runs=view_runs,
        serials=serials,
        started=started,
        standbys=kept.standbys,
        warm_standbys=kept.warm,
        claims=claims,
    )
    limit = observed.spec.active_deadline_seconds
    due = [*waits, *([started + limit - now] if limit is not None else [])]
    wake = min([*waits, POLL_SECONDS if view_runs else CHANGING_SECONDS])
    return Plan(status, message, elsewhere.actions, wake, min(due, default=None), brisk=elsewhere.brisk)


def _phase(status: JobStatus, runs: bool, failed: bool) -> Phase:
    if runs and not failed:
        return Phase.RUNNING
    if failed or status.phase is Phase.RUNNING or any(is_open(i) for i in status.incidents):
        return Phase.RECOVERING
    return status.phase


def _fruitless(scene: _Scene) -> Mapping[int, int]:
    """Restarts without a new step, by rank: a new row begins with the next failure, for the step that ended it is remembered then."""
    status = scene.observed.status
    return fruitless(status, scene.step if scene.failures else 0)


def _status(
    scene: _Scene, phase: Phase, message: str, *, view: View | None = None, runs: bool = False, **changes: Any
) -> JobStatus:
    """The stored status with everything that this pass saw."""
    observed, now, old = scene.observed, scene.now, scene.observed.status
    view = view or scene.newest
    phase = move_to(old.phase, phase)
    at = progress(scene.ranks, view, old.progress)
    done = phase is Phase.SUCCEEDED
    saved = checkpoint(scene.ranks, old.checkpoint)
    evaluated = evaluations(scene.ranks, old.evaluations)
    incidents, lost = settle(
        scene.changes.get("incidents", old.incidents),
        view if runs else None,
        at.step if at is not None and (runs or done) else 0,
        done,
        now,
    )
    return old.model_copy(
        update={
            "phase": phase,
            "phase_since": old.phase_since if phase is old.phase and old.phase_since is not None else now,
            "message": message,
            "observed_generation": observed.generation,
            "conditions": conditions(
                old.conditions,
                phase,
                message,
                observed.generation,
                now,
                _waiting(observed, now),
                observed.problem,
                checkpoint_trouble(scene.ranks),
                saved,
                is_renewed(old.checkpoint, saved),
                scene.changes.get("moves", ()),
                scene.changes.get("followers", ()),
                evaluated,
            ),
            "view": view,
            "left_since": scene.left_since if view is scene.newest else None,
            "progress": at,
            "evaluations": evaluated,
            "ranks": rank_table(scene.ranks, scene.wanted, scene.failures, now, _fruitless(scene)),
            "checkpoint": saved,
            "followers": [],
            "moves": [],
            **scene.changes,
            **changes,
            **({"standbys": [], "warm_standbys": 0} if phase in _WITHOUT_STANDBYS else {}),
            "incidents": incidents,
            "steps_lost": old.steps_lost + lost,
        }
    )
