"""A job that is to stop while no view runs, on the fake cluster: what the ranks have in memory gets into a checkpoint where it can."""

import pytest
from planned import job_spec

from lmj_api.protocol import WorkerPhase
from lmj_api.status import Phase
from lmj_operator.plan import DeletePod, Drain, Plan
from lmj_operator.plan.gathering import GATHER_SECONDS

from .cluster import Cluster
from .test_limits import at_step, rest


def interrupted_at(step: int, **recovery: object) -> Cluster:
    """A job whose newest checkpoint is older than ``step``."""
    cluster = Cluster(job_spec(2, recovery=recovery), checkpoint_every=5, nodes=("a", "b"))
    at_step(cluster, step)
    assert cluster.checkpoints[-1] < step
    return cluster


def stopped(cluster: Cluster) -> float:
    """Ctrl-C, and how long it takes; afterwards the job goes on, and to its end."""
    cluster.interrupted, begun = True, cluster.now
    assert rest(cluster).status.phase is Phase.SUSPENDED
    took = cluster.now - begun
    assert not cluster.pods
    kept = cluster.checkpoints[-1]
    assert cluster.status.message == f"stopped; goes on from step {kept}"
    cluster.interrupted = False
    cluster.now += 10_000
    assert rest(cluster).status.phase is Phase.SUCCEEDED
    assert cluster.status.view is not None
    assert cluster.status.view.resume.step == kept
    return took


def test_a_worker_that_died_comes_back_for_the_last_checkpoint() -> None:
    cluster = interrupted_at(8)
    cluster.kill_worker(cluster.pods["sim-r1-1"])
    stopped(cluster)
    assert cluster.starts[:3] == [("sim-r0-1", 1), ("sim-r1-1", 1), ("sim-r1-1", 2)]
    assert set(cluster.losses.values()) == {1}, "no step is done twice"
    [incident] = cluster.status.incidents
    assert (incident.kind, incident.steps_lost) == ("WorkerExited", 0)
    assert incident.seconds is not None
    assert incident.seconds < 10, "it was over before the job rested"
    assert incident.recovery == "view 2: rank 1 has a new worker (number 2); goes on from step 8, which all have in memory"


def test_a_broken_link_is_mended_for_the_last_checkpoint() -> None:
    cluster = interrupted_at(8)
    cluster.break_link(cluster.pods["sim-r1-1"])
    stopped(cluster)
    assert set(cluster.losses.values()) == {1}


def test_a_recovery_that_is_under_way_ends_before_the_job_does() -> None:
    cluster = interrupted_at(8)
    cluster.kill_worker(cluster.pods["sim-r0-1"])
    cluster.reconcile()
    cluster.tick()
    assert cluster.reconcile().status.phase is Phase.RECOVERING
    stopped(cluster)
    assert set(cluster.losses.values()) == {1}
    assert cluster.status.restarts == 1


@pytest.mark.parametrize("survives", [0, 1, 2])
def test_an_operator_that_dies_in_each_pass_of_it_does_nothing_twice(survives: int) -> None:
    cluster = interrupted_at(8)
    cluster.kill_worker(cluster.pods["sim-r1-1"])
    cluster.interrupted = True
    for _ in range(40):
        cluster.reconcile(first=0)
        cluster.reconcile(first=survives)
        cluster.reconcile()
        cluster.tick()
    assert cluster.status.phase is Phase.SUSPENDED
    assert cluster.checkpoints[-1] > 8
    assert set(cluster.losses.values()) == {1}
    assert cluster.starts == [("sim-r0-1", 1), ("sim-r1-1", 1), ("sim-r1-1", 2)]
    assert cluster.status.restarts == 1


def test_nobody_is_asked_to_leave_before_the_view_runs() -> None:
    cluster = interrupted_at(8)
    cluster.kill_worker(cluster.pods["sim-r1-1"])
    cluster.interrupted = True
    said = []
    for _ in range(20):
        made = cluster.reconcile()
        said.append(made.status.message)
        running = [p.worker.phase is WorkerPhase.RUNNING for p in cluster.pods.values()]
        if any(isinstance(a, Drain) for a in made.actions):
            assert all(running)
            break
        assert made.status.phase is Phase.SUSPENDING
        assert made.due_after is not None
        cluster.tick()
    assert said[0].startswith("takes a last checkpoint: worker 1 of sim-r1-1 killed by SIGKILL")
    assert "takes a last checkpoint: rank 1 has a new worker (number 2); goes on from step 8, which all have in memory" in said
    assert said[-1] == "takes a last checkpoint"


def test_while_it_waits_for_a_restart_it_says_so_once() -> None:
    cluster = interrupted_at(8, backoffSeconds=20)
    cluster.interrupted = True
    for _ in range(2):  # the second restart in a row waits
        cluster.kill_worker(cluster.pods["sim-r1-1"])
        cluster.reconcile()
        cluster.reconcile()
    said = [cluster.reconcile().status.message for _ in range(3)]
    assert [message.count("takes a last checkpoint") for message in said] == [1, 1, 1]
    assert "in 20 s" in said[-1]


def test_a_lost_memory_is_not_waited_for() -> None:
    cluster = interrupted_at(8)
    cluster.kill_pod(cluster.pods["sim-r1-1"])
    cluster.interrupted = True
    asked = [a for _ in range(3) for a in cluster.reconcile().actions]
    assert Drain("sim-r0-1") in asked
    assert stopped(cluster) <= 5
    assert "sim-r1-2" not in {name for name, _ in cluster.starts[:2]}


def test_what_is_all_in_a_checkpoint_is_not_waited_for() -> None:
    cluster = Cluster(job_spec(2), checkpoint_every=5)
    at_step(cluster, 5)
    assert cluster.checkpoints == [5]
    cluster.kill_worker(cluster.pods["sim-r1-1"])
    cluster.interrupted = True
    made = cluster.reconcile()
    assert Drain("sim-r0-1") in made.actions
    assert stopped(cluster) <= 5


def passes(cluster: Cluster, seconds: float) -> list[Plan]:
    end, made = cluster.now + seconds, []
    while cluster.now < end:
        made.append(cluster.reconcile())
        cluster.tick()
    return made


def test_one_that_does_not_come_back_in_time_is_left_behind() -> None:
    cluster = interrupted_at(8, startTimeoutSeconds=1000)
    pod = cluster.pods["sim-r1-1"]
    cluster.kill_worker(pod)
    cluster.interrupted = True
    cluster.reconcile()
    pod.dark = True  # it does not get ready
    waiting = passes(cluster, GATHER_SECONDS - 2)
    assert not any(isinstance(a, Drain | DeletePod) for made in waiting for a in made.actions)
    after = passes(cluster, 5)
    assert Drain("sim-r0-1") in [a for made in after for a in made.actions]
    pod.dark = False
    assert rest(cluster).status.phase is Phase.SUSPENDED
    assert cluster.checkpoints[-1] == 5


def test_restarts_that_are_used_up_do_not_fail_a_job_that_is_to_stop() -> None:
    cluster = interrupted_at(8, maxRestarts=0)
    cluster.kill_worker(cluster.pods["sim-r1-1"])
    cluster.interrupted = True
    rest(cluster)
    assert cluster.status.phase is Phase.SUSPENDED
    assert cluster.status.message == "stopped; goes on from step 5"


def test_a_follower_takes_the_place_for_the_last_checkpoint() -> None:
    cluster = interrupted_at(18, hotStandby=True)
    assert [f.state for f in cluster.status.followers] == ["InSync", "InSync"]
    cluster.kill_pod(cluster.pods["sim-r1-1"])
    stopped(cluster)
    assert set(cluster.losses.values()) == {1}


def test_a_snapshot_in_memory_gets_into_the_last_checkpoint() -> None:
    cluster = interrupted_at(19, memorySnapshot={"everySteps": 2})
    assert cluster.checkpoints[-1] == 15
    cluster.kill_pod(cluster.pods["sim-r1-1"])
    cluster.interrupted = True
    rest(cluster)
    assert cluster.status.phase is Phase.SUSPENDED
    assert cluster.checkpoints[-1] > 16


def test_a_snapshot_that_is_a_checkpoint_too_gets_into_no_other() -> None:
    """Those who are told to leave, for nothing is to be saved, are not waited for again when they are gone."""
    cluster = Cluster(job_spec(2, recovery={"memorySnapshot": {"everySteps": 5}}), checkpoint_every=10, steps=100)
    at_step(cluster, 12)
    cluster.kill_pod(cluster.pods["sim-r1-1"])
    cluster.interrupted, restarts = True, cluster.status.restarts
    rest(cluster)
    assert cluster.status.phase is Phase.SUSPENDED
    assert (cluster.status.message, cluster.status.restarts) == ("stopped; goes on from step 10", restarts + 1)


def test_a_hand_over_is_waited_for() -> None:
    cluster = Cluster(job_spec(2), checkpoint_every=50, steps=100, nodes=("a", "b"))
    at_step(cluster, 3)
    cluster.move_request = "1 now"
    for _ in range(30):
        made = cluster.reconcile()
        if any(str(action).startswith("hand over") for action in made.actions):
            break
        cluster.tick()
    else:
        raise AssertionError("it is not handed over")
    cluster.interrupted = True
    assert not any(isinstance(a, Drain) for a in cluster.reconcile().actions)
    step = max(p.step or 0 for p in cluster.pods.values())
    rest(cluster)
    assert cluster.status.phase is Phase.SUSPENDED
    assert cluster.checkpoints[-1] > step
    assert set(cluster.losses.values()) == {1}


def test_one_that_is_to_leave_already_takes_the_others_with_it() -> None:
    cluster = interrupted_at(8)
    cluster.kill_worker(cluster.pods["sim-r1-1"])
    cluster.pods["sim-r1-1"].draining = True  # its pod is being evicted: no worker is started there any more
    cluster.interrupted = True
    assert Drain("sim-r0-1") in cluster.reconcile().actions
    assert stopped(cluster) <= 5
