"""Every machine has a clock of its own, which may be an hour ahead or behind, or be set at any time."""

from dataclasses import replace

import pytest
from planned import job_spec

from lmj_api.status import Phase
from lmj_operator.plan import PodPhase

from .cluster import Cluster
from .test_hot_standbys import at_work, go_on
from .test_ladder import fail, pod_of
from .test_limits import at_step, rest

HOUR = 3600.0


@pytest.mark.parametrize("node", ["a", "b"])
@pytest.mark.parametrize("ahead", [-HOUR, HOUR])
def test_an_agents_clock_restarts_nobody(node: str, ahead: float) -> None:
    cluster = Cluster(job_spec(2, recovery={"hangTimeoutSeconds": 60, "startTimeoutSeconds": 60}), nodes=("a", "b"))
    cluster.ahead = {node: ahead}
    rest(cluster)
    assert (cluster.status.phase, cluster.status.restarts) == (Phase.SUCCEEDED, 0)


def test_a_hang_is_noticed_in_time_although_the_agents_clocks_are_ahead() -> None:
    cluster = Cluster(job_spec(2, recovery={"hangTimeoutSeconds": 60}), nodes=("a", "b"))
    cluster.ahead = {"a": HOUR, "b": HOUR}
    at_step(cluster, 3)
    cluster.now += 61
    assert [i.kind for i in cluster.reconcile().status.incidents] == ["Hang"]


@pytest.mark.parametrize("ahead", [-HOUR, HOUR])
def test_a_clock_that_is_set_while_a_job_trains_restarts_nobody(ahead: float) -> None:
    cluster = Cluster(job_spec(2, recovery={"hangTimeoutSeconds": 60, "hotStandby": True}), nodes=("a", "b"))
    at_step(cluster, 3)
    cluster.ahead = {"b": ahead}
    rest(cluster)
    assert (cluster.status.phase, cluster.status.restarts) == (Phase.SUCCEEDED, 0)


@pytest.mark.parametrize("ahead", [-HOUR, HOUR])
def test_what_an_operator_with_another_clock_stored_delays_no_recovery(ahead: float) -> None:
    recovery = {"backoffSeconds": 1, "maxBackoffSeconds": 20, "workerRestarts": 10}
    cluster = Cluster(job_spec(2, recovery=recovery), nodes=("a", "b"))
    at_step(cluster, 3)
    cluster.operator_ahead = ahead
    for _ in range(4):
        fail(cluster, 1)
        cluster.tick(30)
        for _ in range(3):
            cluster.reconcile()
            cluster.tick()
    fail(cluster, 1)
    cluster.operator_ahead = 0.0
    step = cluster.status.progress.step if cluster.status.progress is not None else 0
    began = cluster.now
    at_step(cluster, step + 1)
    assert cluster.now - began < 30


def test_a_follower_and_a_standby_are_made_anew_after_an_operator_whose_clock_was_ahead() -> None:
    recovery = {"standby": 1, "hotStandby": True, "maxBackoffSeconds": 20}
    cluster = Cluster(job_spec(1, recovery=recovery), steps=2000, nodes=("a", "b"))
    go_on(cluster, lambda: at_work(cluster, 1) and cluster.status.warm_standbys == 1)
    later = cluster.now + HOUR + 20
    for entry in (cluster.status.followers[0], cluster.status.standbys[0]):
        cluster.pods.pop(entry.pod)
    for _ in range(2):
        cluster.reconcile()
    [follower], [standby] = cluster.status.followers, cluster.status.standbys
    cluster.status.followers[0] = follower.model_copy(update={"not_before": later})
    cluster.status.standbys[0] = standby.model_copy(update={"not_before": later})
    for entry in (follower, standby):
        cluster.pods.pop(entry.pod, None)
    for _ in range(60):
        cluster.tick()
        cluster.reconcile()
    assert cluster.status.warm_standbys == 1
    assert [f.state for f in cluster.status.followers] == ["InSync"]


def test_a_pod_that_no_other_node_takes_is_not_kept_waiting_by_an_operator_whose_clock_was_ahead() -> None:
    recovery = {"workerRestarts": 0, "avoidNode": {"failures": 1, "fallbackSeconds": 20}, "backoffSeconds": 0}
    cluster = Cluster(job_spec(1, recovery=recovery), nodes=("a", "b"))
    at_step(cluster, 3)
    cluster.nodes = ("a",)
    cluster.operator_ahead = HOUR
    observed = cluster.observed
    cluster.observed = lambda pods=None: replace(observed(pods), one_node=False)  # type: ignore[method-assign]
    fail(cluster, 0)
    cluster.reconcile()
    assert pod_of(cluster, 0).node is None
    cluster.operator_ahead = 0.0
    for _ in range(80):
        cluster.tick()
        cluster.reconcile()
    assert cluster.status.phase is Phase.SUCCEEDED, cluster.status.message


def test_a_suspension_is_over_in_time_after_an_operator_whose_clock_was_ahead() -> None:
    cluster = Cluster(job_spec(2), steps=1000, nodes=("a", "b"))
    at_step(cluster, 3)
    cluster.operator_ahead = HOUR
    cluster.interrupted = True
    # Rank 1 never answers any more, and its machine vouches for it.
    pod_of(cluster, 1).reachable = False
    cluster.reconcile()
    cluster.operator_ahead = 0.0
    for _ in range(400):
        cluster.reconcile()
        cluster.tick()
    assert cluster.status.phase is Phase.SUSPENDED
    assert all(pod.phase is not PodPhase.RUNNING for pod in cluster.look())
