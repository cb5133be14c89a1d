"""A thousand ranks, with random faults: each step is committed once, and what a pass says stays small."""

import random
from dataclasses import replace

import pytest
from planned import job_spec

from lmj_api.protocol import WorkerPhase
from lmj_api.status import Phase
from lmj_operator.plan import PodObserved

from .cluster import Cluster
from .pod import Pod

STAGES = 4
STEPS = 40
FAULTS = 8
MOST_ROUNDS = 400
ONE_MIB = 1 << 20


class Storm:
    """Faults of one seed, and the cluster that they befall."""

    def __init__(self, replicas: int, seed: int) -> None:
        parts = {"shards": 256, "replicas": replicas, "minReplicas": replicas // 4}
        sizes = {"pipeline": {"stages": STAGES, "microBatches": 256}, "training": {"batchSize": 256}}
        recovery = {"maxRestarts": 10_000, "backoffSeconds": 0, "maxBackoffSeconds": 1}
        spec = job_spec(STAGES, dataParallel=parts, recovery=recovery, **sizes)
        self.cluster = Cluster(spec, steps=STEPS, nodes=tuple(f"node-{n}" for n in range(replicas)))
        self.replicas = replicas
        self._random = random.Random(seed)
        self._cordoned: set[str] = set()
        self.befell: list[str] = []

    def _members(self) -> list[Pod]:
        """Pods whose workers train in the newest view."""
        view = self.cluster.status.view
        return [
            p
            for p in self.cluster.living()
            if view is not None and p.worker.phase is WorkerPhase.RUNNING and p.worker.view == view.number
        ]

    def strike(self) -> None:
        """One fault, of any kind."""
        cluster, members = self.cluster, self._members()
        if not members:
            return
        pod = self._random.choice(members)
        losses = [self._lose_pods, self._lose_node, self._kill_workers, self._go_dark]
        kind = self._random.choice([*losses, self._accuse, self._end, self._scale, self._half, self._cordon])
        kind(pod, members)
        self.befell.append(f"step {max(cluster.losses, default=0)}: {kind.__name__}")

    def _lose_pods(self, pod: Pod, members: list[Pod]) -> None:
        for lost in {pod.name, *(p.name for p in self._random.sample(members, min(3, len(members))))}:
            self.cluster.kill_pod(self.cluster.pods[lost])

    def _lose_node(self, pod: Pod, members: list[Pod]) -> None:
        for other in self.cluster.living():
            if other.node == pod.node:
                self.cluster.kill_pod(other)

    def _kill_workers(self, pod: Pod, members: list[Pod]) -> None:
        for other in self._random.sample(members, min(5, len(members))):
            self.cluster.kill_worker(other)

    def _go_dark(self, pod: Pod, members: list[Pod]) -> None:
        """Its peers accuse it."""
        self.cluster.cut_power(pod)

    def _accuse(self, pod: Pod, members: list[Pod]) -> None:
        """A link breaks while both of its ends are well."""
        self.cluster.break_link(pod)

    def _end(self, pod: Pod, members: list[Pod]) -> None:
        self.cluster.tell_to_end(pod)

    def _scale(self, pod: Pod, members: list[Pod]) -> None:
        self.cluster.scale(self._random.randint(self.replicas // 2, self.replicas))

    def _cordon(self, pod: Pod, members: list[Pod]) -> None:
        """Its ranks move, while they train, to nodes that are not."""
        assert pod.node is not None
        self._cordoned.add(pod.node)
        self.cluster.nodes = tuple(node for node in self.cluster.nodes if node not in self._cordoned)

    def _look(self) -> tuple[PodObserved, ...]:
        why = "its node is cordoned"
        return tuple(replace(p, node_leaving=why) if p.node in self._cordoned else p for p in self.cluster.look())

    def _half(self, pod: Pod, members: list[Pod]) -> None:
        """A commit that some have not heard of."""
        self.cluster.half_commit()

    def run(self) -> None:
        """Faults, with a few rounds between them, then none until the end."""
        calm = 0
        for _ in range(MOST_ROUNDS):
            made = self.cluster.reconcile(self._look())
            if made.status.phase is Phase.SUCCEEDED:
                return
            assert len(made.status.to_json()) < ONE_MIB
            assert len(made.status.message) < 2000, made.status.message
            if len(self.befell) < FAULTS and calm > 0 and self._random.random() < 0.4:
                self.strike()
                calm = 0
            self.cluster.tick()
            calm += bool(self._members())
        raise AssertionError(f"{self.cluster.status.message}; {self.befell}")


@pytest.mark.integration
@pytest.mark.parametrize(
    ("replicas", "seed"), [(32, 0), (32, 1), *(pytest.param(256, seed, marks=pytest.mark.slow) for seed in range(4))]
)
def test_under_random_faults_each_step_is_committed_once(replicas: int, seed: int) -> None:
    storm = Storm(replicas, seed)
    storm.run()
    assert storm.cluster.status.phase is Phase.SUCCEEDED
    assert storm.cluster.losses == dict.fromkeys(range(1, STEPS + 1), 1), storm.befell
