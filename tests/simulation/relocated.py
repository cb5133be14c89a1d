"""What tests of moves have in common."""

from dataclasses import replace

from planned import job_spec

from .cluster import Cluster
from .pod import Pod
from .test_hot_standbys import at_work, go_on, own


def cluster_of(ranks: int = 2, **migration: object) -> Cluster:
    spec = job_spec(ranks, migration=migration)
    made = Cluster(spec, steps=400, checkpoint_every=1000)
    go_on(made, lambda: at_work(made, 1))
    return made


def wide(ranks: int = 2, **migration: object) -> Cluster:
    made = Cluster(job_spec(ranks, migration=migration), steps=400, checkpoint_every=1000, nodes=("a", "b", "c"))
    go_on(made, lambda: at_work(made, 1))
    return made


def follower(cluster: Cluster, rank: int) -> Pod | None:
    entry = next((f for f in cluster.status.followers if f.rank == rank), None)
    return cluster.pods.get(entry.pod) if entry is not None else None


def assert_clean(cluster: Cluster, moves: int, restarts: int = 0) -> None:
    """``moves`` were made, nothing was done twice, and there are no more pods than ranks."""
    go_on(cluster, lambda: len(cluster.living()) == cluster.spec.world_size and not cluster.status.moves)
    assert (cluster.status.migrations, cluster.status.steps_lost, cluster.status.restarts) == (moves, 0, restarts)
    assert set(cluster.losses.values()) == {1}
    assert cluster.status.followers == []


def leaving_node(cluster: Cluster, rank: int, rounds: int = 40, **why: str) -> None:
    """Passes in which what ``why`` says is true of the rank's first pod."""
    name = own(cluster, rank).name
    for _ in range(rounds):
        cluster.reconcile(tuple(replace(p, **why) if p.name == name else p for p in cluster.look()))  # type: ignore[arg-type]
        cluster.tick(0.5)
