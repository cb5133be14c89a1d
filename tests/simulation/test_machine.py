"""The real plan against the fake cluster, with every fault at every moment."""

from unittest import TestCase

import hypothesis
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from planned import job_spec

from lmj_api.protocol import WorkerPhase
from lmj_api.status import IncidentKind, Phase
from lmj_operator.plan import PodObserved
from lmj_operator.plan.failures.incidents import is_over

from .cluster import Cluster
from .script import Script
from .script import script_spec as saving_spec
from .script_cluster import ScriptCluster, script_spec

RANKS = 3
PICK = st.integers(0, 5)
RECOVERY = {"maxRestarts": 100_000, "backoffSeconds": 0.5, "maxBackoffSeconds": 4, "avoidNode": {"fallbackSeconds": 30}}
WATCHED = {**RECOVERY, "straggler": {"seconds": 2, "action": "Move"}}
PARTS = {"stages": 1, "microBatches": 4}
SPEC = job_spec(RANKS, recovery=RECOVERY)


class Faults(RuleBasedStateMachine):
    """Invariants that the cluster itself checks: see its violations."""

    spec = SPEC
    kind: type[Cluster] = Cluster

    def __init__(self) -> None:
        super().__init__()
        self.cluster = self.kind(self.spec, nodes=("a", "b"))
        self.past: list[tuple[PodObserved, ...]] = []

    @initialize(gpu=st.booleans(), ahead=st.sampled_from([-4000.0, -10.0, 0.0, 10.0, 4000.0]))
    def as_it_may_be(self, gpu: bool, ahead: float) -> None:
        """State may go with a worker's process, and a node's clock may not be the operator's."""
        self.cluster.gpu = gpu
        self.cluster.ahead = {"b": ahead}

    @rule()
    def reconcile(self) -> None:
        self.cluster.reconcile()

    @rule(rounds=st.integers(1, 12))
    def go_on(self, rounds: int) -> None:
        for _ in range(rounds):
            self.cluster.reconcile()
            self.cluster.tick()

    @rule(seconds=st.floats(0.1, 40))
    def time_passes(self, seconds: float) -> None:
        self.past = [*self.past, self.cluster.look()][-4:]
        self.cluster.tick(seconds)

    @rule(first=st.integers(0, 3))
    def operator_dies_after_some_actions(self, first: int) -> None:
        self.cluster.reconcile(first=first)

    @rule(ahead=st.sampled_from([-4000.0, -1.0, 0.0, 4000.0]))
    def another_operator_takes_over(self, ahead: float) -> None:
        """On a machine whose clock is so much ahead of the true time."""
        self.cluster.operator_ahead = ahead

    @rule(ahead=st.sampled_from([-4000.0, 0.0, 4000.0]))
    def clock_jumps(self, ahead: float) -> None:
        self.cluster.ahead["a"] = ahead

    @rule()
    def operator_dies_before_it_stores_the_status(self) -> None:
        self.cluster.plan()

    @rule(lost=st.integers(0, 5))
    def message_is_lost(self, lost: int) -> None:
        self.cluster.reconcile(dropped=lost)

    @precondition(lambda self: self.past)
    @rule(age=st.integers(0, 3))
    def observation_is_stale(self, age: int) -> None:
        self.cluster.reconcile(self.past[age % len(self.past)])

    @rule(pick=PICK)
    def worker_dies(self, pick: int) -> None:
        living = self.cluster.living()
        if living:
            self.cluster.kill_worker(living[pick % len(living)])

    @rule(told=st.integers(0, RANKS), dies=st.booleans())
    def commit_is_not_heard(self, told: int, dies: bool) -> None:
        """By all others, or some."""
        self.cluster.half_commit(told, dies=dies)

    @rule(pick=PICK)
    def pod_dies(self, pick: int) -> None:
        living = self.cluster.living()
        if living:
            self.cluster.kill_pod(living[pick % len(living)])

    @rule(pick=PICK)
    def pod_vanishes(self, pick: int) -> None:
        living = self.cluster.living()
        if living:
            del self.cluster.pods[living[pick % len(living)].name]

    @rule(pick=PICK)
    def pod_is_told_to_end(self, pick: int) -> None:
        living = self.cluster.living()
        if living:
            self.cluster.tell_to_end(living[pick % len(living)])

    @rule(pick=PICK)
    def link_breaks(self, pick: int) -> None:
        living = self.cluster.living()
        if living:
            self.cluster.break_link(living[pick % len(living)])

    @rule(way=st.sampled_from(["ab", "ba"]), one_way=st.booleans())
    def cable_breaks(self, way: str, one_way: bool) -> None:
        """Between the two nodes alone; with ``one_way`` in one direction."""
        self.cluster.break_cable(*way, one_way=one_way)

    @rule(pick=PICK, cut=st.booleans())
    def agent_becomes_unreachable(self, pick: int, cut: bool) -> None:
        """It is stopped, or, with ``cut``, the operator's network to its machine is."""
        living = self.cluster.living()
        if living:
            pod = living[pick % len(living)]
            pod.reachable, pod.cut = False, cut

    @rule(pick=PICK)
    def power_is_cut(self, pick: int) -> None:
        living = self.cluster.living()
        if living:
            self.cluster.cut_power(living[pick % len(living)])

    @rule(pick=PICK, seconds=st.sampled_from([None, 5.0, 30.0, 120.0]))
    def a_machine_is_to_be_taken_away(self, pick: int, seconds: float | None) -> None:
        living = self.cluster.living()
        if living:
            self.cluster.give_notice(living[pick % len(living)], seconds)

    @rule()
    def machines_stay_after_all(self) -> None:
        for pod in self.cluster.living():
            pod.notice = None

    @rule()
    def network_heals(self) -> None:
        self.cluster.cables.clear()
        for pod in self.cluster.pods.values():
            pod.reachable = not pod.dark and pod.node is not None

    @rule()
    def dark_nodes_are_given_up(self) -> None:
        """By the cluster, after a while."""
        for pod in self.cluster.pods.values():
            pod.gone = pod.gone or pod.dark

    @rule(rank=st.integers(0, RANKS - 1), to=st.sampled_from(["", " to=a", " to=b", " to=none"]), again=st.integers(0, 1000))
    def a_move_is_asked_for(self, rank: int, to: str, again: int) -> None:
        self.cluster.move_request = f"{rank}{to} {again}"

    @rule(wanted=st.booleans())
    def suspend(self, wanted: bool) -> None:
        self.cluster.interrupted = wanted

    @rule()
    def checkpoint(self) -> None:
        steps = [
            p.step
            for p in self.cluster.living()
            if p.rank is not None and p.step is not None and p.worker.phase is WorkerPhase.RUNNING
        ]
        running = max((p.worker.view for p in self.cluster.living() if p.worker.phase is WorkerPhase.RUNNING), default=0)
        # Only the newest view writes; its members are at one step.
        members = len(self.cluster.views[running].members) if running else 0
        if len(steps) == members > 0 and len(set(steps)) == 1 and running == self.cluster.committed_view:
            self.cluster.save(steps[0])

    @invariant()
    def a_standby_is_one_rank_and_a_rank_is_one_standby(self) -> None:
        status = self.cluster.status
        pods = [promotion.pod for promotion in status.promotions] + [standby.pod for standby in status.standbys]
        assert len(pods) == len(set(pods))
        places = [(promotion.rank, promotion.serial) for promotion in status.promotions]
        assert len(places) == len(set(places))

    @rule(which=PICK)
    def the_cluster_takes_a_pod_away(self, which: int) -> None:
        living = self.cluster.living()
        if living:
            self.cluster.evict(living[which % len(living)])

    @invariant()
    def what_the_cluster_takes_away_is_not_charged(self) -> None:
        status = self.cluster.status
        assert status.restarts_before == status.disruptions <= status.restarts

    @invariant()
    def costs_are_told_at_most_once(self) -> None:
        redone = sum(times - 1 for times in self.cluster.losses.values())
        assert self.cluster.status.steps_lost <= redone + self.cluster.steps

    def teardown(self) -> None:
        """When the faults end, the job does too: trained and exported, with no pod left."""
        cluster = self.cluster
        cluster.interrupted = False
        self.network_heals()
        self.dark_nodes_are_given_up()
        # A rank may wait so long for the node that it was asked to move to.
        for _ in range(400 + int(cluster.spec.migration.timeout_seconds)):
            made = cluster.reconcile()
            if made.wake_after is None and made.status.phase is Phase.SUCCEEDED:
                break
            cluster.tick()
        assert cluster.status.phase is Phase.SUCCEEDED, cluster.status.message
        assert cluster.exported
        assert not cluster.living()
        assert all(i.steps_lost is not None and is_over(i) for i in cluster.status.incidents)


class FaultsWithHotStandbys(Faults):
    """The same, each rank with a follower."""

    spec = job_spec(RANKS, recovery={**RECOVERY, "hotStandby": True})


class FaultsWithCheckpoints(Faults):
    """The same, with moves through a checkpoint."""

    spec = job_spec(RANKS, recovery={**RECOVERY, "standby": 1}, migration={"strategy": "Checkpoint", "timeoutSeconds": 60})


class FaultsWithStandbys(Faults):
    """The same, with pods that wait to become a rank."""

    spec = job_spec(RANKS, recovery={**RECOVERY, "standby": 2})

    @initialize()
    def they_are_warm(self) -> None:
        for _ in range(6):
            self.cluster.reconcile()
            self.cluster.tick()
        assert self.cluster.status.warm_standbys == 2


class FaultsWithBoth(FaultsWithStandbys):
    """The same, with followers too."""

    spec = job_spec(RANKS, recovery={**RECOVERY, "standby": 2, "hotStandby": True})


class FaultsWithReplicas(Faults):
    """Three replicas of one stage, of which those that are slow move."""

    spec = job_spec(1, pipeline=PARTS, dataParallel={"shards": 4, "replicas": 3}, recovery=WATCHED)

    @rule(slow=st.frozensets(st.integers(0, RANKS), max_size=2), node=st.sampled_from([None, "a", "b"]))
    def some_are_slow(self, slow: frozenset[int], node: str | None) -> None:
        """Wherever they are, or on one node alone."""
        self.cluster.shard_seconds = lambda pod: 3.0 if pod.rank in slow and node in (None, pod.node) else 1.0

    @invariant()
    def what_befalls_replicas_is_told_once(self) -> None:
        told = self.cluster.status.incidents
        assert sum(i.kind is IncidentKind.SCALED and not is_over(i) for i in told) <= 1
        views = [i.view for i in told if i.kind is IncidentKind.REPLICA_LOST]
        assert len(views) == len(set(views))

    @rule(replicas=st.integers(1, 4))
    def scale(self, replicas: int) -> None:
        self.cluster.scale(replicas)


class FaultsWithReplicasOfStages(FaultsWithReplicas):
    """Two replicas of two stages."""

    spec = job_spec(2, pipeline={**PARTS, "stages": 2}, dataParallel={"shards": 4, "replicas": 2}, recovery=WATCHED)


class FaultsWithStages(Faults):
    """The layers are cut anew again and again."""

    spec = job_spec(2, recovery=RECOVERY)

    @rule(stages=st.integers(1, 3))
    def recut(self, stages: int) -> None:
        self.cluster.recut(stages)

    @invariant()
    def nobody_is_of_a_cut_that_was_never_asked_for(self) -> None:
        status = self.cluster.status
        if status.recut is not None:
            assert status.recut.cut != status.cut
            ranks = [entry.rank for entry in status.recut.followers]
            assert ranks == sorted(set(ranks)), (
                "in order; one is missing for a moment when another pod of its rank has overtaken it"
            )


class FaultsWithStagesOfReplicas(FaultsWithStages):
    """The same of replicas, whose number changes too."""

    spec = job_spec(1, pipeline=PARTS, dataParallel={"shards": 4, "replicas": 2}, recovery=RECOVERY)

    @rule(replicas=st.integers(1, 3))
    def scale(self, replicas: int) -> None:
        self.cluster.scale(replicas)


class FaultsWithStagesAndCopies(FaultsWithStages):
    """The same beside followers of the ranks, and standbys."""

    spec = job_spec(2, recovery={**RECOVERY, "standby": 1, "hotStandby": True})


class FaultsWithScripts(Faults):
    """Three pods that run a script; two are enough."""

    spec = script_spec(3, dataParallel={"minReplicas": 2}, recovery=RECOVERY)
    kind = ScriptCluster

    @rule(replicas=st.integers(2, 4))
    def scale(self, replicas: int) -> None:
        self.cluster.scale(replicas)

    @rule(silent=st.booleans(), given=st.booleans())
    def it_may_be_silent(self, silent: bool, given: bool) -> None:
        assert isinstance(self.cluster, ScriptCluster)
        self.cluster.silent, self.cluster.given = silent, given


class FaultsWithScriptsAndStandbys(FaultsWithScripts):
    """The same with a pod that waits to become a rank, and moves in order."""

    spec = script_spec(3, recovery={**RECOVERY, "standby": 1}, migration={"strategy": "Checkpoint", "timeoutSeconds": 60})


class FaultsWithScriptsThatSave(FaultsWithScripts):
    """The same, where processes save for seconds, each for another time, pods are slow to start, and one is enough."""

    spec = saving_spec(3, recovery=RECOVERY)
    kind = Script

    @rule(silent=st.booleans())
    def it_may_be_silent(self, silent: bool) -> None:
        assert isinstance(self.cluster, Script)
        self.cluster.reports = not silent

    @rule(seconds=st.sampled_from([0.0, 3.0, 12.0]))
    def pods_take_their_time(self, seconds: float) -> None:
        assert isinstance(self.cluster, Script)
        self.cluster.boot_seconds = seconds

    @rule(pick=PICK, code=st.sampled_from([1, 2, 3, 137]))
    def script_fails(self, pick: int, code: int) -> None:
        active = [p for p in self.cluster.living() if p.worker.phase is WorkerPhase.RUNNING]
        if active:
            self.cluster._exit(active[pick % len(active)], code, "it failed")


def examples(machine: type[RuleBasedStateMachine]) -> tuple[type[TestCase], type[TestCase], type[TestCase]]:
    """Test cases of ``machine``: a few histories for the unit tests, more for every change, and many for the slow tests."""
    stories = settings(stateful_step_count=30, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])

    class Few(machine.TestCase):  # type: ignore[misc, name-defined]
        settings = hypothesis.settings(stories, max_examples=4)

    class More(machine.TestCase):  # type: ignore[misc, name-defined]
        settings = hypothesis.settings(stories, max_examples=15)
        pytestmark = pytest.mark.integration

    class Many(machine.TestCase):  # type: ignore[misc, name-defined]
        settings = hypothesis.settings(stories, max_examples=100)
        pytestmark = pytest.mark.slow

    return Few, More, Many


TestFaults, TestMoreFaults, TestManyFaults = examples(Faults)
TestFaultsWithHotStandbys, TestMoreFaultsWithHotStandbys, TestManyFaultsWithHotStandbys = examples(FaultsWithHotStandbys)
TestFaultsWithCheckpoints, TestMoreFaultsWithCheckpoints, TestManyFaultsWithCheckpoints = examples(FaultsWithCheckpoints)
TestFaultsWithStandbys, TestMoreFaultsWithStandbys, TestManyFaultsWithStandbys = examples(FaultsWithStandbys)
TestFaultsWithBoth, TestMoreFaultsWithBoth, TestManyFaultsWithBoth = examples(FaultsWithBoth)
TestFaultsWithReplicas, TestMoreFaultsWithReplicas, TestManyFaultsWithReplicas = examples(FaultsWithReplicas)
TestFaultsWithReplicasOfStages, TestMoreFaultsWithReplicasOfStages, TestManyFaultsWithReplicasOfStages = examples(
    FaultsWithReplicasOfStages
)
TestFaultsWithStages, TestMoreFaultsWithStages, TestManyFaultsWithStages = examples(FaultsWithStages)
TestFaultsWithStagesOfReplicas, TestMoreFaultsWithStagesOfReplicas, TestManyFaultsWithStagesOfReplicas = examples(
    FaultsWithStagesOfReplicas
)
TestFaultsWithScripts, TestMoreFaultsWithScripts, TestManyFaultsWithScripts = examples(FaultsWithScripts)
TestFaultsWithScriptsAndStandbys, TestMoreFaultsWithScriptsAndStandbys, TestManyFaultsWithScriptsAndStandbys = examples(
    FaultsWithScriptsAndStandbys
)
TestFaultsWithScriptsThatSave, TestMoreFaultsWithScriptsThatSave, TestManyFaultsWithScriptsThatSave = examples(
    FaultsWithScriptsThatSave
)
TestFaultsWithStagesAndCopies, TestMoreFaultsWithStagesAndCopies, TestManyFaultsWithStagesAndCopies = examples(
    FaultsWithStagesAndCopies
)


def test_a_lost_member_is_not_taken_for_the_pod_that_comes_after_it() -> None:
    """The view is of the second replica alone, and half of it is lost as the job is made smaller and larger again. As it was found, in short."""
    story = FaultsWithReplicasOfStages()
    story.as_it_may_be(gpu=False, ahead=0.0)
    story.pod_is_told_to_end(pick=0)
    story.go_on(rounds=6)
    story.power_is_cut(pick=0)
    story.message_is_lost(lost=3)
    story.scale(replicas=1)
    story.pod_vanishes(pick=1)
    story.operator_dies_after_some_actions(first=2)
    story.scale(replicas=2)
    story.pod_is_told_to_end(pick=0)
    story.reconcile()
    story.the_cluster_takes_a_pod_away(which=2)
    story.teardown()
