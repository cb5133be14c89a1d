"""Jobs that run a script: who is in a view, when it is left, and what is told of it."""

import pytest

from lmj_api.protocol import WorkerPhase
from lmj_api.status import IncidentKind, Phase

from .script_cluster import ScriptCluster, script_spec
from .test_replicas import own, ranks, rounds, to_the_end, trains


def scripted(replicas: int, steps: int = 60, **parts: object) -> ScriptCluster:
    return ScriptCluster(script_spec(replicas, **parts), steps=steps, nodes=("a", "b"))


def views(cluster: ScriptCluster) -> int:
    assert cluster.status.view is not None
    return cluster.status.view.number


@pytest.mark.parametrize("replicas", [1, 3])
def test_a_script_runs_to_its_end_in_one_view(replicas: int) -> None:
    cluster = scripted(replicas)
    to_the_end(cluster)
    assert views(cluster) == 1
    assert cluster.status.message == "the script has ended"
    assert set(cluster.losses.values()) == {1}
    assert cluster.status.progress is not None
    assert cluster.status.progress.step == 60


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("lost", [0, 2])
def test_a_process_that_fails_is_waited_for_where_its_pod_lives(lost: int, given: bool) -> None:
    cluster = scripted(3)
    cluster.given = given
    rounds(cluster, 13)
    cluster.kill_worker(own(cluster, lost))
    to_the_end(cluster)
    assert views(cluster) == 2, "the script starts once more, not twice"
    assert cluster.status.restarts == 1
    (incident,) = cluster.status.incidents
    assert incident.kind is IncidentKind.WORKER_EXITED
    redone = sum(times - 1 for times in cluster.losses.values())
    assert incident.steps_lost == cluster.status.steps_lost == redone > 0
    assert "starts the script" in incident.recovery


@pytest.mark.parametrize("lost", [0, 2])
def test_a_pod_that_is_gone_is_not_waited_for_and_joins_again(lost: int) -> None:
    cluster = scripted(3)
    rounds(cluster, 12)
    cluster.kill_pod(own(cluster, lost))
    cluster.nodes = ()
    rounds(cluster, 4)
    assert ranks(cluster.status.view) == trains(cluster) == [rank for rank in range(3) if rank != lost]
    for pod in cluster.living():
        pod.node, pod.reachable = "a", True
    rounds(cluster, 8)
    assert ranks(cluster.status.view) == trains(cluster) == [0, 1, 2]
    to_the_end(cluster)
    assert views(cluster) == 3


def test_a_next_pod_that_is_there_at_once_is_waited_for() -> None:
    cluster = scripted(3)
    rounds(cluster, 12)
    cluster.kill_pod(own(cluster, 1))
    rounds(cluster, 8)
    assert trains(cluster) == [0, 1, 2]
    assert views(cluster) == 2, "the script starts once more, not twice"


def test_with_fewer_than_are_enough_the_next_pod_is_waited_for() -> None:
    cluster = scripted(3, dataParallel={"minReplicas": 3})
    rounds(cluster, 12)
    cluster.kill_pod(own(cluster, 1))
    to_the_end(cluster)
    assert views(cluster) == 2


def test_exit_codes_are_those_of_the_script() -> None:
    cluster = scripted(2)
    rounds(cluster, 8)
    for code in (2, 3, 137, 250):
        cluster._exit(own(cluster, 1), code, "ValueError: no such column")
        rounds(cluster, 6)
    assert trains(cluster) == [0, 1]
    assert cluster.status.restarts == 4
    assert "ended with exit code 137 (SIGKILL): ValueError" in cluster.status.incidents[2].message
    assert "ended with exit code 250: ValueError" in cluster.status.incidents[3].message
    assert "ended with exit code 2: ValueError: no such column" in cluster.status.incidents[0].message


def test_a_script_that_may_not_restart_fails_with_its_last_words() -> None:
    cluster = scripted(2, recovery={"maxRestarts": 0})
    rounds(cluster, 8)
    cluster._exit(own(cluster, 1), 7, "ValueError: no such column")
    status = cluster.reconcile().status
    assert status.phase is Phase.FAILED
    assert "ended with exit code 7: ValueError: no such column" in status.message


def test_more_and_fewer_replicas() -> None:
    cluster = scripted(2, steps=100)
    rounds(cluster, 12)
    cluster.scale(4)
    rounds(cluster, 12)
    assert trains(cluster) == [0, 1, 2, 3]
    assert views(cluster) == 2, "both join at once"
    cluster.scale(1)
    rounds(cluster, 8)
    assert trains(cluster) == [0]
    to_the_end(cluster)
    assert set(cluster.losses.values()) == {1}, "it saved whenever it was told to end"


def test_who_is_about_to_be_ready_is_waited_for_a_little() -> None:
    cluster = scripted(1, steps=100)
    rounds(cluster, 6)
    cluster.scale(3)
    cluster.reconcile()
    cluster.reconcile()
    slow = own(cluster, 2)
    live, cluster._live = cluster._live, lambda pod: None if pod is slow else live(pod)  # type: ignore[method-assign]
    for _ in range(4):
        cluster.reconcile()
        cluster.tick()
    assert own(cluster, 1).worker.phase is WorkerPhase.READY
    assert trains(cluster) == [0]
    rounds(cluster, 6)
    assert trains(cluster) == [0, 1], "not for ever"


def test_a_rank_moves_to_a_pod_that_is_ready_before_it_leaves() -> None:
    cluster = scripted(2, steps=100)
    rounds(cluster, 12)
    cluster.move_request = "1 1"
    for _ in range(12):
        if cluster.reconcile().status.migrations:
            break
        assert len(trains(cluster)) in (0, 2)
        cluster.tick()
    rounds(cluster, 4)
    assert trains(cluster) == [0, 1]
    assert own(cluster, 1).serial == 2
    assert views(cluster) == 2
    assert cluster.status.restarts == 0
    to_the_end(cluster)
    assert set(cluster.losses.values()) == {1}


@pytest.mark.parametrize("strategy", ["Live", "Checkpoint"])
def test_a_drained_node_loses_no_step(strategy: str) -> None:
    cluster = scripted(2, steps=100, migration={"strategy": strategy})
    rounds(cluster, 12)
    cluster.tell_to_end(own(cluster, 0))
    to_the_end(cluster)
    assert set(cluster.losses.values()) == {1}
    assert trains(cluster) == []
    assert cluster.status.restarts == (0 if strategy == "Live" else 1), "who deletes a pod that may not move has it replaced"


def test_a_suspended_script_starts_again() -> None:
    cluster = scripted(2)
    rounds(cluster, 12)
    cluster.interrupted = True
    rounds(cluster, 8)
    assert cluster.status.phase is Phase.SUSPENDED
    assert not cluster.living()
    assert cluster.status.message == "stopped; starts the script again"
    cluster.interrupted = False
    to_the_end(cluster)
    assert set(cluster.losses.values()) == {1}


def test_a_script_that_reports_nothing_gets_on_by_running() -> None:
    cluster = scripted(1, steps=1000, recovery={"maxRestarts": 9, "backoffSeconds": 10})
    cluster.silent = True
    rounds(cluster, 4)
    for wait, row in ((70, 1), (70, 1), (2, 2), (2, 3)):
        rounds(cluster, wait)
        cluster.kill_worker(own(cluster, 0))
        cluster.reconcile()
        assert cluster.status.restarts_without_progress == row
        for _ in range(30):
            if trains(cluster) == [0]:
                break
            rounds(cluster, 1)
    rounds(cluster, 2)
    assert all(incident.steps_lost == 0 for incident in cluster.status.incidents)
