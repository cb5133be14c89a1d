"""How ranks are numbered."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmj_api.topology import FIRST, Rank, Topology

TOPOLOGIES = st.builds(Topology, st.integers(1, 8), st.integers(1, 8))


def test_a_pipeline() -> None:
    topology = Topology(3)
    assert [topology.rank(rank) for rank in topology.ranks] == [Rank(0, 0, 0), Rank(1, 1, 0), Rank(2, 2, 0)]
    assert [(topology.before(rank), topology.after(rank), topology.last(rank)) for rank in topology.ranks] == [
        (None, 1, 2),
        (0, 2, 2),
        (1, None, 2),
    ]
    assert list(topology.writers) == [0, 1, 2]
    assert list(topology.followers) == [1, 2]


def test_replicas_are_numbered_one_after_the_other() -> None:
    topology = Topology(2, 3)
    assert [topology.rank(rank) for rank in (1, 2, 5)] == [Rank(1, 1, 0), Rank(2, 0, 1), Rank(5, 1, 2)]
    assert (topology.before(2), topology.after(1), topology.last(2)) == (None, None, 3)
    assert list(topology.holders(1)) == [1, 3, 5]


@given(TOPOLOGIES)
def test_each_part_of_the_state_is_held_by_one_rank_of_each_replica_and_written_by_one(topology: Topology) -> None:
    holders = [rank for part in topology.parts for rank in topology.holders(part)]
    assert sorted(holders) == list(topology.ranks)
    for part in topology.parts:
        assert [topology.rank(rank).replica for rank in topology.holders(part)] == list(range(topology.replicas))
        assert {topology.part(rank) for rank in topology.holders(part)} == {part}
        assert topology.part(topology.writer(part)) == part
    assert FIRST in topology.writers, "the leader has a part to write beside the manifest"


def test_parts_of_a_checkpoint_are_written_by_different_replicas() -> None:
    assert Topology(4, 2).writers == [0, 5, 2, 7]
    assert Topology(2, 3).writers == [0, 3]
    assert Topology(2, 3, frozenset({1})).writers == [0, 5]
    assert Topology(2, 3, frozenset({0})).writers == [2, 5]


@given(TOPOLOGIES)
def test_stages_of_a_replica_are_chained(topology: Topology) -> None:
    for rank in topology.ranks:
        after, before = topology.after(rank), topology.before(rank)
        assert after is None or topology.before(after) == rank
        assert before is None or topology.after(before) == rank
        assert (after is None) == (topology.last(rank) == rank)


@given(TOPOLOGIES, st.sets(st.integers(0, 7)))
def test_the_leader_tells_its_own_replica_last_and_one_of_each_other_first(topology: Topology, absent: set[int]) -> None:
    gone = frozenset(replica for replica in absent if replica < topology.replicas - 1)
    topology = replace(topology, absent=gone)
    told = list(topology.audience)
    assert sorted(told) == list(topology.followers)
    replicas = [topology.replica(rank) for rank in told]
    others = len(topology.present) - 1
    assert sorted(replicas[:others]) == list(topology.present[1:])
    assert replicas[len(told) - topology.stages + 1 :] == [topology.replica(topology.leader)] * (topology.stages - 1)


def test_of_one_replica_all_are_told_in_order() -> None:
    assert Topology(4).audience == (1, 2, 3)
    assert Topology(2, 3, frozenset({0})).audience == (4, 5, 3)


@given(TOPOLOGIES)
def test_each_rank_keeps_the_snapshots_of_another(topology: Topology) -> None:
    for rank in topology.ranks:
        assert topology.kept(topology.keeper(rank)) == rank
        assert topology.size == 1 or topology.keeper(rank) != rank


def test_what_is_asked_for_each_rank_is_made_once() -> None:
    there = frozenset(range(4, 1020))
    one, other = Topology(4, 256).among(there), Topology(4, 256).among(there)
    assert one.ranks is other.ranks
    assert one.present is other.present
    assert (one.size, one.leader, one.writer(3)) == (1016, 4, 19)


@pytest.mark.parametrize("number", [-1, 6])
def test_there_is_no_other_rank(number: int) -> None:
    with pytest.raises(IndexError, match=f"rank {number}: there are ranks 0 to 5"):
        Topology(2, 3).rank(number)


def test_a_rank_of_more_replicas_than_there_are_has_its_place() -> None:
    assert (Topology(2, 1).stage(5), Topology(2, 1).replica(5)) == (1, 2)


def test_replicas_that_are_not_there_leave_the_numbers_of_the_others_as_they_are() -> None:
    topology = Topology(2, 3).among([1, 2, 3, 4])
    assert list(topology.present) == [1]
    assert (list(topology.ranks), topology.size, topology.leader, list(topology.followers)) == ([2, 3], 2, 2, [3])
    assert (list(topology.holders(1)), list(topology.writers)) == ([3], [2, 3])
    assert topology.rank(5) == Rank(5, 1, 2), "it is known what it is"


@given(TOPOLOGIES, st.data())
def test_a_view_of_some_is_as_one_of_all(topology: Topology, data: st.DataObject) -> None:
    there = data.draw(st.sets(st.sampled_from(range(topology.replicas)), min_size=1))
    some = topology.among([rank for replica in there for rank in topology.ranks_of(replica)])
    assert list(some.present) == sorted(there)
    assert [some.stage(rank) for rank in some.ranks] == list(range(some.stages)) * len(there)
    assert [some.leader, *some.followers] == list(some.ranks)
    assert set(some.writers) <= set(some.ranks)
