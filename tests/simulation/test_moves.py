"""How ranks move while training goes on, or through a checkpoint, and what can happen to them on the way."""

from dataclasses import replace

import pytest
from planned import job_spec

from lmj_api.protocol import CheckpointTrouble, WorkerPhase
from lmj_api.spec.migration import MigrationStrategy
from lmj_api.status import Phase
from lmj_operator.plan import CreatePod, Drain, HandOver, PodPhase

from .cluster import Cluster
from .pod import Pod
from .relocated import assert_clean, cluster_of, follower, wide
from .test_hot_standbys import at_work, go_on, own
from .world import SIZE


@pytest.mark.parametrize("ranks", [(0,), (1,), (0, 1)])
def test_a_rank_moves(ranks: tuple[int, ...]) -> None:
    cluster = cluster_of()
    before = [own(cluster, rank).name for rank in (0, 1)]
    cluster.move_request = f"{','.join(map(str, ranks))} now"
    go_on(cluster, lambda: cluster.status.migrations == len(ranks))
    go_on(cluster, lambda: at_work(cluster, 2))
    assert [own(cluster, rank).name != before[rank] for rank in (0, 1)] == [rank in ranks for rank in (0, 1)]
    assert_clean(cluster, len(ranks))
    assert [i.kind for i in cluster.status.incidents] == ["Moved"] * len(ranks)
    for incident in cluster.status.incidents:
        copied = incident.copied
        assert copied is not None
        assert (copied.done, copied.digest) == (SIZE, f"digest {copied.in_sync_step}")
    migrating = next(c for c in cluster.status.conditions if c.type == "Migrating")
    assert (migrating.status, migrating.reason) == ("False", "NothingMoves")


def test_what_a_follower_has_come_to_is_acted_on_at_once() -> None:
    """A pass stores it, and the next one acts on it: between the two nothing is heard of a job whose steps are long."""
    cluster = cluster_of()
    cluster.move_request = "0"
    seen: set[str] = set()
    for _ in range(60):
        before = {f.state for f in cluster.status.followers}
        made = cluster.reconcile()
        new = {f.state for f in made.status.followers} - before
        assert not new or made.wake_after == 0.0, new
        seen |= new
        cluster.tick(0.5)
    assert {"Pending", "InSync"} <= seen


def test_no_more_ranks_move_at_once_than_may() -> None:
    cluster = cluster_of(3, maxConcurrent=1, timeoutSeconds=6)
    cluster.move_request = "0,1,2"
    seen = 0

    def moved() -> bool:
        nonlocal seen
        seen = max(seen, len(cluster.status.followers))
        return cluster.status.migrations == 3

    go_on(cluster, moved, rounds=200)
    assert seen == 1
    assert_clean(cluster, 3)


def test_the_target_dies_before_it_is_level() -> None:
    cluster = cluster_of()
    cluster.move_request = "0"
    go_on(cluster, lambda: follower(cluster, 0) is not None)
    target = follower(cluster, 0)
    assert target is not None
    cluster.kill_pod(target)
    go_on(cluster, lambda: cluster.status.migrations == 1, rounds=200)
    assert_clean(cluster, 1)


def test_the_target_dies_when_its_place_is_free() -> None:
    """All have left the view for it: they go on as they were."""
    cluster = cluster_of()
    name = own(cluster, 1).name
    cluster.move_request = "1"
    go_on(cluster, lambda: own(cluster, 1).handover > 0)
    while own(cluster, 1).worker.phase is WorkerPhase.RUNNING:
        cluster.tick(0.5)
    target = follower(cluster, 1)
    assert target is not None
    cluster.kill_pod(target)
    go_on(cluster, lambda: at_work(cluster, 2))
    assert own(cluster, 1).name == name
    assert (cluster.status.steps_lost, cluster.status.restarts) == (0, 0)
    go_on(cluster, lambda: cluster.status.migrations == 1, rounds=200)
    assert_clean(cluster, 1)


def test_the_source_dies_when_its_follower_is_level() -> None:
    cluster = cluster_of()
    cluster.move_request = "1"
    go_on(cluster, lambda: bool(cluster.status.followers) and cluster.status.followers[0].state == "InSync")
    cluster.kill_pod(own(cluster, 1))
    go_on(cluster, lambda: at_work(cluster, 2))
    assert cluster.status.steps_lost == 0
    assert set(cluster.losses.values()) == {1}


def test_a_move_that_takes_too_long_is_given_up_and_the_rank_stays() -> None:
    cluster = cluster_of(timeoutSeconds=10, onTimeout="Stay")
    name = own(cluster, 1).name
    cluster.move_request = "1"
    for _ in range(30):
        cluster.reconcile()
        target = follower(cluster, 1)
        if target is not None:
            cluster.kill_worker(target)
        cluster.tick(1)
    assert own(cluster, 1).name == name
    assert cluster.status.moves[0].given_up == "no follower was in sync within 10 s (migration.timeoutSeconds): it stays"
    assert cluster.status.phase is Phase.RUNNING
    assert (cluster.status.migrations, cluster.status.followers) == (0, [])


def test_a_move_that_takes_too_long_goes_through_a_checkpoint() -> None:
    cluster = cluster_of(timeoutSeconds=10)
    name = own(cluster, 1).name
    cluster.move_request = "1"
    for _ in range(40):
        cluster.reconcile()
        target = follower(cluster, 1)
        if target is not None:
            cluster.kill_worker(target)
        cluster.tick(1)
    go_on(cluster, lambda: at_work(cluster, 2))
    assert own(cluster, 1).name != name
    assert cluster.status.steps_lost == 0
    assert set(cluster.losses.values()) == {1}


def test_what_was_saved_while_the_target_was_made_is_gone_on_from() -> None:
    """The new rank 0's agent looked through the checkpoints when it began to follow, and has not heard of those since."""
    cluster = cluster_of()
    cluster.move_request = "0"
    go_on(cluster, lambda: follower(cluster, 0) is not None)
    cluster.save(own(cluster, 0).step or 0, own(cluster, 0))
    saved = cluster.checkpoints[-1]
    go_on(cluster, lambda: cluster.status.migrations == 1)
    go_on(cluster, lambda: at_work(cluster, 2))
    cluster.kill_pod(own(cluster, 1))
    go_on(cluster, lambda: at_work(cluster, 3))
    assert cluster.status.view is not None
    assert cluster.status.view.resume.step == saved
    assert cluster.status.checkpoint is not None
    assert cluster.status.checkpoint.step == saved


def test_a_move_that_was_given_up_is_gone_on_with_when_the_operator_dies() -> None:
    """What was stored before the rank was told to leave is not all that is done."""
    cluster = cluster_of(timeoutSeconds=10)
    name = own(cluster, 1).name
    cluster.move_request = "1"
    for _ in range(40):
        given_up = any(move.given_up for move in cluster.plan().status.moves)
        cluster.reconcile(first=0 if given_up and not cluster.status.moves[0].given_up else None)
        target = follower(cluster, 1)
        if target is not None:
            cluster.kill_worker(target)
        cluster.tick(1)
    go_on(cluster, lambda: at_work(cluster, 2))
    assert own(cluster, 1).name != name


def test_a_recovery_is_not_bound_to_the_node_that_was_named() -> None:
    """The source dies while its target waits for a node: any node has to do."""
    cluster = wide()
    cluster.move_request = "1 to=x"
    go_on(cluster, lambda: follower(cluster, 1) is not None)
    cluster.kill_pod(own(cluster, 1))
    go_on(cluster, lambda: at_work(cluster, 2))
    assert own(cluster, 1).node in cluster.nodes


def test_a_new_pod_says_where_it_is_to_be() -> None:
    assert str(CreatePod(1, 2, ("a",), "c")) == "create pod r1-2, on c, not on a"


def test_a_pod_that_is_deleted_hands_over_to_its_follower_where_that_is_level() -> None:
    """Its agent hears of it by a signal and is not asked any more; the others leave with it at a boundary."""
    cluster = cluster_of()
    cluster.move_request = "1"
    go_on(cluster, lambda: bool(cluster.status.followers) and cluster.status.followers[0].state == "InSync")
    pod, target = own(cluster, 1), cluster.status.followers[0].pod
    pod.draining = True
    for _ in range(40):
        seen = cluster.look()
        cluster.reconcile(tuple(replace(p, phase=PodPhase.TERMINATING, agent=None) if p.name == pod.name else p for p in seen))
        cluster.tick(0.5)
        if pod.worker.phase is not WorkerPhase.RUNNING:
            cluster.pods.pop(pod.name, None)
    assert own(cluster, 1).name == target
    assert (cluster.status.phase, cluster.status.steps_lost) == (Phase.RUNNING, 0)
    assert set(cluster.losses.values()) == {1}


# Through a checkpoint.


@pytest.mark.parametrize("ranks", [(0,), (1,), (0, 1)])
def test_ranks_move_through_a_checkpoint(ranks: tuple[int, ...]) -> None:
    cluster = cluster_of(strategy="Checkpoint")
    before = [own(cluster, rank).name for rank in (0, 1)]
    cluster.move_request = f"{','.join(map(str, ranks))} now"
    cluster.reconcile()
    migrating = next(c for c in cluster.status.conditions if c.type == "Migrating")
    assert (migrating.status, migrating.reason) == ("True", "Checkpoint")
    go_on(cluster, lambda: cluster.status.migrations == len(ranks))
    go_on(cluster, lambda: at_work(cluster, 2))
    assert [own(cluster, rank).name != before[rank] for rank in (0, 1)] == [rank in ranks for rank in (0, 1)]
    assert_clean(cluster, len(ranks))
    assert [(i.kind, i.steps_lost) for i in cluster.status.incidents] == [("Moved", 0)] * len(ranks)
    assert cluster.checkpoints


def test_nobody_leaves_while_checkpoints_fail() -> None:
    cluster = cluster_of(strategy="Checkpoint")
    trouble = CheckpointTrouble(step=3, error="the disk is full", since=cluster.now)

    def look() -> None:
        cluster.reconcile(
            tuple(
                replace(p, agent=p.agent.model_copy(update={"checkpoint_trouble": trouble})) if p.agent is not None else p
                for p in cluster.look()
            )
        )

    cluster.move_request = "1"
    for _ in range(10):
        look()
        cluster.tick()
    assert not any(pod.draining for pod in cluster.living())
    cluster.save(own(cluster, 0).step or 0, own(cluster, 0))
    go_on(cluster, lambda: cluster.status.migrations == 1)
    assert_clean(cluster, 1)


def test_nobody_leaves_while_checkpoints_fail_though_rank_0_moved_since() -> None:
    """The pod that took its place knows of no failure before its own."""
    cluster = cluster_of(onCordon="Checkpoint")
    leaves, trouble = own(cluster, 1).name, CheckpointTrouble(step=3, error="the disk is full", since=cluster.now + 10.0)

    def go(rounds: int) -> None:
        for _ in range(rounds):
            pods = tuple(replace(p, node_leaving="node a is cordoned") if p.name == leaves else p for p in cluster.look())
            cluster.reconcile(
                tuple(
                    replace(p, agent=p.agent.model_copy(update={"checkpoint_trouble": trouble}))
                    if p.name == "sim-r0-1" and p.agent is not None
                    else p
                    for p in pods
                )
            )
            cluster.tick(0.5)

    go(5)
    cluster.move_request = "0"
    go(20)
    assert own(cluster, 0).name != "sim-r0-1"
    assert [(m.rank, m.strategy) for m in cluster.status.moves] == [(1, "Checkpoint")]
    assert not any(pod.draining for pod in cluster.living())
    stale = {c.type: c for c in cluster.status.conditions}["CheckpointStale"]
    assert (stale.status, "the disk is full" in stale.message) == ("True", True)
    # Storage is well again, whatever the clock of rank 0's new node says.
    cluster.save(own(cluster, 0).step or 0, own(cluster, 0))
    go(20)
    assert {c.type: c.status for c in cluster.status.conditions}["CheckpointStale"] == "False"
    assert own(cluster, 1).name != leaves
    assert (cluster.status.migrations, cluster.status.steps_lost, cluster.status.restarts) == (2, 0, 0)


@pytest.mark.parametrize("first", range(4))
def test_the_operator_dies_while_a_rank_leaves(first: int) -> None:
    """Whatever it had done of each pass: the move is counted once, and nothing is done twice."""
    cluster = wide(strategy="Checkpoint")
    cluster.move_request = "1 to=c"
    for _ in range(60):
        cluster.reconcile(first=first)
        cluster.reconcile()
        cluster.tick(0.5)
    assert own(cluster, 1).node == "c"
    assert_clean(cluster, 1)


def test_a_worker_that_dies_when_it_was_told_to_leave_gets_another_pod() -> None:
    """A pod that is told to leave starts no worker any more."""
    cluster = cluster_of(strategy="Checkpoint")
    name = own(cluster, 1).name
    cluster.move_request = "1"
    go_on(cluster, lambda: own(cluster, 1).draining)
    cluster.kill_worker(own(cluster, 1))
    go_on(cluster, lambda: at_work(cluster, 2))
    assert own(cluster, 1).name != name


def test_a_rank_that_left_for_a_node_that_takes_no_pod_goes_anywhere_in_the_end() -> None:
    cluster = wide(strategy="Checkpoint", timeoutSeconds=10)
    cluster.move_request = "1 to=x"
    go_on(cluster, lambda: cluster.status.migrations == 1)
    go_on(cluster, lambda: at_work(cluster, 2), rounds=100)
    assert own(cluster, 1).node in cluster.nodes
    assert_clean(cluster, 1)


def test_a_move_through_a_checkpoint_that_waits_for_its_turn_ends_when_moves_are_forbidden() -> None:
    cluster = cluster_of(3, strategy="Checkpoint", maxConcurrent=1)
    cluster.move_request = "0,1,2"
    cluster.reconcile()
    assert [m.rank for m in cluster.status.moves] == [0, 1, 2]
    assert own(cluster, 0).draining
    never = cluster.spec.migration.model_copy(update={"strategy": MigrationStrategy.NEVER})
    cluster.spec = cluster.spec.model_copy(update={"migration": never})
    cluster.reconcile()
    assert [m.rank for m in cluster.status.moves] == [0]  # it was told already
    go_on(cluster, lambda: cluster.status.migrations == 1)
    go_on(cluster, lambda: at_work(cluster, 2))
    assert_clean(cluster, 1)


# One that moves live, and one that leaves through a checkpoint.


def both_ways() -> tuple[Cluster, str]:
    """Rank 1 moves live and is told to hand over in the next pass; rank 0's pod is the one that is named."""
    spec = job_spec(2, migration={"onCordon": "Checkpoint"})
    cluster = Cluster(spec, steps=400, checkpoint_every=1000, nodes=("a", "b", "c"))
    go_on(cluster, lambda: at_work(cluster, 1))
    cluster.move_request = "1"
    go_on(cluster, lambda: any(f.rank == 1 and f.state == "InSync" for f in cluster.status.followers))
    return cluster, own(cluster, 0).name


@pytest.mark.parametrize("told", [False, True])
def test_nobody_is_told_to_leave_while_all_leave_a_view_for_a_follower(told: bool) -> None:
    """A word to leave that comes when no view runs any more would have its worker leave with steps that no checkpoint has."""
    cluster, name = both_ways()
    if told:
        cluster.reconcile()
        assert own(cluster, 1).handover == 1

    def cordoned() -> None:
        """The word to leave comes a step late."""
        pods = tuple(replace(p, node_leaving="node a is cordoned") if p.name == name else p for p in cluster.look())
        made = cluster.plan(pods)
        cluster.write(made.status)
        for action in made.actions:
            if not isinstance(action, Drain):
                cluster.apply(action)
        cluster.tick(0.5)
        for action in made.actions:
            if isinstance(action, Drain):
                cluster.apply(action)

    for _ in range(40):
        cordoned()
    go_on(cluster, lambda: at_work(cluster, 3))
    assert own(cluster, 0).node != "a"
    assert_clean(cluster, 2)


def test_a_hand_over_that_will_not_be_keeps_nobody_from_leaving() -> None:
    """The follower died after its source was told, and so does each that comes after it."""
    cluster, name = both_ways()
    cluster.reconcile()
    assert own(cluster, 1).handover == 1
    for _ in range(40):
        target = follower(cluster, 1)
        if target is not None:
            cluster.kill_worker(target)
        pods = tuple(replace(p, node_leaving="node a is cordoned") if p.name == name else p for p in cluster.look())
        cluster.reconcile(pods)
        cluster.tick()
    go_on(cluster, lambda: at_work(cluster, 2))
    assert own(cluster, 0).name != name
    assert cluster.status.steps_lost == 0


def test_nothing_is_handed_over_while_a_rank_leaves() -> None:
    cluster, _ = both_ways()
    own(cluster, 0).draining = True
    assert not [a for a in cluster.plan().actions if isinstance(a, HandOver)]
    own(cluster, 0).draining = False
    assert [a for a in cluster.plan().actions if isinstance(a, HandOver)]


def test_a_bad_hour_long_ago_costs_a_move_nothing() -> None:
    """What failed again and again on one step has trained on since: what is in memory is believed."""
    spec = job_spec(2, recovery={"maxRestarts": 100, "workerRestarts": 50, "backoffSeconds": 0})
    cluster = Cluster(spec, steps=400, checkpoint_every=1000)
    go_on(cluster, lambda: at_work(cluster, 1))
    for deaths in range(1, 6):
        cluster.kill_worker(own(cluster, 1))
        while not (cluster.status.restarts == deaths and own(cluster, 1).worker.phase is WorkerPhase.READY):
            cluster.reconcile()
            cluster.tick(0.5)
    assert cluster.status.restarts_without_progress == 5
    go_on(cluster, lambda: at_work(cluster, 2))
    lost = cluster.status.steps_lost
    for _ in range(10):
        cluster.reconcile()
        cluster.tick()
    cluster.move_request = "1"
    go_on(cluster, lambda: cluster.status.migrations == 1 and cluster.status.phase is Phase.RUNNING)
    assert cluster.status.steps_lost == lost


CLOCKS = [-10.0, -2.1, 0.0, 0.05, 10.0]
"""Seconds by which the agents' are ahead of the operator's."""


def handed_over(ahead: float = 0.0) -> tuple[Cluster, Pod]:
    """All have left view 1 for rank 1's follower, which takes its last step still, as the operator sees; and that one."""
    cluster = cluster_of()
    cluster.ahead = {"node": ahead}
    cluster.move_request = "1"
    go_on(cluster, lambda: own(cluster, 1).handover > 0)
    while any(own(cluster, rank).worker.phase is WorkerPhase.RUNNING for rank in (0, 1)):
        cluster.tick(0.01)
    target = follower(cluster, 1)
    assert target is not None
    assert target.worker.phase is WorkerPhase.READY
    target.worker = target.worker.model_copy(update={"phase": WorkerPhase.FOLLOWING})
    return cluster, target


@pytest.mark.parametrize("ahead", CLOCKS)
def test_a_follower_that_takes_its_last_step_is_waited_for_whatever_the_agents_clocks_say(ahead: float) -> None:
    cluster, target = handed_over(ahead)
    source, waited = own(cluster, 1), 0.0
    cluster.reconcile()
    # What an operator that starts again knows of it is in the status.
    while own(cluster, 1) is source and cluster.status.view is not None and cluster.status.view.number == 1:
        assert waited < 2.0, "then the old member has to do"
        if waited == 1.5:
            target.worker = target.worker.model_copy(update={"phase": WorkerPhase.READY})
        cluster.now += 0.25
        waited += 0.25
        cluster.reconcile()
    assert waited == 1.75
    assert own(cluster, 1) is target
    assert cluster.status.left_since is None
    assert_clean(cluster, 1)


@pytest.mark.parametrize("ahead", CLOCKS)
def test_a_follower_that_does_not_take_its_last_step_is_not_waited_for_any_longer(ahead: float) -> None:
    cluster, _ = handed_over(ahead)
    source, numbers = own(cluster, 1), []
    for _ in range(10):
        made = cluster.reconcile()
        numbers.append(made.status.view.number if made.status.view is not None else 0)
        cluster.now += 0.25
    assert numbers == [1] * 8 + [2] * 2
    assert own(cluster, 1) is source
    assert cluster.status.left_since is None


def test_an_operator_whose_clock_is_behind_its_predecessors_waits_no_longer() -> None:
    cluster, _ = handed_over()
    cluster.reconcile()
    cluster.now -= 60.0
    assert cluster.reconcile().due_after == 2.0


def test_the_pause_that_is_told_is_what_a_worker_measured_however_late_the_operator_looks() -> None:
    for ranks in (1, 2):
        cluster = cluster_of(ranks)
        cluster.move_request = "0 1"
        while not any(pod.handover for pod in cluster.living()):
            cluster.reconcile()
            cluster.tick()
        cluster.tick()
        while cluster.status.migrations == 0:
            cluster.reconcile()
            cluster.tick()
        for _ in range(5):
            cluster.tick()  # it trains, and nobody looks
        cluster.reconcile()
        [told] = [i for i in cluster.status.incidents if i.kind == "Moved"]
        assert told.seconds is not None
        assert told.seconds >= 5
        assert told.pause_by == "workers"
        assert told.pause_seconds is not None
        assert told.pause_seconds <= 3


def test_a_follower_that_has_not_what_its_source_has_does_not_take_its_place() -> None:
    cluster, target = handed_over()
    source, held = own(cluster, 1), target.worker.holding
    assert held is not None
    assert target.step is not None
    target.step -= 1
    behind = held.model_copy(update={"step": held.step - 1})
    target.worker = target.worker.model_copy(update={"phase": WorkerPhase.READY, "holding": behind})
    for _ in range(12):
        made = cluster.reconcile()
        cluster.now += 0.25
    assert made.status.view is not None
    assert made.status.view.number == 2
    assert own(cluster, 1) is source
    assert cluster.status.migrations == 0
