"""Who is lost, and what is wanted for it."""

import pytest
from tests.unit.operator.seen import facts, observed, pod, view, worker

from lmj_api.protocol import WorkerPhase
from lmj_api.spec import Recovery
from lmj_api.status import IncidentKind, JobStatus, Phase, RankStatus
from lmj_operator.plan import PodObserved, PodPhase, PutView, StartWorker
from lmj_operator.plan.failures.failures import Failure, Remedy, _accused, find_failures
from lmj_operator.plan.failures.links import find_dropped
from lmj_operator.plan.gathering import gathers
from lmj_operator.plan.pods.wants import Want, pod_actions, view_actions, wants


@pytest.mark.parametrize(("heartbeat", "is_lost"), [(90.0, True), (100.0, True), (100.5, False)])
def test_a_follower_is_believed_where_no_peer_has_made_progress_since(heartbeat: float, is_lost: bool) -> None:
    """It lost its source at 100 s; the source's agent has been silent since then."""
    first, silent = pod(0, 1, worker(heartbeat=heartbeat)), pod(1, 1, unreachable_since=100.0)
    witness = pod(1, 2, worker(WorkerPhase.READY, since=100.0, lost="its source is gone"))
    ranks = facts(0, first), facts(1, silent, follower=witness)
    found = find_failures("j", ranks, view(first, silent), Recovery(), now=104.0)
    assert [(f.rank, f.kind, f.remedy) for f in found] == ([(1, "PodGone", Remedy.POD)] if is_lost else [])


@pytest.mark.parametrize(("peer", "is_lost"), [(90.0, True), (100.5, False)])
def test_a_sign_of_life_of_a_rank_itself_says_nothing_of_its_links(peer: float, is_lost: bool) -> None:
    """It made progress before it went silent, as far as anybody knows."""
    mine = worker(heartbeat=101.0)
    first, silent = pod(0, 1, worker(heartbeat=peer)), pod(1, 1, mine)
    witness = pod(1, 2, worker(WorkerPhase.READY, since=100.0, lost="its source is gone"))
    ranks = facts(0, first), facts(1, silent, follower=witness)
    assert (1 in _accused(ranks, view(first, silent), 104.0)) == is_lost


EVICTED, CORDONED = {"disrupted": "it was evicted"}, {"node_leaving": "node n is cordoned"}
SILENT = {"unreachable_since": 10.0}
DARK = "its machine is off, or there is no way to it"


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        (pod(0, 1, phase=PodPhase.GONE, exit_code=143, **EVICTED), "it was evicted"),
        (pod(0, 1, phase=PodPhase.GONE, exit_code=1, **CORDONED), None),
        (pod(0, 1, phase=PodPhase.TERMINATING, **EVICTED), "it was evicted"),
        (pod(0, 1, phase=PodPhase.TERMINATING, **CORDONED), "node n is cordoned"),
        (pod(0, 1, phase=PodPhase.TERMINATING), None),
        (pod(0, 1, worker(WorkerPhase.DRAINED), **EVICTED), "it was evicted"),
        (pod(0, 1, worker(WorkerPhase.DRAINED), **CORDONED), "node n is cordoned"),
        (pod(0, 1, worker(WorkerPhase.DRAINED)), None),
        (pod(0, 1, dark=True, **SILENT), DARK),
        (pod(0, 1, disrupted="its node n is not ready", dark=True, **SILENT), "its node n is not ready"),
        (pod(0, 1, **SILENT), None),
        (pod(0, 1, worker(WorkerPhase.EXITED), **EVICTED), None),
        (None, None),
    ],
)
def test_what_the_cluster_takes_away_is_known_from_what_ends_by_itself(seen: PodObserved | None, why: str | None) -> None:
    (failure,) = find_failures("j", (facts(0, seen),), None, Recovery(), now=100.0)
    assert failure.disruption == why


def test_a_pod_that_never_answered_is_not_taken_for_one_that_was_taken_away() -> None:
    """It may not start anywhere: its budget has an end."""
    seen = pod(0, 1, dark=True, created=10.0, **SILENT)
    new = facts(0, seen, known=RankStatus(rank=0, state="NoPod"))
    (failure,) = find_failures("j", (new,), None, Recovery(start_timeout_seconds=60), now=100.0)
    assert (failure.kind, failure.disruption) == (IncidentKind.START_TIMEOUT, None)


@pytest.mark.parametrize(
    ("remedy", "want"),
    [
        (Remedy.POD, Want(2, 1, replaced=True)),
        (Remedy.WORKER, Want(1, 2, replaced=True)),
        (Remedy.VIEW, Want(1, 1, replaced=False)),
    ],
)
def test_what_replaces_a_failed_one_counts_as_a_restart(remedy: Remedy, want: Want) -> None:
    ranks = facts(0, pod(0, 1, worker())), facts(1, pod(1, 1, worker()))
    assert wants(ranks, (Failure(IncidentKind.POD_GONE, 1, "j-r1-1", "", remedy),)) == {0: Want(1, 1), 1: want}


@pytest.mark.parametrize(("number", "not_before", "starts"), [(1, 101.0, True), (2, 101.0, False), (2, 100.0, True)])
def test_a_first_worker_starts_at_once_and_another_after_its_pause(number: int, not_before: float, starts: bool) -> None:
    seen = pod(0, 1, worker(WorkerPhase.EXITED, incarnation=number - 1))
    made = pod_actions((seen,), (facts(0, seen),), {0: Want(1, number)}, {}, not_before, 100.0)
    assert made == ((StartWorker("j-r0-1", number),) if starts else ())


def test_of_two_that_left_a_view_the_first_is_named() -> None:
    pods = [pod(i, 1, worker(WorkerPhase.READY, since=since)) for i, since in enumerate((100.5, 100.0))]
    ranks = tuple(facts(i, seen) for i, seen in enumerate(pods))
    failure, _ = find_dropped(ranks, view(*pods), 101.0, 200.0)
    assert failure is not None
    assert failure.rank == 1


@pytest.mark.parametrize(("known", "waited_for"), [("j-r1-1", True), ("j-r1-0", False)])
def test_a_silent_pod_may_hold_what_its_worker_had(known: str, waited_for: bool) -> None:
    pods = pod(0, 1, worker(WorkerPhase.READY)), pod(1, 1)
    told = RankStatus(rank=1, pod=known, state="Running", incarnation=1)
    ranks = facts(0, pods[0]), facts(1, pods[1], known=told)
    status = JobStatus(phase=Phase.SUSPENDING, phase_since=99.0, view=view(*pods))
    assert gathers(observed(*pods, status=status), ranks, view(*pods), 8, 100.0) is waited_for


@pytest.mark.parametrize(("accepted", "joined", "told"), [(2, 2, True), (3, 2, True), (3, 3, False)])
def test_a_member_is_told_its_view_until_it_is_in_it(accepted: int, joined: int, told: bool) -> None:
    seen = pod(0, 1, worker(WorkerPhase.READY, view=joined), agent={"known_view": accepted})
    newest = view(seen)
    assert view_actions((facts(0, seen),), newest) == ((PutView("j-r0-1", newest),) if told else ())
