"""Which ranks are slow: the decision, without a cluster."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.operator.seen import facts, observed, pod, worker

from lmj_api.shards import share
from lmj_api.spec import Straggler, StragglerAction
from lmj_api.status import JobStatus, StragglerStatus
from lmj_api.topology import Topology
from lmj_operator.plan.failures.bounded import with_bounded_times
from lmj_operator.plan.failures.stragglers import LARGEST_RATIO, compare, describe, judge, rest_seconds

RULE = Straggler(factor=1.5, seconds=60)
NOW = 1000.0

TOPOLOGIES = st.builds(
    lambda stages, replicas, gone: Topology(stages, replicas, frozenset(r for r in gone if r < replicas - 1)),
    st.integers(1, 3),
    st.integers(1, 6),
    st.frozensets(st.integers(0, 4), max_size=3),
)
SECONDS = st.floats(1e-6, 1e6)


def held(topology: Topology, shards: int, rank: int) -> int:
    present = topology.present
    return len(share(shards, len(present), present.index(topology.rank(rank).replica)))


def times(topology: Topology, shards: int, of: dict[int, float]) -> dict[int, float]:
    """What a step takes each rank, of which a shard takes so long."""
    return {rank: of[rank] * held(topology, shards, rank) for rank in topology.ranks}


@given(TOPOLOGIES, st.integers(0, 9), SECONDS)
def test_equals_are_no_stragglers_whatever_their_shares(topology: Topology, more: int, seconds: float) -> None:
    shards = topology.replicas + more
    ratios = compare(topology, shards, times(topology, shards, dict.fromkeys(topology.ranks, seconds)))
    assert set(ratios) == (set(topology.ranks) if len(topology.present) > 1 else set())
    assert all(ratio == pytest.approx(1.0) for ratio in ratios.values())


@given(TOPOLOGIES, st.integers(0, 9), st.data())
def test_what_counts_is_the_ratio(topology: Topology, more: int, data: st.DataObject) -> None:
    """A machine twice as slow throughout, or another unit of time, changes nothing."""
    shards = topology.replicas + more
    of = {rank: data.draw(st.floats(0.1, 10)) for rank in topology.ranks}
    scale = data.draw(SECONDS)
    ratios = compare(topology, shards, times(topology, shards, of))
    scaled = compare(topology, shards, times(topology, shards, {rank: value * scale for rank, value in of.items()}))
    assert scaled == pytest.approx(ratios)


@given(TOPOLOGIES, st.data())
def test_of_one_slow_rank_no_peer_is_slow(topology: Topology, data: st.DataObject) -> None:
    slow, by = data.draw(st.sampled_from(topology.ranks)), data.draw(st.floats(1.6, 100))
    of = {rank: by if rank == slow else 1.0 for rank in topology.ranks}
    ratios = compare(topology, topology.replicas, times(topology, topology.replicas, of))
    if len(topology.present) > 1:
        assert ratios.pop(slow) == pytest.approx(by)
    assert all(ratio <= 1.0001 for ratio in ratios.values())


def test_the_median_of_the_others_counts() -> None:
    assert compare(Topology(1, 4), 4, {0: 8.0, 1: 1.0, 2: 2.0, 3: 9.0})[0] == 4.0, "of 1, 2 and 9"


@pytest.mark.parametrize("seconds", [{0: 1.0}, {0: 1.0, 1: 0.0}, {1: 1.0}])
def test_what_cannot_be_compared_is_left_out(seconds: dict[int, float]) -> None:
    assert 0 not in compare(Topology(1, 2), 2, seconds)


def test_what_workers_tell_may_be_any_number() -> None:
    assert compare(Topology(1, 2), 2, {0: 9e15, 1: 5e-324})[0] == LARGEST_RATIO


def entry(**more: object) -> StragglerStatus:
    return StragglerStatus.model_validate({"rank": 1, "pod": "j-r1-1", "since": NOW - 10, "ratio": 2.0, **more})


RANK = facts(1, pod(1, 1, worker(), node="n"))


@pytest.mark.parametrize(
    ("before", "ratio", "since", "slow"),
    [
        (None, 1.5, None, None),
        (None, 1.51, NOW, False),
        (entry(), 1.51, NOW - 10, False),
        (entry(), 1.5, None, None),
        (entry(since=NOW - 59.9), 3.0, NOW - 59.9, False),
        (entry(since=NOW - 60), 3.0, NOW - 60, True),
        (entry(since=NOW - 60), 1.5, None, None),
        (entry(slow=True), 1.25, NOW - 10, True),
        (entry(slow=True), 1.24, None, None),
        (entry(slow=True), None, NOW - 10, True),
        (entry(since=NOW - 100), None, NOW - 100, False),
    ],
)
def test_suspected_then_slow_then_well(
    before: StragglerStatus | None, ratio: float | None, since: float | None, slow: bool | None
) -> None:
    after = judge(before, RANK, ratio, RULE, NOW)
    assert (after.since if after is not None else None, after.slow if after is not None else None) == (since, slow)
    if after is not None and ratio is not None:
        assert (after.pod, after.node, after.ratio) == ("j-r1-1", "n", ratio)


@pytest.mark.parametrize("ratio", [None, 3.0])
def test_another_pod_is_judged_anew(ratio: float | None) -> None:
    moved = facts(1, pod(1, 2, worker()))
    after = judge(entry(slow=True), moved, ratio, RULE, NOW)
    assert (after and (after.pod, after.since, after.slow)) == (("j-r1-2", NOW, False) if ratio else None)


@pytest.mark.parametrize(("not_before", "known"), [(NOW + 1, True), (NOW, False)])
@pytest.mark.parametrize("seen", [RANK, facts(1, pod(1, 2, worker())), facts(1, None)])
def test_one_that_moved_is_remembered_until_it_may_again(not_before: float, known: bool, seen: object) -> None:
    known_entry = entry(slow=True, moves=2, not_before=not_before, stays="why")
    after = judge(known_entry, seen, 1.0, RULE, NOW)  # type: ignore[arg-type]
    assert (after is not None) is known
    if after is not None:
        assert (after.moves, after.since, after.slow, after.stays) == (2, None, False, None)
        assert judge(after, RANK, None, RULE, not_before) is None


def test_all_that_are_slow_are_told_of() -> None:
    slow = [
        entry(slow=True, node="n", since=10.0),
        entry(rank=2),
        entry(rank=3, pod="j-r3-4", slow=True, since=20.0, stays="why"),
    ]
    text = describe(slow, Topology(2, 2), StragglerAction.REPORT)
    assert text == (
        "rank 1 (stage 1, replica 0) in j-r1-1 on n computes 2.0 times as long as its peers since 1970-01-01T00:00:10.000Z; "
        "rank 3 (stage 1, replica 1) in j-r3-4 computes 2.0 times as long as its peers since 1970-01-01T00:00:20.000Z"
    )
    text = describe(slow, Topology(2, 2), StragglerAction.MOVE)
    assert text is not None
    assert [part.rpartition("Z")[2] for part in text.split("; ")] == [", and it is to move", ", and it is not moved: why"]
    assert describe(slow[1:2], Topology(2, 2), StragglerAction.MOVE) is None


def test_an_operator_whose_clock_was_ahead_delays_nothing_for_ever() -> None:
    ahead = entry(since=NOW + 3600, not_before=NOW + 10_000, moves=2)
    seen = with_bounded_times(observed(status=JobStatus(stragglers=[ahead])), NOW)
    (bounded,) = seen.status.stragglers
    assert (bounded.since, bounded.not_before) == (NOW, NOW + rest_seconds(2))
    assert [rest_seconds(moves) for moves in (1, 2, 3)] == [600, 1200, 2400]
