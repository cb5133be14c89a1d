"""The storage of checkpoints answers nothing while a rank is lost: what is in memory needs none."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from planned import job_spec

from lmj_api.protocol import WorkerPhase
from lmj_api.status import Phase
from lmj_operator.plan.membership.looking import LOOK_SECONDS

from .cluster import Cluster
from .test_machine import RANKS, RECOVERY, Faults, examples
from .test_snapshots import EVERY, at_work, cluster_of, go_on, pod_of, step_of

SOON = 5.0
"""Seconds for another pod, or worker, and the next view."""


def lose(cluster: Cluster, rank: int, gpu: bool) -> None:
    """The rank's memory goes, with its pod or with its worker on a GPU."""
    cluster.gpu = gpu
    if gpu:
        cluster.kill_worker(pod_of(cluster, rank))
    else:
        cluster.kill_pod(pod_of(cluster, rank))


def at(step: int, ranks: int = 2) -> Cluster:
    """A cluster that has just committed ``step``; no checkpoint was taken."""
    cluster = cluster_of(ranks)
    go_on(cluster, lambda: step_of(cluster) >= step)
    assert step_of(cluster) == step
    return cluster


@pytest.mark.parametrize("gpu", [False, True])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_snapshot_is_gone_on_from_after_a_while(rank: int, gpu: bool) -> None:
    cluster = at(3 * EVERY + 2)
    cluster.hangs = True
    lose(cluster, rank, gpu)
    died = cluster.now
    go_on(cluster, lambda: at_work(cluster, 2))
    assert LOOK_SECONDS <= cluster.now - died <= LOOK_SECONDS + SOON
    view = cluster.status.view
    assert view is not None
    assert (view.resume.snapshot, view.resume.step) == (True, 3 * EVERY)
    assert "did not answer" in view.reason
    assert cluster.status.look_since is None


@pytest.mark.parametrize("gpu", [False, True])
@pytest.mark.parametrize("rank", [0, 1])
def test_nobody_waits_where_the_snapshot_is_of_the_newest_step(rank: int, gpu: bool) -> None:
    """Every rank has a part in each checkpoint: one that has its state yet bounds what was saved."""
    cluster = at(3 * EVERY, ranks=3)
    group = [pod_of(cluster, rank) for rank in range(3)]
    for pod, following in zip(group, [*group[1:], group[0]], strict=True):
        following.kept = [*pod.own]  # they get there beside the next step
    cluster.hangs = True
    lose(cluster, rank, gpu)
    died = cluster.now
    go_on(cluster, lambda: at_work(cluster, 2))
    assert cluster.now - died <= SOON
    view = cluster.status.view
    assert view is not None
    assert (view.resume.snapshot, view.resume.step) == (True, 3 * EVERY)
    assert "did not answer" not in view.reason


def test_a_look_is_waited_for_where_a_checkpoint_may_be_newer() -> None:
    cluster = at(3 * EVERY + 2)
    cluster.save(3 * EVERY + 1, pod_of(cluster, 0), heard=False)
    cluster.hangs = True
    lose(cluster, 1, gpu=False)
    for _ in range(int(2 * LOOK_SECONDS) - 10):
        cluster.reconcile()
        cluster.tick(0.5)
    assert cluster.status.view is not None
    assert cluster.status.view.number == 1
    cluster.hangs = False
    go_on(cluster, lambda: at_work(cluster, 2))
    assert (cluster.status.view.resume.snapshot, cluster.status.view.resume.step) == (False, 3 * EVERY + 1)


def test_a_checkpoint_that_turns_up_later_stays_and_changes_nothing() -> None:
    cluster = at(3 * EVERY + 2)
    cluster.save(3 * EVERY + 1, pod_of(cluster, 0), heard=False)
    cluster.hangs = True
    lose(cluster, 1, gpu=False)
    go_on(cluster, lambda: at_work(cluster, 2))
    cluster.hangs = False
    go_on(cluster, lambda: step_of(cluster) >= 6 * EVERY)
    assert 3 * EVERY + 1 in cluster.checkpoints
    lose(cluster, 0, gpu=False)
    go_on(cluster, lambda: at_work(cluster, 3))
    view = cluster.status.view
    assert view is not None
    assert view.resume.snapshot
    assert view.resume.step >= 5 * EVERY


@pytest.mark.parametrize(("known", "rank"), [(False, 1), (True, 1), (True, 0)])
def test_where_only_a_checkpoint_helps_it_is_waited_for_and_the_job_says_so(known: bool, rank: int) -> None:
    """No rank has a snapshot; or the newest in memory is behind a checkpoint that is known, be it to nobody but the operator any more."""
    cluster = at(3 * EVERY + 2)
    cluster.save(3 * EVERY + 1, pod_of(cluster, 0))
    cluster.reconcile()
    if not known:
        for pod in cluster.pods.values():
            pod.own, pod.kept = [], []
    cluster.hangs = True
    lose(cluster, rank, gpu=False)
    for _ in range(int(4 * LOOK_SECONDS)):
        cluster.reconcile()
        cluster.tick(0.5)
    assert cluster.status.phase is Phase.RECOVERING
    assert cluster.status.message == (
        f"waits for the checkpoints, which sim-r0-{2 - rank} could not look through within 30 s, and memory is not enough: "
        "can it read checkpoint.path (by default in output.path)?"
    )
    cluster.hangs = False
    go_on(cluster, lambda: at_work(cluster, 2))
    assert cluster.status.view is not None
    assert cluster.status.view.resume.step == 3 * EVERY + 1


def test_a_job_that_is_to_stop_forms_no_view_for_what_is_saved() -> None:
    cluster = at(3 * EVERY + 2)
    cluster.save(3 * EVERY, pod_of(cluster, 0))
    cluster.hangs = True
    lose(cluster, 1, gpu=False)
    cluster.reconcile()
    cluster.interrupted = True
    asked = cluster.now
    go_on(cluster, lambda: cluster.status.phase is Phase.SUSPENDED)
    assert cluster.now - asked <= LOOK_SECONDS + SOON
    assert cluster.status.view is not None
    assert cluster.status.view.number == 1


def test_the_first_view_waits_for_storage_and_the_job_says_so() -> None:
    cluster = Cluster(job_spec(2))
    cluster.hangs = True
    for _ in range(int(4 * LOOK_SECONDS)):
        cluster.reconcile()
        cluster.tick(0.5)
    assert "can it read checkpoint.path" in cluster.status.message
    cluster.hangs = False
    go_on(cluster, lambda: at_work(cluster, 1))


class HangFaults(Faults):
    """Every fault at every moment, with snapshots, on storage that hangs now and then."""

    spec = job_spec(RANKS, recovery={**RECOVERY, "memorySnapshot": {"everySteps": EVERY}})

    @rule(hangs=st.booleans())
    def storage_hangs(self, hangs: bool) -> None:
        self.cluster.hangs = hangs

    @precondition(lambda self: not self.cluster.hangs)
    @rule()
    def a_checkpoint_is_not_heard_of(self) -> None:
        pods = [p for p in self.cluster.living() if p.worker.phase is WorkerPhase.RUNNING]
        views = {p.worker.view for p in pods}
        if len(pods) == RANKS and views == {self.cluster.committed_view} and len({p.step for p in pods}) == 1:
            first = next(p for p in pods if p.rank == 0)
            self.cluster.save(first.step or 0, first, heard=False)

    def teardown(self) -> None:
        self.cluster.hangs = False
        super().teardown()


TestHangs, TestMoreHangs, TestManyHangs = examples(HangFaults)
