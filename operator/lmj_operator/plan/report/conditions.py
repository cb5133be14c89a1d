"""Standing facts in Kubernetes' style."""

from collections.abc import Sequence
from typing import Literal

from lmj_api.protocol import CheckpointInfo, CheckpointTrouble, Evaluation
from lmj_api.status import Condition, FollowerStatus, JobStatus, MoveStatus, Phase, RecutStatus
from lmj_operator.plan.observe.enforcement import is_enforced, reached
from lmj_operator.plan.observe.lists import few
from lmj_operator.plan.observe.observed import PodObserved
from lmj_operator.plan.observe.times import rfc3339
from lmj_operator.plan.observe.units import duration, size

_ACTIVE = frozenset({Phase.PENDING, Phase.RUNNING, Phase.RECOVERING})

_HOLDS: dict[str, frozenset[Phase]] = {
    "Available": frozenset({Phase.RUNNING}),
    "Progressing": _ACTIVE | {Phase.SUSPENDING},
    "Suspended": frozenset({Phase.SUSPENDED}),
    "Succeeded": frozenset({Phase.SUCCEEDED}),
    "Failed": frozenset({Phase.FAILED}),
}
"""In which phases each condition is true."""


WAITING = "PodsWaiting"
"""The condition that says which pod does not start and since when; there once a pod had to wait."""

STALE = "CheckpointStale"
"""The condition that says why there is no newer checkpoint and since when; there once one could not be written."""

MIGRATING = "Migrating"
"""The condition that says which ranks move and how far they are; there once one was to."""

RECUTTING = "Recutting"
"""The condition that says into what the layers are to be cut, and how far that is; there once they were to."""

NOT_FINITE = "LossNotFinite"
"""The condition that says since which step an evaluation's loss is not a number; there once one was not."""

STRAGGLER = "Straggler"
"""The condition that says which ranks compute slower than their peers and since when; there once one did."""

REFUSED = "ChangeRefused"
"""The condition that says why a change of the spec is not followed; there once one was not."""

NOT_ENFORCED = "NetworkPolicyNotEnforced"
"""The condition that says which pods the operator reached where the job's NetworkPolicy does not let it; there once it reached one."""

PUBLISHED = "Published"
"""The condition that says whether the model is on the hub, and why not; there once it was to be. The end of a job says it."""

RECONCILE_FAILED = "ReconcileFailed"
"""The condition that says which error ends the operator's passes over the job; there once one did. No pass of the plan changes it."""


def with_condition(
    status: JobStatus, kind: str, holds: bool, reason: str, message: str, generation: int | None, now: float
) -> JobStatus:
    """``status`` with one condition as it is said here, and all others as they are."""
    old = next((c for c in status.conditions if c.type == kind), None)
    others = [c for c in status.conditions if c.type != kind]
    return status.model_copy(update={"conditions": [*others, _made(old, kind, holds, reason, message, generation, now)]})


def _made(
    old: Condition | None, kind: str, holds: bool, reason: str, message: str, generation: int | None, since: float
) -> Condition:
    """The condition ``kind``, since then unless it was so before: it was ``old``."""
    status: Literal["True", "False"] = "True" if holds else "False"
    if old is None or old.status != status:
        return Condition(
            type=kind,
            status=status,
            reason=reason,
            message=message,
            last_transition_time=rfc3339(since),
            observed_generation=generation,
        )
    if (old.reason, old.message, old.observed_generation) == (reason, message, generation):
        return old
    return old.model_copy(update={"reason": reason, "message": message, "observed_generation": generation})


def conditions(
    old: list[Condition],
    phase: Phase,
    message: str,
    generation: int | None,
    now: float,
    waiting: PodObserved | None = None,
    problem: str | None = None,
    trouble: CheckpointTrouble | None = None,
    saved: CheckpointInfo | None = None,
    renewed: bool = False,
    moves: Sequence[MoveStatus] = (),
    followers: Sequence[FollowerStatus] = (),
    evaluations: Sequence[Evaluation] = (),
    recut: RecutStatus | None = None,
    slow: str | None = None,
    pods: Sequence[PodObserved] = (),
    encrypted: bool = False,
) -> list[Condition]:
    """All conditions of a job in ``phase``; the time of one changes only with its status.

    ``waiting``: a pod that cannot start. ``problem``: why a change of the spec is not followed.
    ``moves``, and the ``followers`` that they are made with: ranks that are to run elsewhere.
    ``evaluations``: the newest of each split, and the best. ``recut``: pods of another cut that are to take over.
    ``slow``: which ranks are, in a sentence. ``pods``: all of the job's. ``encrypted``: ranks are reached through relays alone.
    ``trouble``: what is said of checkpoints that fail; ``saved``: the newest good one; ``renewed``: it is newer than that of ``old``.
    """
    before = {c.type: c for c in old}

    def made(name: str, holds: bool, reason: str, text: str, since: float = now) -> Condition:
        return _made(before.get(name), name, holds, reason, text, generation, since)

    standing = [made(name, phase in phases, phase.value, message) for name, phases in _HOLDS.items()]
    if waiting is not None and (wait := waiting.waits) is not None:
        standing.append(made(WAITING, True, wait.reason, f"pod {waiting.name}: {wait.message}", wait.since))
    elif WAITING in before:
        standing.append(made(WAITING, False, "PodsStarted", "no pod waits"))
    if trouble is not None:
        standing.append(made(STALE, True, *_stale(trouble, saved), trouble.since))
    elif STALE in before:
        standing.append(_stale_no_more(before[STALE], saved if renewed else None, now, generation))
    if MIGRATING in before or any(move.given_up is None for move in moves):
        standing.append(made(MIGRATING, *_moving(moves, followers)))
    if recut is not None or RECUTTING in before:
        standing.append(made(RECUTTING, *_recutting(recut)))
    for kind, why, told, well, end in (
        (NOT_FINITE, "NotANumber", _not_finite(evaluations), "Finite", "the newest losses are numbers"),
        (STRAGGLER, "SlowRank", slow, "NoSlowRank", "no rank is slower than its peers"),
        (REFUSED, "SpecInvalid", problem, "SpecAccepted", "the spec is followed"),
    ):
        if told is not None:
            standing.append(made(kind, True, why, told))
        elif kind in before:
            standing.append(made(kind, False, well, end))
    if (policy := _enforcement(before.get(NOT_ENFORCED), pods, encrypted)) is not None:
        standing.append(made(NOT_ENFORCED, *policy))
    standing += [before[kind] for kind in (PUBLISHED, RECONCILE_FAILED) if kind in before]
    return standing


def _stale(trouble: CheckpointTrouble, saved: CheckpointInfo | None) -> tuple[str, str]:
    """Why checkpoints fail in a word, and in a sentence that tells of the newest one, ``saved``."""
    newest = f"the newest is of step {saved.step}" if saved is not None else "there is none"
    reason = "CredentialsRefused" if trouble.refused else "WriteFailed"
    return reason, f"the checkpoint of step {trouble.step} failed: {trouble.error}; {newest}"


def _enforcement(old: Condition | None, pods: Sequence[PodObserved], encrypted: bool) -> tuple[bool, str, str] | None:
    """Whether the network lets the operator through, why in a word, and in a sentence; None: that never was so. It was ``old``."""
    told = reached(pods)
    if told is not None:
        mend = "use a network that enforces policies, and let no other policy allow more"
        risk = "the ports of its ranks, which run what they are sent"
        if encrypted:
            risk = "its relays, which let in nobody but its ranks"
        return True, "PortReached", f"{told}: others may reach {risk}; {mend}"
    if old is None:
        return None
    if is_enforced(pods):
        return False, "PortClosed", "the network enforces the job's NetworkPolicy"
    return old.status == "True", old.reason, old.message  # no pod says anything of it now


def _not_finite(evaluations: Sequence[Evaluation]) -> str | None:
    """Which loss is not a number, in a sentence; None: all are."""
    odd = min((e for e in evaluations if e.loss is None), key=lambda e: e.step, default=None)
    if odd is None:
        return None
    return f"the {odd.split} loss of step {odd.step} is not a number; lower training.learningRate or set training.maxGradNorm"


def _moving(moves: Sequence[MoveStatus], followers: Sequence[FollowerStatus]) -> tuple[bool, str, str]:
    """Whether any is under way; how far the one that is least so is, in a word; and all of them in a sentence."""
    entries = {follower.rank: follower for follower in followers}
    order = ("Checkpoint", "Pending", "Starting", "Copying", "InSync")
    under_way = [(move, entries.get(move.rank)) for move in moves if move.given_up is None]
    if not under_way:
        stopped = next(iter(moves), None)
        return (
            (False, "NothingMoves", "no rank moves")
            if stopped is None
            else (False, "GivenUp", f"rank {stopped.rank}: {stopped.given_up}")
        )
    told = []
    for move, entry in under_way:
        where = f"{move.node or 'its node'}{f' for {move.to}' if move.to is not None else ''}"
        how = (
            "through a checkpoint"
            if move.strategy == "Checkpoint"
            else f"its new pod is {_words(_state(move, entry))}{copied(entry)}"
        )
        told.append(f"rank {move.rank} leaves {where} because {move.reason}: {how}")
    return True, min((_state(move, entry) for move, entry in under_way), key=order.index), few(told, "; ")


def _recutting(recut: RecutStatus | None) -> tuple[bool, str, str]:
    """Whether it is under way; how far it is, in a word and in a sentence."""
    if recut is None:
        return False, "NothingRecut", "the layers are cut as the spec says"
    if recut.given_up is not None:
        return False, "GivenUp", f"not into {recut.cut}: {recut.given_up}"
    synced = sum(pod.state == "InSync" for pod in recut.followers)
    waits = next((f"; pod {pod.pod} waits: {pod.message}" for pod in recut.followers if pod.message is not None), "")
    text = f"the layers are to be in {recut.cut}: {synced} of {len(recut.followers)} pods are in sync{waits}"
    return True, recut.state, text


def _state(move: MoveStatus, entry: FollowerStatus | None) -> str:
    """How far ``move`` is, with its follower."""
    if move.strategy == "Checkpoint":
        return move.strategy
    return entry.state if entry is not None else "Pending"


def _words(state: str) -> str:
    return "in sync" if state == "InSync" else state.lower()


def copied(entry: FollowerStatus | None) -> str:
    """How far its copy is."""
    if entry is None or entry.copied is None:
        return ""
    at = entry.copied
    if entry.state == "InSync":
        return f" since step {at.in_sync_step}" if at.in_sync_step is not None else ""
    left = f", {duration(at.eta_seconds)} left" if at.eta_seconds is not None else ""
    return f", {size(at.done)} of {size(at.size)}{left}"


def _stale_no_more(stale: Condition, newer: CheckpointInfo | None, now: float, generation: int | None) -> Condition:
    """The condition ``stale`` when nobody reports trouble: a pod that is new reports none either, so only a newer checkpoint ends it."""
    if stale.status != "True" or newer is None:
        return stale
    text = f"the checkpoint of step {newer.step} is durable"
    return stale.model_copy(
        update={
            "status": "False",
            "reason": "Written",
            "message": text,
            "last_transition_time": rfc3339(now),
            "observed_generation": generation,
        }
    )
