"""A job that trains, or is to: failures, moves, and the next view."""

from dataclasses import replace

from lmj_api.status import IncidentKind, JobStatus, NodeFailures, Phase
from lmj_api.view import View
from lmj_operator.plan.actions import Action, LeaveView
from lmj_operator.plan.course import Course, course_of_script, group_of
from lmj_operator.plan.ending import end
from lmj_operator.plan.failures.budget import charge, counted, in_row
from lmj_operator.plan.failures.failures import Failure, find_failures, find_hang, find_stuck
from lmj_operator.plan.failures.incidents import is_open, record
from lmj_operator.plan.failures.ladder import climb
from lmj_operator.plan.failures.links import find_dropped
from lmj_operator.plan.failures.nodes import avoiding, explained, lifted, stranded, with_failures
from lmj_operator.plan.gathering import gather_left
from lmj_operator.plan.membership.choice import after_first, due_times, to_shrink
from lmj_operator.plan.membership.looking import early_look
from lmj_operator.plan.membership.membership import next_view, runs
from lmj_operator.plan.moves.moved import follower_wait, handing_over, moved, with_handed_over, with_kept, with_left
from lmj_operator.plan.moves.moves import overdue
from lmj_operator.plan.moves.relocation import relocate
from lmj_operator.plan.plan import CHANGING_SECONDS, Plan
from lmj_operator.plan.pods.held import why_held
from lmj_operator.plan.pods.promotions import kept_promotions, take_standbys
from lmj_operator.plan.pods.standbys import SERIALS, keep_standbys
from lmj_operator.plan.pods.wants import Want, pod_actions, view_actions, wants
from lmj_operator.plan.recut.turning import Turn, turned
from lmj_operator.plan.report.report import checkpoint
from lmj_operator.plan.scene import Scene, leaving
from lmj_operator.plan.status import status_of
from lmj_operator.plan.suspension import LAST_CHECKPOINT, suspend

POLL_SECONDS = 2.0
"""Look again after so long while all is well, even when nothing was heard."""


def run(scene: Scene) -> Plan:
    """Have every rank in the newest view; a job that is to stop too, when only that view can take its last checkpoint."""
    observed, spec, now = scene.observed, scene.observed.spec, scene.now
    not_before = observed.status.not_before or 0.0
    scene = _with_kept(_with_moved(scene))
    turn = turned(scene)
    scene = turn.scene if turn.scene is not None else scene
    observed = scene.observed
    scripts = spec.strategy.stateless
    failures = find_failures(observed.name, scene.ranks, scene.newest, spec.recovery, now, scripts=scripts)
    final = next((f for f in failures if f.final), None)
    if final is not None:
        return end(_with_failures(scene, failures), Phase.FAILED, final.message)
    hang = find_hang(scene.ranks, scene.newest, not_before, spec.recovery, now)
    dropped, grace = find_dropped(scene.ranks, scene.newest, scene.left_since, now)
    if handing_over(scene.ranks, scene.newest):
        dropped, grace = None, follower_wait(observed, scene.ranks, scene.newest, scene.left_since, now)
    if turn.wait is not None:
        dropped, grace = None, turn.wait
    group = group_of(scene, not_before) if scripts else None
    if not failures and hang is not None:
        failures = (hang,)
    elif (
        not failures
        and (group is None or group.is_late())
        and (stuck := find_stuck(scene.ranks, scene.newest, observed.pods, spec.recovery, now))
    ):
        failures = stuck
    elif group is not None and group.is_asked():
        pass  # who leaves a view because somebody asked for it has not lost anybody
    elif not failures and dropped is not None and not _counted(observed.status, scene.newest):
        failures = (dropped,)
    reason = ""
    if failures:
        failures = climb(failures, scene.ranks, observed.status, spec.recovery, scene.step)
        scene = _with_failures(scene, failures)
        taken = [failure.disruption for failure in failures if failure.disruption is not None]
        cost = charge(
            spec.recovery, observed.status, scene.step, counted(failures, observed.status.incidents), now, taken, scripts=scripts
        )
        if not cost.allowed and leaving(observed):
            return suspend(scene)
        if not cost.allowed:
            return end(scene, Phase.FAILED, f"{scene.failures[-1].message}; given up because {cost.reason}")
        not_before = cost.not_before
        reason = f"{scene.failures[-1].message}; {cost.reason}"
        scene = scene.changed(
            restarts=cost.restarts,
            restarts_before=cost.uncounted,
            restarts_without_progress=cost.without_progress,
            disruptions=cost.disruptions,
            disruptions_without_progress=cost.disrupted,
            restart_step=cost.restart_step,
            not_before=cost.not_before,
        )
    return _advance(scene, not_before, grace, reason, turn)


def _with_moved(scene: Scene) -> Scene:
    """With each rank that was handed over to its follower in that one's pod, and each that left through a checkpoint in need of one."""
    observed, view = scene.observed, scene.newest
    ranks = with_left(observed, with_handed_over(observed, scene.ranks, view))
    if ranks == scene.ranks:
        return scene
    incidents, count = moved(observed, scene.ranks, ranks, view, scene.step, scene.now)
    scene = scene.changed(incidents=incidents, migrations=observed.status.migrations + count)
    return replace(scene, ranks=ranks, wanted=wants(ranks, ()))


def _with_kept(scene: Scene) -> Scene:
    """With the follower in the place of each rank whose memory went with its worker."""
    observed = scene.observed
    ranks = with_kept(observed.spec.topology, scene.ranks, in_row(observed.status, scene.step))
    return scene if ranks == scene.ranks else replace(scene, ranks=ranks, wanted=wants(ranks, ()))


def _counted(status: JobStatus, view: View | None) -> bool:
    return any(i.kind is IncidentKind.VIEW_DROPPED and view is not None and i.view == view.number for i in status.incidents)


def _with_failures(scene: Scene, failures: tuple[Failure, ...]) -> Scene:
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
        [m.rank for m in scene.newest.members] if scene.newest else (),
    )
    scene = scene.changed(incidents=incidents, nodes=bad)
    return replace(scene, wanted=wants(scene.ranks, failures), failures=failures)


def _elsewhere_after_all(scene: Scene) -> tuple[Scene, list[NodeFailures]]:
    """Another pod for each that waits for a node that does not come; and the nodes that pods avoid, as in the status."""
    observed, now = scene.observed, scene.now
    nodes = scene.changes.get("nodes", observed.status.nodes)
    asked = {entry.pod for entry in observed.status.followers if entry.to is not None}
    free = [pod for pod in observed.pods if pod.name not in asked]
    stuck = {pod.name for pod in stranded(free, nodes, observed.spec.recovery.avoid_node, now)}
    if stuck:
        # As any pod that is out of date before it runs: another one, and nobody's failure.
        nodes = lifted(nodes)
        anew = {
            f.rank: Want(f.next_serial, 1)
            for f in scene.ranks
            if f.pod is not None and f.pod.name in stuck and scene.wanted[f.rank].serial == f.serial
        }
        ranks = tuple(
            replace(f, follower=replace(f.follower, outdated=True)) if f.follower is not None and f.follower.name in stuck else f
            for f in scene.ranks
        )
        scene = replace(scene.changed(nodes=nodes), ranks=ranks, wanted={**scene.wanted, **anew})
    late = overdue(observed.status.moves, scene.ranks, observed.spec.migration, now)
    return replace(scene, wanted={**scene.wanted, **{rank: Want(scene.ranks[rank].next_serial, 1) for rank in late}}), nodes


def _advance(scene: Scene, not_before: float, grace: float | None, reason: str, turn: Turn) -> Plan:
    """Pods, workers and the view, towards what is wanted."""
    observed, now = scene.observed, scene.now
    scene, nodes = _elsewhere_after_all(scene)
    taken = take_standbys(observed, scene.ranks, scene.wanted, nodes, not_before, now)
    serials = {**observed.status.serials, **{str(rank): want.serial for rank, want in taken.wanted.items()}}
    scene = replace(scene, ranks=taken.ranks, wanted=taken.wanted).changed(
        promotions=kept_promotions(observed, taken.wanted, taken.promotions), serials=serials
    )
    reason = "; ".join(filter(None, (reason, taken.reason)))
    members = frozenset(m.pod for m in scene.newest.members) if scene.newest is not None else frozenset()
    held = range(0) if observed.spec.strategy.stateless else after_first(observed.spec.topology, scene.ranks)
    made = pod_actions(observed.pods, scene.ranks, scene.wanted, observed.status.made, not_before, now, members, held)
    scene, course = _course(scene, not_before, grace, reason, turn)
    course = replace(course, actions=made + course.actions + turn.actions)
    unknown = why_held(observed, made)
    if unknown is not None and not scene.failures:
        course = replace(course, why=unknown)
    waiting = scene.waiting
    if waiting is not None and waiting.waits is not None and not scene.failures:
        course = replace(course, why=f"pod {waiting.name} waits: {waiting.waits.reason}: {waiting.waits.message}")
    return _take_last_checkpoint(scene, course, nodes) if leaving(observed) else _train(scene, course, nodes)


def _course(scene: Scene, not_before: float, grace: float | None, reason: str, turn: Turn) -> tuple[Scene, Course]:
    """The view that the ranks are to be in, or what it waits for. ``reason``: what is done already, "" for nothing."""
    if scene.observed.spec.strategy.stateless:
        return scene, course_of_script(scene, not_before, reason)
    observed, now, view, why = scene.observed, scene.now, scene.newest, reason
    waits: tuple[float, ...] = (not_before - now,) if now < not_before else ()
    actions: tuple[Action, ...] = ()
    saved = checkpoint(observed, scene.ranks, view)
    asked = early_look(observed.spec.topology, scene.ranks, view, observed.every_pod, saved, now)
    replicas = observed.spec.topology.replicas > 1
    if replicas and turn.wait is None:
        waits += tuple(due_times(scene.left_since, now))
    elif grace is not None:
        waits += (grace,)
        why = why or "a member left the view; its cause may still show"
    # What failed is replaced later and on its own: other replicas do not wait for it.
    if turn.wait is None and (replicas or (grace is None and not scene.failures and now >= not_before)):
        tries, since = in_row(observed.status, scene.step), observed.status.look_since
        least = observed.spec.data_parallel.min_replicas
        choice = turn.choice or next_view(
            observed.spec.topology, scene.ranks, view, now, observed.every_pod, tries, saved, since, scene.left_since, least
        )
        view, why = choice.view, choice.reason if choice.formed or not replicas else (why or choice.reason)
        if view is not None and choice.formed:
            view = view.model_copy(update={"cut": observed.spec.pipeline.cut})
        if view is not None:
            actions += tuple(LeaveView(pod, view.number) for pod in choice.leaving)
            actions += view_actions(scene.ranks, view)
        actions += to_shrink(scene.ranks, view)
        if choice.wait is not None:
            asked = asked or choice.wait.look
            waits += (choice.wait.due,) if choice.wait.due is not None else ()
            scene = scene.changed(look_since=choice.wait.since)
    elif not why:
        why = observed.status.message.removeprefix(f"{LAST_CHECKPOINT}: ")
    return scene, Course(view, why, (*actions, *([asked] if asked is not None else [])), waits)


def _take_last_checkpoint(scene: Scene, course: Course, nodes: list[NodeFailures]) -> Plan:
    """Of a job that is to stop: all have to be in the view before they can leave it with one."""
    # Looked at again soon, told or not: nobody trains, and it does not last.
    soon = min([*course.waits, gather_left(scene.observed, scene.now), CHANGING_SECONDS])
    status = status_of(scene, Phase.SUSPENDING, f"{LAST_CHECKPOINT}: {course.why}", view=course.view)
    return Plan(status, status.message, avoiding(course.actions, nodes), CHANGING_SECONDS, soon)


def _train(scene: Scene, course: Course, nodes: list[NodeFailures]) -> Plan:
    """With standbys beside the ranks, and moves."""
    observed, now, view = scene.observed, scene.now, course.view
    view_runs = view is not None and runs(scene.ranks, view)
    kept = keep_standbys(observed, scene.changes["promotions"], view_runs, now)
    trains = view_runs and not scene.failures
    elsewhere = relocate(observed, scene.ranks, scene.wanted, view, trains, nodes, course.actions + kept.actions, now)
    waits = [*course.waits, *([kept.due] if kept.due is not None else []), *elsewhere.due]
    message = f"view {view.number} trains" if view_runs and view is not None else course.why
    started = observed.status.started if observed.status.started is not None else now
    scene = scene.changed(**elsewhere.changes).changed(
        started=started,
        standbys=kept.standbys,
        warm_standbys=kept.warm,
        serials={**scene.changes["serials"], **({SERIALS: kept.serial} if kept.serial else {})},
    )
    phase = _phase(observed.status, view_runs, bool(scene.failures))
    status = status_of(scene, phase, message, view=view, runs=view_runs)
    limit = observed.spec.active_deadline_seconds
    due = [*waits, *([started + limit - now] if limit is not None else [])]
    wake = min([*waits, POLL_SECONDS if view_runs else CHANGING_SECONDS])
    return Plan(status, message, elsewhere.actions, wake, min(due, default=None), urgent=elsewhere.urgent)


def _phase(status: JobStatus, runs: bool, failed: bool) -> Phase:
    if runs and not failed:
        return Phase.RUNNING
    if failed or status.phase is Phase.RUNNING or any(is_open(i) for i in status.incidents):
        return Phase.RECOVERING
    return status.phase
