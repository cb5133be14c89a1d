"""The status that a pass leaves."""

from collections.abc import Mapping
from typing import Any, Unpack

from lmj_api.cut import Cut
from lmj_api.layout import Layout
from lmj_api.names import JOB_LABEL
from lmj_api.protocol import STARTING_SCRIPT, CheckpointInfo, Evaluation
from lmj_api.spec import Encryption
from lmj_api.status import Condition, JobStatus, Phase
from lmj_api.view import View
from lmj_operator.plan.changes import Changes
from lmj_operator.plan.failures.incidents import Told, settle
from lmj_operator.plan.failures.ladder import fruitless
from lmj_operator.plan.failures.replicas import Change, with_replicas
from lmj_operator.plan.failures.stragglers import describe
from lmj_operator.plan.observe.observed import Observed
from lmj_operator.plan.report.conditions import conditions
from lmj_operator.plan.report.phases import AT_REST, TERMINAL, transition
from lmj_operator.plan.report.report import (
    checkpoint,
    checkpoint_trouble,
    evaluations,
    is_renewed,
    progress,
    rank_table,
    state_copies,
)
from lmj_operator.plan.scene import Scene

_WITHOUT_STANDBYS = frozenset({Phase.SUSPENDING, Phase.SUSPENDED, *TERMINAL})


def _fruitless(scene: Scene) -> Mapping[int, int]:
    """Restarts without a new step, by rank: a new row begins with the next failure, because the step that ended it is remembered then."""
    status = scene.observed.status
    return fruitless(status, scene.step if scene.failures else 0)


def _told(scene: Scene, view: View | None) -> Told:
    """What the members of ``view`` say of the time before it, and of their steps."""
    workers = [f.worker for f in scene.ranks if f.worker is not None and view is not None and f.worker.view == view.number]
    steps = [worker.progress.step for worker in workers if worker.progress is not None]
    # One that took its last step late, on another's word, has the shorter pause.
    pauses = [worker.paused_seconds for worker in workers if worker.paused_seconds is not None]
    return Told(max(pauses, default=None), min(steps) if view is not None and len(steps) == len(view.members) else 0)


def _resumed(scene: Scene, view: View | None) -> int | None:
    """The step that ``view`` began with; None: that is not known yet.

    Of a script it is that of the checkpoint that it was given, or else the one before the first that it is heard to report in it; where it
    never reported any, nothing is known to be lost.
    """
    if view is None or not scene.observed.spec.strategy.stateless:
        return view.resume.step if view is not None else None
    workers = [f.worker for f in scene.ranks if f.worker is not None and f.worker.view == view.number]
    told = [w.progress for w in workers if w.progress is not None and w.progress.step > 0]
    if given := [at.step for at in told if at.activity == STARTING_SCRIPT]:
        return max(given)
    if told:
        return max(at.step for at in told) - 1
    return 0 if scene.step == 0 else None


def _slow(scene: Scene) -> str | None:
    """The ranks that are slow, in a sentence; None: none is."""
    spec, rule = scene.observed.spec, scene.observed.spec.recovery.straggler
    return describe(scene.changes.get("stragglers", ()), spec.topology, rule.action) if rule is not None else None


def _scale(observed: Observed, phase: Phase, view: View | None) -> dict[str, int | str | Cut]:
    """What the scale subresource and tables say of how many there are."""
    there = view.topology(observed.spec.pipeline.stages) if view is not None and view.members and phase not in AT_REST else None
    replicas = len(there.present) if there is not None else 0
    wanted = observed.asked.replicas
    return {
        "replicas": replicas,
        "stages": there.stages if there is not None else 0,
        "cut": observed.spec.pipeline.cut,
        "wanted_replicas": wanted,
        "replica_summary": f"{replicas}/{wanted}" if observed.spec.data_parallel.shards > 1 and phase not in AT_REST else "",
        "selector": f"{JOB_LABEL}={observed.name}",
    }


def _states(scene: Scene, phase: Phase) -> dict[str, object]:
    """Where states are that training could go on from; a script saves its own."""
    observed = scene.observed
    return {
        "copies": state_copies(observed, scene.ranks, scene.newest, rests=phase in AT_REST),
        "checkpoint_place": "" if observed.spec.strategy.stateless else Layout.of(observed.spec).place,
    }


def _of_replicas(scene: Scene, view: View | None, runs: bool, done: bool) -> Change:
    """What this pass, which leaves ``view``, has done to the replicas."""
    asked, status = scene.observed.asked, scene.observed.status
    stateless = scene.observed.spec.strategy.stateless
    return Change(asked, status.wanted_replicas, scene.newest, view, runs, done, scene.ranks, scene.step, stateless)


def _conditions(
    scene: Scene, phase: Phase, message: str, saved: CheckpointInfo | None, evaluated: list[Evaluation]
) -> list[Condition]:
    """``saved``: the newest checkpoint. ``evaluated``: the newest evaluation of each split."""
    observed, old = scene.observed, scene.observed.status
    return conditions(
        old.conditions,
        phase,
        message,
        observed.generation,
        scene.now,
        scene.waiting,
        observed.problem,
        checkpoint_trouble(scene.ranks, scene.newest),
        saved,
        is_renewed(old.checkpoint, saved),
        scene.changes.get("moves", ()),
        scene.changes.get("followers", ()),
        evaluated,
        scene.changes.get("recut"),
        _slow(scene),
        observed.every_pod,
        observed.spec.network.encryption is Encryption.REQUIRED,
    )


_UNLESS_CHANGED: dict[str, Any] = {"followers": [], "moves": [], "joins": [], "recut": None, "stragglers": []}
"""What is under way is over when a pass does not go on with it."""


def status_of(
    scene: Scene, phase: Phase, message: str, *, view: View | None = None, runs: bool = False, **changes: Unpack[Changes]
) -> JobStatus:
    """The stored status with everything that this pass saw."""
    observed, now, old = scene.observed, scene.now, scene.observed.status
    view = view or scene.newest
    phase = transition(old.phase, phase)
    at = progress(scene.ranks, view, old.progress)
    done = phase is Phase.SUCCEEDED
    saved = checkpoint(scene.observed, scene.ranks, scene.newest)
    evaluated = evaluations(scene.ranks, scene.newest, old.evaluations)
    incidents, lost = settle(
        with_replicas(scene.changes.get("incidents", old.incidents), _of_replicas(scene, view, runs, done), now),
        view if runs else None,
        at.step if at is not None and (runs or done) else 0,
        done,
        now,
        _told(scene, view),
        _resumed(scene, view),
    )
    return old.model_copy(
        update={
            "phase": phase,
            "phase_since": old.phase_since if phase is old.phase and old.phase_since is not None else now,
            "message": message,
            "observed_generation": observed.generation,
            "conditions": _conditions(scene, phase, message, saved, evaluated),
            "view": view,
            **_scale(observed, phase, view),
            "left_since": scene.left_since if view is scene.newest else None,
            "look_since": None,
            "progress": at,
            "evaluations": evaluated,
            "ranks": rank_table(observed.spec.topology, scene.ranks, scene.wanted, scene.failures, now, _fruitless(scene)),
            "checkpoint": saved,
            **_states(scene, phase),
            **_UNLESS_CHANGED,
            **scene.changes,
            **changes,
            **({"standbys": [], "warm_standbys": 0} if phase in _WITHOUT_STANDBYS else {}),
            "incidents": incidents,
            "steps_lost": old.steps_lost + lost,
        }
    )
