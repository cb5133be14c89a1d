"""The layers are cut anew while the job trains."""

import pytest
from planned import job_spec

from lmj_api.cut import Cut
from lmj_api.protocol import WorkerPhase
from lmj_api.status import IncidentKind, Phase

from .cluster import Cluster
from .test_replicas import own, rounds, to_the_end


def cut(stages: int, replicas: int = 1, **recovery: object) -> Cluster:
    """A job of some steps more than the test needs."""
    parts = {"shards": 4, "replicas": replicas}
    pipeline = {"stages": stages, "microBatches": 4}
    return Cluster(job_spec(stages, pipeline=pipeline, dataParallel=parts, recovery=recovery), steps=90, nodes=("a", "b"))


def assert_trains(cluster: Cluster, stages: int, replicas: int = 1) -> None:
    """In so many of both, and nobody else is there."""
    view, status = cluster.status.view, cluster.status
    assert view is not None
    assert view.cut == Cut(stages=stages)
    assert [m.rank for m in view.members] == list(range(stages * replicas))
    assert (status.stages, status.replicas, status.recut) == (stages, replicas, None)
    there = [(p.rank, p.worker.phase) for p in cluster.living()]
    assert sorted(there, key=str) == [(rank, WorkerPhase.RUNNING) for rank in range(stages * replicas)]
    assert all(p.layers == Cut(stages=stages) for p in cluster.living())


@pytest.mark.parametrize("replicas", [1, 2])
def test_any_number_of_stages_follows_any_other(replicas: int) -> None:
    cluster = cut(1, replicas)
    rounds(cluster, 8)
    for before, stages in ((1, 2), (2, 3), (3, 2), (2, 1)):
        at = max(cluster.losses)
        cluster.recut(stages)
        rounds(cluster, 14)
        assert_trains(cluster, stages, replicas)
        assert max(cluster.losses) >= at + 10, "training goes on meanwhile"
        told = cluster.status.incidents[-1]
        assert told.kind is IncidentKind.RECUT
        assert told.message.startswith(f"recut from {Cut(stages=before)} to {Cut(stages=stages)} at step ")
    to_the_end(cluster)
    assert all(times == 1 for times in cluster.losses.values()), "no step was trained twice"
    assert (cluster.status.restarts, cluster.status.steps_lost) == (0, 0)


def test_other_layers_are_another_cut() -> None:
    cluster = cut(2)
    rounds(cluster, 8)
    cluster.recut(2, [1, 3])
    rounds(cluster, 14)
    assert cluster.status.view is not None
    assert cluster.status.view.cut == Cut(stages=2, layers=[1, 3])
    to_the_end(cluster)
    assert all(times == 1 for times in cluster.losses.values())


@pytest.mark.parametrize("dies", ["pod", "worker"])
@pytest.mark.parametrize("passes", range(1, 8))
def test_one_that_is_lost_before_it_takes_over_costs_nothing(dies: str, passes: int) -> None:
    cluster = cut(1)
    rounds(cluster, 8)
    cluster.recut(2)
    rounds(cluster, passes)
    victims = [p for p in cluster.living() if p.layers == Cut(stages=2) and p.worker.phase is not WorkerPhase.RUNNING]
    for victim in victims[-1:]:
        (cluster.kill_pod if dies == "pod" else cluster.kill_worker)(victim)
    rounds(cluster, 16)
    assert_trains(cluster, 2)
    to_the_end(cluster)
    assert all(times == 1 for times in cluster.losses.values())
    assert (cluster.status.restarts, cluster.status.steps_lost) == (0, 0)


@pytest.mark.parametrize("passes", range(1, 8))
def test_a_worker_that_trains_dies_meanwhile(passes: int) -> None:
    cluster = cut(2)
    rounds(cluster, 8)
    cluster.recut(3)
    rounds(cluster, passes)
    cluster.kill_worker(own(cluster, 1))
    rounds(cluster, 20)
    assert_trains(cluster, 3)
    to_the_end(cluster)
    assert cluster.status.steps_lost == 0


@pytest.mark.parametrize("passes", range(7))
def test_what_is_not_wanted_any_more_goes(passes: int) -> None:
    cluster = cut(1)
    rounds(cluster, 8)
    cluster.recut(2)
    rounds(cluster, passes)
    cluster.recut(3)
    rounds(cluster, passes)
    cluster.recut(1)
    rounds(cluster, 14)
    assert_trains(cluster, 1)
    to_the_end(cluster)
    assert all(times == 1 for times in cluster.losses.values())


def finds_no_room(cluster: Cluster, rank: int) -> None:
    """The pod of ``rank`` of two stages does not."""
    for pod in cluster.living():
        if pod.layers == Cut(stages=2) and pod.rank == rank:
            pod.node, pod.reachable = None, False


def finds_room(cluster: Cluster) -> None:
    pod = next(p for p in cluster.living() if p.node is None)
    pod.node, pod.reachable = "b", True


def test_without_room_the_job_trains_on_as_it_is() -> None:
    cluster = cut(1)
    rounds(cluster, 8)
    cluster.recut(2)
    rounds(cluster, 2)
    finds_no_room(cluster, 1)
    rounds(cluster, 8)
    assert (cluster.status.phase, cluster.status.stages) == (Phase.RUNNING, 1)
    assert cluster.status.recut is not None
    assert cluster.status.recut.followers[1].message == "Unschedulable: 0 of 2 nodes are available"
    assert all(pod.worker.phase is not WorkerPhase.FOLLOWING for pod in cluster.living()), "nobody follows alone"
    finds_room(cluster)
    rounds(cluster, 10)
    assert_trains(cluster, 2)


def test_replicas_that_have_no_room_join_later() -> None:
    cluster = cut(1, 2)
    rounds(cluster, 8)
    cluster.recut(2)
    rounds(cluster, 2)
    finds_no_room(cluster, 3)
    rounds(cluster, 10)
    assert (cluster.status.stages, cluster.status.replicas) == (2, 1)
    finds_room(cluster)
    rounds(cluster, 12)
    assert_trains(cluster, 2, 2)
    to_the_end(cluster)
    assert all(times == 1 for times in cluster.losses.values())


def test_before_anybody_trains_the_ranks_begin_in_the_new_cut() -> None:
    cluster = cut(3)
    rounds(cluster, 1)
    cluster.recut(2)
    rounds(cluster, 8)
    assert_trains(cluster, 2)
    assert cluster.status.restarts == 0
    to_the_end(cluster)


def test_a_job_that_rests_goes_on_in_the_new_cut() -> None:
    cluster = cut(2)
    rounds(cluster, 8)
    cluster.interrupted = True
    rounds(cluster, 8)
    assert cluster.status.phase is Phase.SUSPENDED
    cluster.recut(3)
    cluster.interrupted = False
    rounds(cluster, 8)
    assert_trains(cluster, 3)
    to_the_end(cluster)
    assert all(times == 1 for times in cluster.losses.values())


@pytest.mark.parametrize("passes", range(1, 9))
def test_a_job_that_is_to_stop_meanwhile_saves_and_stops(passes: int) -> None:
    cluster = cut(2)
    rounds(cluster, 8)
    cluster.recut(3)
    rounds(cluster, passes)
    cluster.interrupted = True
    rounds(cluster, 12)
    assert cluster.status.phase is Phase.SUSPENDED
    assert cluster.living() == []
    assert cluster.checkpoints[-1] == max(cluster.losses)


def test_with_no_room_and_nobody_who_trains_the_ranks_begin_anew_in_the_new_cut() -> None:
    """A node is lost for good, and somebody makes the job fit into what is left."""
    cluster = cut(3)
    rounds(cluster, 16)
    saved = cluster.checkpoints[-1]
    cluster.kill_pod(own(cluster, 2))
    cluster.nodes = ()
    rounds(cluster, 4)
    assert any(p.node is None for p in cluster.living())
    cluster.nodes = ("a", "b")
    cluster.recut(2)
    rounds(cluster, 24)
    assert_trains(cluster, 2)
    assert cluster.status.steps_lost == max(step for step, times in cluster.losses.items() if times > 1) - saved
    to_the_end(cluster)


@pytest.mark.parametrize("recovery", [{"hotStandby": True}, {"memorySnapshot": {"everySteps": 2}}, {"standby": 1}])
def test_beside_everything_that_keeps_copies(recovery: dict[str, object]) -> None:
    cluster = cut(2, **recovery)
    rounds(cluster, 14)
    for stages in (3, 1):
        cluster.recut(stages)
        rounds(cluster, 24)
        assert (cluster.status.stages, cluster.status.recut) == (stages, None)
    to_the_end(cluster)
    assert all(times == 1 for times in cluster.losses.values())
    assert cluster.status.restarts == 0


def test_a_user_error_in_the_new_cut_leaves_the_job_as_it_is() -> None:
    cluster = cut(1)
    rounds(cluster, 8)
    cluster.recut(2)
    cluster.user_error = True
    rounds(cluster, 6)
    cluster.user_error = False
    rounds(cluster, 4)
    recut = cluster.status.recut
    assert recut is not None
    assert recut.given_up == "column 'text' is not in d.csv"
    assert cluster.status.phase is Phase.RUNNING
    assert all(p.layers == Cut(stages=1) for p in cluster.living())
    to_the_end(cluster)
