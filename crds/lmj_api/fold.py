"""What an agent's state becomes when something happens to its worker: one pure function over a literal table."""

from collections.abc import Collection, Sequence
from typing import Any, TypeVar

from lmj_api.protocol import (
    MOST_CHECKPOINTS,
    AgentState,
    CheckpointInfo,
    Evaluation,
    Event,
    EventKind,
    Progress,
    WorkerPhase,
    WorkerState,
)

T = TypeVar("T")

_STARTING, _READY, _RUNNING = WorkerPhase.STARTING, WorkerPhase.READY, WorkerPhase.RUNNING
_FOLLOWING = WorkerPhase.FOLLOWING
_COMPLETED, _DRAINED, _EXITED = WorkerPhase.COMPLETED, WorkerPhase.DRAINED, WorkerPhase.EXITED

TRANSITIONS: dict[WorkerPhase | None, dict[EventKind, WorkerPhase]] = {
    # There is no process: none was started yet, or it is gone.
    None: {
        EventKind.WORKER_STARTED: _STARTING,
    },
    _STARTING: {
        EventKind.PREPARING: _STARTING,
        EventKind.WARNING: _STARTING,
        EventKind.READY: _READY,
        EventKind.DRAINED: _DRAINED,
        EventKind.WORKER_EXITED: _EXITED,
    },
    _READY: {
        EventKind.PREPARING: _READY,
        EventKind.WARNING: _READY,
        EventKind.READY: _READY,  # under a new address, after a broken link
        EventKind.JOINED: _RUNNING,
        EventKind.FOLLOWING: _FOLLOWING,
        EventKind.FOLLOWER_LOST: _READY,
        EventKind.LOST_PEER: _READY,  # while a view was forming
        EventKind.CHECKPOINTED: _READY,  # its writing went on beside
        EventKind.DRAINED: _DRAINED,
        EventKind.WORKER_EXITED: _EXITED,
    },
    _FOLLOWING: {
        EventKind.WARNING: _FOLLOWING,
        EventKind.FOLLOWING: _FOLLOWING,
        EventKind.LOST_PEER: _READY,
        EventKind.DRAINED: _DRAINED,
        EventKind.WORKER_EXITED: _EXITED,
    },
    _RUNNING: {
        EventKind.PREPARING: _RUNNING,
        EventKind.FOLLOWER_LOST: _RUNNING,
        EventKind.WARNING: _RUNNING,
        EventKind.JOINED: _RUNNING,  # the next view, with nothing lost between
        EventKind.COMMITTED: _RUNNING,
        EventKind.EVALUATED: _RUNNING,
        EventKind.CHECKPOINTED: _RUNNING,
        EventKind.LOST_PEER: _READY,
        EventKind.DRAINED: _DRAINED,
        EventKind.COMPLETED: _COMPLETED,
        EventKind.WORKER_EXITED: _EXITED,
    },
    _COMPLETED: {
        EventKind.WARNING: _COMPLETED,
        EventKind.FOLLOWER_LOST: _COMPLETED,
        EventKind.CHECKPOINTED: _COMPLETED,
        EventKind.DRAINED: _COMPLETED,  # asked to leave when all was done
        EventKind.WORKER_EXITED: _COMPLETED,  # with code 0
    },
    _DRAINED: {
        EventKind.WARNING: _DRAINED,
        EventKind.FOLLOWER_LOST: _DRAINED,
        EventKind.CHECKPOINTED: _DRAINED,
        EventKind.WORKER_EXITED: _DRAINED,  # with code 0
    },
}
"""Phase of the living worker: what may happen, and the phase after it."""

_SIGNS_OF_PROGRESS = {
    EventKind.WORKER_STARTED,
    EventKind.PREPARING,
    EventKind.READY,
    EventKind.JOINED,
    EventKind.COMMITTED,
    EventKind.EVALUATED,
    EventKind.FOLLOWING,
}


class IllegalEventError(Exception):
    """Something that cannot happen in this state; the text says what and why."""


def alive(worker: WorkerState) -> bool:
    """Whether the worker's process is there."""
    return worker.incarnation > 0 and worker.exit is None


def fold(state: AgentState, event: Event, now: float) -> AgentState:
    """The state after ``event``, which arrived at ``now`` (seconds since the epoch). Raises IllegalEventError."""
    worker = state.worker
    before = worker.phase if alive(worker) else None
    if event.kind is EventKind.WARNING and before is None:
        return state  # the agent's own
    phase = TRANSITIONS[before].get(event.kind) if before in TRANSITIONS else None
    if phase is None:
        raise IllegalEventError(f"{event.kind} cannot follow {before or 'the end of the worker'}")
    if event.kind is EventKind.LOST_PEER and _need(event, event.view, "a view") < worker.view:
        return state  # of a view that it left already: a late word of no consequence
    changes = _worker_changes(state, event, now)
    if event.kind is EventKind.WORKER_EXITED and phase is not _EXITED and changes["exit"].code != 0:
        phase = _EXITED
    if phase is not worker.phase or event.kind in (EventKind.WORKER_STARTED, EventKind.LOST_PEER):
        # A view dropped while Ready counts as entering Ready: the plan gives its cause a moment to show from then.
        changes["since"] = now
    if event.kind in _SIGNS_OF_PROGRESS:
        changes["heartbeat"] = now
    old = WorkerState() if event.kind is EventKind.WORKER_STARTED else worker
    return state.model_copy(
        update={"worker": old.model_copy(update={"phase": phase, **changes}), **_agent_changes(state, event)},
    )


def with_pid(state: AgentState, incarnation: int, pid: int) -> AgentState:
    """The state once worker ``incarnation`` is started: it was told as started when it was asked for, before it had a process."""
    worker = state.worker
    if worker.incarnation != incarnation or not alive(worker) or worker.pid is not None:
        raise IllegalEventError(f"worker {incarnation} was started as process {pid}, but {worker!r} is what runs")
    return state.model_copy(update={"worker": worker.model_copy(update={"pid": pid})})


def with_scan(
    state: AgentState, found: Sequence[CheckpointInfo], told: Collection[str], removed: Collection[str], number: int = 0
) -> AgentState:
    """The state once the checkpoint folder was looked through; what workers ``told`` and ``removed`` meanwhile is newer and wins.

    ``number``: the newest view that was known to be over when the look began.
    """
    newer = {*told, *removed}
    kept = [c for c in state.checkpoints if c.name in told]
    merged = _in_order([*kept, *(c for c in found if c.name not in newer)])
    return state.model_copy(update={"checkpoints": merged, "scanned": True, "looked": number})


def _worker_changes(state: AgentState, event: Event, now: float) -> dict[str, Any]:
    worker = state.worker
    match event.kind:
        case EventKind.WORKER_STARTED:
            number = _need(event, event.incarnation, "an incarnation")
            if number <= worker.incarnation:
                raise IllegalEventError(f"worker {number} started after worker {worker.incarnation}")
            return {"incarnation": number}
        case EventKind.READY:
            return {"address": _need(event, event.address, "an address"), **_what_it_has(event)}
        case EventKind.JOINED:
            view = _need(event, event.view, "a view")
            if view <= worker.view:
                raise IllegalEventError(f"joined view {view} after view {worker.view}")
            if view > state.newest_view:
                raise IllegalEventError(f"joined view {view}, which this agent was never told")
            return {
                "view": view,
                "lost": None,
                "lost_rank": None,
                "holding": None,
                "copied": None,
                "snapshots": None,
                "paused_seconds": None,
                "compute_seconds": None,
                "waiting_seconds": None,
                **({"progress": event.progress} if event.progress else {}),
            }
        case EventKind.FOLLOWING:
            return {"holding": event.holding, "copied": event.copied}
        case EventKind.COMMITTED:
            paused = {} if event.paused_seconds is None else {"paused_seconds": event.paused_seconds}
            times = {"compute_seconds": event.compute_seconds, "waiting_seconds": event.waiting_seconds}
            memory = {} if event.snapshots is None else {"memory": event.snapshots}
            return {"progress": _need(event, event.progress, "progress"), "saving": event.saving, **times, **paused, **memory}
        case EventKind.PREPARING:
            return {"progress": _with_known(event.progress, worker.progress)} if event.progress else {}
        case EventKind.LOST_PEER:
            # A view that broke before it was joined was dropped too: hence the event's number, not the worker's.
            view, lost = _need(event, event.view, "a view"), event.message or "a peer was lost"
            return {"view": view, "lost": lost, "lost_rank": event.peer, "copied": event.copied, **_what_it_has(event)}
        case EventKind.CHECKPOINTED:
            return {"saving": None}
        case EventKind.WORKER_EXITED:
            return {"exit": _need(event, event.exit, "an exit"), "pid": None, "address": None, "saving": None}
        case _:
            return {}


def _with_known(new: Progress, old: Progress | None) -> Progress:
    """``new`` with what was known of its step before: while a worker evaluates or exports it reports that alone."""
    if old is None or old.step != new.step:
        return new
    facts = ("loss", "learning_rate", "grad_norm", "samples_per_second", "eta_seconds")
    return new.model_copy(update={name: getattr(old, name) for name in facts if getattr(new, name) is None})


def _agent_changes(state: AgentState, event: Event) -> dict[str, Any]:
    if event.kind is EventKind.EVALUATED:
        evaluation = _need(event, event.evaluation, "an evaluation")
        return {"evaluations": _evaluations(state.evaluations, evaluation, event.best)}
    if event.kind is EventKind.CHECKPOINTED:
        new = _need(event, event.checkpoint, "a checkpoint")
        rest = [c for c in state.checkpoints if c.name != new.name and c.name not in event.removed]
        if new.best:
            rest = [c.model_copy(update={"best": False}) for c in rest]
        return {"checkpoints": _in_order([new, *rest]), "checkpoint_trouble": None}
    if event.kind is EventKind.FOLLOWER_LOST:
        return _without_follower(state, event.address)
    if event.kind is EventKind.WARNING and event.trouble is not None:
        first = state.checkpoint_trouble
        since = event.time if first is None else first.since
        return {"checkpoint_trouble": event.trouble.model_copy(update={"since": since})}
    return {}


def _without_follower(state: AgentState, address: str | None) -> dict[str, Any]:
    """``address``: of the one that is lost; None: all are let go. Late news of one before changes nothing."""
    known, recut = state.follower, state.recut
    if address is None:
        return {"follower": None, "recut": None}
    changes: dict[str, Any] = {"follower": None} if known is not None and known.address == address else {}
    if recut is not None:
        changes["recut"] = recut.model_copy(update={"followers": [m for m in recut.followers if m.address != address]})
    return changes


def _evaluations(old: Sequence[Evaluation], new: Evaluation, best: bool) -> list[Evaluation]:
    """The newest of each split; behind it the best validation so far, when that is another one."""
    if new.split != "validation":
        return [*(e for e in old if e.split != new.split), new]
    others = [e for e in old if e.split != "validation"]
    # On equal terms the earlier one stays the best, as it does for the worker.
    earlier = max((e for e in old if e.split == "validation"), key=lambda e: e.score, default=None)
    beaten = best or earlier is None or new.score > earlier.score
    return [new, *others] if beaten or earlier is None else [new, earlier, *others]


def _in_order(checkpoints: Sequence[CheckpointInfo]) -> list[CheckpointInfo]:
    return sorted(checkpoints, key=lambda c: c.step, reverse=True)[:MOST_CHECKPOINTS]


def _what_it_has(event: Event) -> dict[str, Any]:
    """Of a worker that is in no view."""
    return {"holding": event.holding, "snapshots": event.snapshots, "memory": event.snapshots, "saving": None}


def _need(event: Event, value: T | None, what: str) -> T:
    if value is None:
        raise IllegalEventError(f"{event.kind} without {what}")
    return value
