"""Faults of the soak on a cluster, as a seed gives them."""

from itertools import pairwise

import pytest
from cluster_fault_plan import NODE_KINDS, NODES_APART, OF_A_BUCKET, OF_REPLICAS, OF_STAGES, Kind, plan


def test_a_seed_gives_the_same_faults_again() -> None:
    assert plan(7, 100) == plan(7, 100)
    assert plan(7, 100) != plan(8, 100)


@pytest.mark.parametrize("seed", range(20))
def test_a_hundred_are_of_all_kinds_and_leave_a_node_the_time_to_come_back(seed: int) -> None:
    kinds = [fault.kind for fault in plan(seed, 100)]
    assert len(kinds) == 100
    assert set(kinds) == set(Kind) == {*OF_STAGES, *OF_REPLICAS, *OF_A_BUCKET}
    away = [number for number, kind in enumerate(kinds) if kind in NODE_KINDS]
    assert min(after - before for before, after in pairwise(away)) > NODES_APART


def test_two_at_once_are_of_two_kinds_that_each_take_one_rank() -> None:
    for fault in plan(3, 200):
        assert (fault.pair is not None) == (fault.kind is Kind.TWO)
        assert fault.pair is None or not {Kind.TWO, Kind.HANG, *NODE_KINDS} & set(fault.pair)
    assert str(next(fault for fault in plan(3, 200) if fault.pair is not None)).count("and of the other rank") == 1
