"""The parts of the status that tell what the ranks do now."""

from collections.abc import Mapping

from lmj_api.protocol import STARTING_SCRIPT, CheckpointInfo, CheckpointTrouble, Evaluation, Progress, WorkerPhase
from lmj_api.spec import Training
from lmj_api.status import JobStatus, RankStatus, StateCopy
from lmj_api.topology import FIRST, Rank, Topology
from lmj_api.view import View
from lmj_operator.plan.failures.failures import Failure
from lmj_operator.plan.membership.looking import has_looked
from lmj_operator.plan.observe.facts import RankFacts
from lmj_operator.plan.observe.observed import Observed, PodPhase
from lmj_operator.plan.pods.wants import Want
from lmj_operator.plan.report.conditions import STALE
from lmj_operator.plan.report.copies import copies

EXIT_BYTES = 1 << 15
"""Of the messages of all ranks' failures together: a status has to fit into an object of a cluster. Incidents have them whole."""

TRAINED = (WorkerPhase.RUNNING, WorkerPhase.COMPLETED, WorkerPhase.DRAINED)


def progress(ranks: tuple[RankFacts, ...], view: View | None, old: Progress | None) -> Progress | None:
    """The newest committed step that a member of ``view`` reports (it is lower than ``old`` after a rollback); else ``old``."""
    number = view.number if view else 0
    reports = [f.worker.progress for f in ranks if f.worker is not None and f.in_phase(*TRAINED) and f.worker.view >= number]
    # Of a script that starts again nothing is known before it reports.
    known = [p for p in reports if p is not None and (p.activity != STARTING_SCRIPT or old is None)]
    # At the same step the rank that knows the loss says more than one that does not.
    best = max(known, key=lambda p: (p.step, p.loss is not None, p.samples_per_second is not None), default=old)
    if best is not None and best.loss is None:
        # Rank 0 alone knows the loss, and another may have been asked when it was a step further.
        best = next((p for p in known if p.loss is not None and p.step == best.step - 1), best)
    if best is not None:
        best = _short(best)
    if best is None or old is None or best.step != old.step:
        return best
    # While it evaluates or exports it speaks of its activity alone: what was known of the step stays true.
    facts = ("loss", "learning_rate", "grad_norm", "samples_per_second", "eta_seconds", "replicas", "stopped")
    kept = {name: getattr(old, name) for name in facts if getattr(best, name) is None}
    return best.model_copy(update=kept)


def step_seconds(at: Progress | None, training: Training) -> float | None:
    """What a step takes at the speed of ``at``; None: that is not known."""
    samples = training.batch_size * training.gradient_accumulation_steps
    return samples / at.samples_per_second if at is not None and at.samples_per_second else None


def without_ages(status: JobStatus) -> JobStatus:
    """``status`` without what changes by waiting alone."""
    return status.model_copy(update={"ranks": [rank.model_copy(update={"heartbeat_seconds": None}) for rank in status.ranks]})


def _short(at: Progress) -> Progress:
    """``at`` with numbers that fit in a table; the metrics hold all digits."""
    loss = None if at.loss is None else float(f"{at.loss:.5g}")
    return at.model_copy(update={"epoch": round(at.epoch, 3), "loss": loss})


def newest_step(ranks: tuple[RankFacts, ...], old: Progress | None) -> int:
    """Highest committed step that anybody has told of, the workers that died since included."""
    told = [f.pod.agent.worker.progress for f in ranks if f.pod is not None and f.pod.agent is not None]
    return max([p.step for p in told if p is not None] + [old.step if old else 0])


def leader(ranks: tuple[RankFacts, ...], view: View | None) -> RankFacts:
    """The rank that leads ``view``; before the first one, the one that leads where all are there."""
    number = view.members[0].rank if view is not None else FIRST
    return ranks[number if number < len(ranks) else FIRST]


def evaluations(ranks: tuple[RankFacts, ...], view: View | None, old: list[Evaluation]) -> list[Evaluation]:
    """The evaluations that the leader of ``view`` reports; the old ones while it is not there."""
    agent = leader(ranks, view).agent
    return agent.evaluations if agent is not None and agent.evaluations else old


def checkpoints(observed: Observed, ranks: tuple[RankFacts, ...], newest: View | None) -> list[CheckpointInfo]:
    """The usable ones: what rank 0 knows if it has looked since ``newest`` began, else what anybody reports or has told."""
    old, first = observed.status.checkpoint, ranks[FIRST].agent
    if first is not None and has_looked(first, newest):
        return first.good_checkpoints
    told = [c for pod in observed.pods if pod.agent is not None for c in pod.agent.good_checkpoints]
    return [*told, *([old] if old is not None else [])]


def checkpoint(observed: Observed, ranks: tuple[RankFacts, ...], newest: View | None) -> CheckpointInfo | None:
    """The newest of :func:`checkpoints`; where there is none, what was the newest before."""
    return max(checkpoints(observed, ranks, newest), key=lambda c: c.step, default=observed.status.checkpoint)


def state_copies(observed: Observed, ranks: tuple[RankFacts, ...], newest: View | None, *, rests: bool) -> list[StateCopy]:
    """Where the states are that training could go on from. ``rests``: nobody has any in memory. None of a script's, which saves its own."""
    if observed.spec.strategy.stateless:
        return []
    lead = leader(ranks, newest)
    # It hears of each checkpoint that is written, and of each that is removed for it.
    known = lead.agent.good_checkpoints if lead.agent is not None else []
    return copies(
        observed.spec.topology,
        () if rests else ranks,
        known or checkpoints(observed, ranks, newest),
        lead.worker.saving if lead.worker is not None and not rests else None,
        () if lead.agent is not None and lead.agent.scanned else observed.status.copies,
    )


def checkpoint_trouble(ranks: tuple[RankFacts, ...], view: View | None) -> CheckpointTrouble | None:
    """What the leader of ``view``, which writes the manifests, says of checkpoints that fail."""
    agent = leader(ranks, view).agent
    return agent.checkpoint_trouble if agent is not None else None


def is_renewed(old: CheckpointInfo | None, saved: CheckpointInfo | None) -> bool:
    """Whether ``saved`` was made since ``old`` was the newest: no clock is asked, because each pod has its own."""
    return saved is not None and (old is None or saved.step > old.step)


def is_stale(observed: Observed, ranks: tuple[RankFacts, ...]) -> bool:
    """Whether checkpoints fail, as far as anybody knows.

    A pod that took rank 0's place knows of no failure before its own, so what was known holds until there is a newer checkpoint.
    """
    status = observed.status
    if checkpoint_trouble(ranks, status.view) is not None:
        return True
    known = any(c.type == STALE and c.status == "True" for c in status.conditions)
    return known and not is_renewed(status.checkpoint, checkpoint(observed, ranks, status.view))


def rank_table(
    topology: Topology,
    ranks: tuple[RankFacts, ...],
    wanted: dict[int, Want],
    failures: tuple[Failure, ...],
    now: float,
    fruitless: Mapping[int, int],
) -> list[RankStatus]:
    """All ranks. ``wanted`` is written before it is done, so that a restart is counted once, whatever happens in between.

    ``fruitless``: restarts of each rank's worker in its pod, in a row without a new step, before ``failures``.
    """
    hit = {f.rank: f for f in failures}
    table = [_rank(topology.rank(f.rank), f, wanted[f.rank], hit.get(f.rank), now, fruitless.get(f.rank, 0)) for f in ranks]
    told = [len(entry.exit_message.encode()) for entry in table if entry.exit_message is not None]
    return table if sum(told) <= EXIT_BYTES else [_in_short(entry, EXIT_BYTES // len(told)) for entry in table]


def _rank(place: Rank, facts: RankFacts, want: Want, failure: Failure | None, now: float, fruitless: int) -> RankStatus:
    stays = want.serial == facts.serial
    if not stays and facts.follower_answers and facts.entry is not None and want.serial == facts.entry.serial:
        # Known from now on as what it is: a pod whose worker trains, not one that has not answered yet.
        facts, stays = facts.in_follower(), False
    pod, known = facts.pod, facts.known
    worker = pod.agent.worker if pod is not None and pod.agent is not None else None
    had_worker = pod is not None and known.pod == pod.name and known.incarnation > 0
    incarnation = known.incarnation
    if pod is not None and want.serial == facts.serial:
        # The number speaks of the pod that is named: a pod that has not answered yet has no worker.
        incarnation = want.incarnation if worker is not None or had_worker else 0
    return RankStatus(
        rank=place.number,
        replica=place.replica,
        stage=place.stage,
        pod=pod.name if pod is not None else known.pod,
        node=pod.node if pod is not None else known.node,
        state=_state(facts),
        incarnation=incarnation,
        step=worker.progress.step if worker is not None and worker.progress is not None else known.step,
        heartbeat_seconds=round(max(0.0, now - worker.heartbeat), 1) if worker is not None and worker.heartbeat else None,
        compute_seconds=_digits(worker.compute_seconds) if worker is not None else None,
        restarts=known.restarts + want.replaced,
        worker_restarts=fruitless + want.replaced if stays else 0,
        exit_code=failure.exit_code if failure is not None else known.exit_code,
        exit_message=failure.message if failure is not None else known.exit_message,
    )


def _digits(seconds: float | None) -> float | None:
    """``seconds`` with three digits: more of them are noise."""
    return None if seconds is None else float(f"{seconds:.3g}")


def _in_short(entry: RankStatus, room: int) -> RankStatus:
    """``entry`` with its failure told in ``room`` bytes."""
    whole = (entry.exit_message or "").encode()
    if len(whole) <= room:
        return entry
    return entry.model_copy(update={"exit_message": f"{whole[: room - 3].decode(errors='ignore')}…"})


def _state(facts: RankFacts) -> str:
    if facts.pod is None or facts.pod.phase is PodPhase.GONE:
        return "NoPod"
    if facts.pod.agent is None:
        return "Unreachable" if facts.known.pod == facts.pod.name and facts.known.incarnation else "Pending"
    return facts.pod.agent.worker.phase.value
