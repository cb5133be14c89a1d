"""Jobs of a script: workers that hold nothing come, go, fail and move, and the script is started again as seldom as can be."""

import pytest

from lmj_api.protocol import USER_ERROR, WorkerPhase
from lmj_api.status import IncidentKind, Phase
from lmj_operator.plan import CreatePod, Drain, Follow, LeaveView, Look, Pause
from lmj_operator.plan.plan import Plan

from .pod import Pod
from .script import Script, script_spec


def rounds(cluster: Script, count: int) -> list[Plan]:
    made = []
    for _ in range(count):
        made.append(cluster.reconcile())
        cluster.tick()
    return made


def own(cluster: Script, rank: int) -> Pod:
    return max((p for p in cluster.living() if p.rank == rank), key=lambda p: p.serial)


def members(cluster: Script) -> list[int]:
    assert cluster.status.view is not None
    return [m.rank for m in cluster.status.view.members]


def to_the_end(cluster: Script, most: int = 300) -> None:
    for _ in range(most):
        if cluster.reconcile().status.phase is Phase.SUCCEEDED:
            return
        cluster.tick()
    raise AssertionError(f"{cluster.status.phase}: {cluster.status.message}")


def fail(cluster: Script, rank: int, code: int = 1, message: str = "ValueError: odd") -> None:
    cluster._exit(own(cluster, rank), code, message)


def started(replicas: int = 3, count: int = 8, **more: object) -> Script:
    cluster = Script(script_spec(replicas, **more))
    rounds(cluster, count)
    assert members(cluster) == list(range(replicas))
    assert cluster.status.phase is Phase.RUNNING
    return cluster


def test_the_script_starts_once_all_are_there_and_its_end_is_said() -> None:
    cluster = started()
    view = cluster.status.view
    assert view is not None
    assert view.reason == "all ranks are ready for the first view; starts the script"
    to_the_end(cluster)
    assert cluster.begun == [1]
    assert cluster.status.message == "the script has ended"


def test_nobody_looks_for_checkpoints_or_follows() -> None:
    cluster = started()
    made = rounds(cluster, 4)
    cluster.kill_pod(own(cluster, 0))
    made += rounds(cluster, 12)
    assert not [a for plan in made for a in plan.actions if isinstance(a, Look | Follow)]


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("code", [1, USER_ERROR, 3])
def test_a_failed_rank_is_waited_for_and_the_script_starts_once_again(rank: int, code: int) -> None:
    cluster = started()
    pod = own(cluster, rank)
    fail(cluster, rank, code)
    rounds(cluster, 8)
    assert cluster.begun == [1, 2]
    assert members(cluster) == [0, 1, 2]
    assert own(cluster, rank) is pod
    incident = cluster.status.incidents[-1]
    assert (incident.kind, incident.rank) == (IncidentKind.WORKER_EXITED, rank)
    assert incident.message == f"worker 1 of {pod.name} ended with exit code {code}: ValueError: odd"
    assert cluster.status.restarts == 1
    to_the_end(cluster)


def test_a_rank_that_fails_again_before_the_next_view_counts_again() -> None:
    cluster = started()
    fail(cluster, 1)
    rounds(cluster, 2)
    fail(cluster, 1)
    rounds(cluster, 2)
    assert cluster.status.restarts == 2


def test_without_restarts_the_job_fails_with_what_the_script_said() -> None:
    cluster = started(recovery={"maxRestarts": 0})
    fail(cluster, 1)
    cluster.reconcile()
    assert cluster.status.phase is Phase.FAILED
    assert "exit code 1: ValueError: odd" in cluster.status.message


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_lost_pod_is_not_waited_for_and_joins_in_order(rank: int) -> None:
    cluster = started()
    cluster.boot_seconds = 8
    cluster.kill_pod(own(cluster, rank))
    rounds(cluster, 4)
    assert members(cluster) == [r for r in range(3) if r != rank]
    made = rounds(cluster, 20)
    assert members(cluster) == [0, 1, 2]
    assert cluster.begun == [1, 2, 3]
    assert cluster.killed_while_saving == 0
    assert len({a for plan in made for a in plan.actions if isinstance(a, Pause)}) == 1
    to_the_end(cluster)


def test_with_too_few_it_waits() -> None:
    cluster = started(least=3)
    cluster.boot_seconds = 8
    cluster.kill_pod(own(cluster, 1))
    rounds(cluster, 8)
    assert cluster.begun == [1]
    assert "fewer than dataParallel.minReplicas 3 are ready" in cluster.status.message
    rounds(cluster, 8)
    assert cluster.begun == [1, 2]
    assert members(cluster) == [0, 1, 2]


def test_two_that_come_back_are_one_restart() -> None:
    cluster = started(count=8)
    cluster.boot_seconds = 10
    cluster.kill_pod(own(cluster, 0))
    rounds(cluster, 3)
    cluster.kill_pod(own(cluster, 2))
    rounds(cluster, 4)
    assert members(cluster) == [1]
    rounds(cluster, 20)
    assert members(cluster) == [0, 1, 2]
    assert cluster.begun == [1, 2, 3, 4]


def test_who_starts_is_waited_for_but_not_for_long() -> None:
    cluster = started()
    for rank in (0, 2):
        cluster.kill_pod(own(cluster, rank))
    seen = []
    for _ in range(14):
        cluster.reconcile()
        cluster.tick()
        slow = own(cluster, 2) if any(p.rank == 2 for p in cluster.living()) else None
        if slow is not None and slow.worker.incarnation:
            slow.worker = slow.worker.model_copy(update={"phase": WorkerPhase.STARTING, "address": None})
        seen.append(members(cluster))
    assert seen[2] == [0, 1, 2], "nobody goes on yet"
    assert seen[-1] == [0, 1]
    assert cluster.begun == [1, 2]


def test_more_and_fewer_replicas() -> None:
    cluster = started()
    cluster.scale(4)
    rounds(cluster, 12)
    assert members(cluster) == [0, 1, 2, 3]
    assert cluster.begun == [1, 2]
    cluster.scale(1)
    made = rounds(cluster, 10)
    assert members(cluster) == [0]
    assert cluster.begun == [1, 2, 3]
    assert {p.rank for p in cluster.living()} == {0}
    assert cluster.killed_while_saving == 0
    assert not [a for plan in made for a in plan.actions if isinstance(a, LeaveView)]
    assert cluster.status.restarts == 0
    to_the_end(cluster)


def moved(cluster: Script) -> list[str]:
    return [i.message for i in cluster.status.incidents if i.kind is IncidentKind.MOVED]


def test_a_rank_moves_once_its_next_pod_is_ready_although_live_is_asked_for() -> None:
    cluster = started()
    pod = own(cluster, 1)
    cluster.boot_seconds = 6
    cluster.move_request = "1"
    made = rounds(cluster, 5)
    assert cluster.at[1] > 5, "the script runs on until then"
    made += rounds(cluster, 20)
    new = own(cluster, 1)
    assert (new is pod, new.node == pod.node) == (False, False)
    assert cluster.begun == [1, 2]
    assert members(cluster) == [0, 1, 2]
    assert moved(cluster) == [f"rank 1 moved from {pod.name} to {new.name} on {new.node}"]
    assert pod.name not in cluster.pods
    assert cluster.status.restarts == 0
    assert cluster.killed_while_saving == 0
    assert not [a for plan in made for a in plan.actions if isinstance(a, Follow | Drain)]
    assert cluster.status.moves == []
    to_the_end(cluster)


def test_a_pod_that_is_deleted_stays_until_the_next_one_is_ready() -> None:
    cluster = started()
    pod = own(cluster, 0)
    cluster.boot_seconds = 5
    cluster.tell_to_end(pod)
    rounds(cluster, 20)
    assert members(cluster) == [0, 1, 2]
    assert cluster.begun == [1, 2]
    assert len(moved(cluster)) == 1
    assert cluster.status.restarts == 0
    to_the_end(cluster)


def test_who_saves_is_not_killed_when_another_has_left_before() -> None:
    cluster = started(save=20.0)
    cluster.slow_stop = 6.0
    cluster.tell_to_end(own(cluster, 0), hurried=True)
    rounds(cluster, 12)
    assert cluster.killed_while_saving == 0
    to_the_end(cluster)


def test_suspended_and_resumed() -> None:
    cluster = started()
    cluster.interrupted = True
    rounds(cluster, 12)
    assert cluster.status.phase is Phase.SUSPENDED
    assert cluster.status.message == "stopped; starts the script again"
    assert not cluster.living()
    at = cluster.durable
    cluster.interrupted = False
    rounds(cluster, 8)
    assert members(cluster) == [0, 1, 2]
    assert cluster.begun == [1, 2]
    assert cluster.at[2] >= at > 0
    to_the_end(cluster)


def test_a_dark_machine_does_not_keep_the_others() -> None:
    cluster = started()
    cluster.cut_power(own(cluster, 0))
    rounds(cluster, 5)
    assert members(cluster) == [1, 2]
    to_the_end(cluster)


def test_a_standby_takes_over() -> None:
    cluster = started(recovery={"standby": 1, "backoffSeconds": 0}, count=12)
    spare = next(p for p in cluster.living() if p.standby)
    cluster.kill_pod(own(cluster, 1))
    made = rounds(cluster, 8)
    assert spare.rank == 1
    assert members(cluster) == [0, 1, 2]
    assert cluster.begun == [1, 2], "it was about to be ready: one restart"
    assert not [a for plan in made for a in plan.actions if isinstance(a, CreatePod) and a.rank is not None]
