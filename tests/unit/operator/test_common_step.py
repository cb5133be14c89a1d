"""Where a view starts from."""

from typing import Any

import pytest

from lmj_api.protocol import CheckpointInfo, Holding, Snapshots
from lmj_api.topology import Topology
from lmj_api.view import Resume
from lmj_operator.plan.membership.common_step import MEMORY_TRIES, lacking
from lmj_operator.plan.membership.common_step import common_step as of_topology
from lmj_operator.plan.membership.snapshots import newest_common

AT_8 = Holding(step=8)
TO_8 = Holding(step=7, prepared=True)
GOOD = CheckpointInfo(name="step-000000005", step=5)
BAD = CheckpointInfo(name="step-000000009", step=9, problem="rank-0.safetensors is torn")
FROM_GOOD = Resume(step=5, checkpoint=GOOD.name)
UNBELIEVED = Resume(step=5, checkpoint=GOOD.name, believed=False)


def common_step(holdings: list[Holding | None], *more: Any) -> tuple[Resume, str]:
    """Of a pipeline: each rank holds a part of its own."""
    return of_topology(Topology(len(holdings)), holdings, *more)


@pytest.mark.parametrize(
    ("holdings", "why"),
    [
        ([AT_8, AT_8], "all at one step"),
        ([AT_8, TO_8, AT_8], "one has not heard of the commit"),
        ([Holding(step=8, prepared=True), AT_8], "the gradients of the next step, which nobody committed, change nothing"),
    ],
)
def test_from_memory(holdings: list[Holding], why: str) -> None:
    resume, reason = common_step(holdings, [BAD, GOOD])
    assert resume == Resume(step=8), why
    assert reason == "goes on from step 8, which all have in memory"


def test_rank_0_may_be_the_one_that_has_not_heard() -> None:
    resume, reason = common_step([TO_8, TO_8, AT_8, AT_8], [GOOD])
    assert resume == Resume(step=8, told_by=2)
    assert reason == "goes on from step 8, which all have in memory"


@pytest.mark.parametrize(
    ("holdings", "reason"),
    [
        ([AT_8, None], "goes back to checkpoint step-000000005 because rank 1 has nothing in memory"),
        ([None, AT_8, None], "goes back to checkpoint step-000000005 because ranks 0, 2 have nothing in memory"),
        ([AT_8, Holding(step=7)], "goes back to checkpoint step-000000005 because rank 1 is at step 7 and rank 0 at step 8"),
        ([Holding(step=7), AT_8], "goes back to checkpoint step-000000005 because rank 0 is at step 7 and rank 1 at step 8"),
        (
            [Holding(step=6, prepared=True), AT_8],
            "goes back to checkpoint step-000000005 because rank 0 is at step 6 and rank 1 at step 8",
        ),
        ([Holding(step=4)] * 2, "goes on from checkpoint step-000000005 because the memory is of step 4"),
        ([None, None], "starts from checkpoint step-000000005"),
    ],
)
def test_from_a_checkpoint(holdings: list[Holding | None], reason: str) -> None:
    assert common_step(holdings, [BAD, GOOD]) == (FROM_GOOD, reason)


@pytest.mark.parametrize("checkpoints", [[GOOD], []])
def test_a_view_without_rank_0_waits_for_nobody_outside_of_it(checkpoints: list[CheckpointInfo]) -> None:
    topology = Topology(2, 3, absent=frozenset({0}))
    resume, _ = of_topology(topology, [None] * 4, checkpoints)
    assert resume.told_by == topology.leader == 2
    resume, _ = of_topology(topology, [None] * 4, checkpoints, 0, [has(9), has(9), has(9), has(9)])
    assert (resume.snapshot, resume.told_by) == (True, 2)


def test_memory_that_fails_again_and_again_is_not_believed() -> None:
    assert common_step([AT_8, AT_8], [GOOD], MEMORY_TRIES)[0] == Resume(step=8)
    resume, reason = common_step([AT_8, AT_8], [GOOD], MEMORY_TRIES + 1)
    assert resume == UNBELIEVED
    assert reason == "goes back to checkpoint step-000000005 because what is in memory failed 4 times in a row"
    at_start = [Holding(step=0)] * 2
    assert common_step(at_start, [], MEMORY_TRIES)[0] == Resume(step=0)
    assert common_step(at_start, [], MEMORY_TRIES + 1)[0] == Resume(step=0, believed=False)


def test_memory_is_not_believed_where_one_rank_has_none_either() -> None:
    """The others may be at the checkpoint's step, with what failed."""
    assert common_step([AT_8, None], [GOOD], MEMORY_TRIES)[0] == FROM_GOOD
    assert common_step([AT_8, None], [GOOD], MEMORY_TRIES + 1)[0] == UNBELIEVED


def test_from_the_beginning() -> None:
    assert common_step([None, None], []) == (Resume(step=0), "starts from the beginning")
    assert common_step([AT_8, None], []) == (Resume(step=0), "goes back to the beginning because rank 1 has nothing in memory")


def has(*own: int, kept: tuple[int, ...] = ()) -> Snapshots:
    return Snapshots(own=list(own), kept=list(kept))


ALL = [has(10, 6, kept=(10, 6)), has(10, 6, kept=(10, 6)), has(10, 6, kept=(10, 6))]
AT_12 = Holding(step=12)
NONE = has()


def lost(*ranks: int) -> tuple[list[Holding | None], list[Snapshots | None]]:
    """``ranks`` have lost all of their memory."""
    return [None if r in ranks else AT_12 for r in range(3)], [NONE if r in ranks else ALL[r] for r in range(3)]


def test_back_to_the_newest_snapshot() -> None:
    holdings, snapshots = lost(1)
    assert common_step(holdings, [GOOD], 1, snapshots) == (
        Resume(step=10, snapshot=True, fetched=[1]),
        "goes back to the snapshot of step 10 in memory (rank 1's comes from rank 2) because rank 1 has nothing in memory",
    )
    holdings, snapshots = lost(2)
    assert common_step(holdings, [], 1, snapshots)[0] == Resume(step=10, snapshot=True, fetched=[2])


def test_memory_of_all_is_newer_than_any_snapshot() -> None:
    assert common_step([AT_12] * 3, [GOOD], 1, ALL)[0] == Resume(step=12, common_snapshot=10)


def test_a_snapshot_that_somebody_lacks_does_not_take_the_place_of_the_one_that_all_have() -> None:
    """A worker was killed while it took that of step 10: the next would else be written over 6 in one memory and over 10 in none."""
    torn = [has(6, kept=(6,)), has(10, 6, kept=(6,))]
    assert common_step([AT_12] * 2, [GOOD], 1, torn)[0] == Resume(step=12, common_snapshot=6)


@pytest.mark.parametrize("ranks", [(0, 1), (0, 2), (1, 2), (0, 1, 2)])
def test_who_loses_its_memory_with_its_neighbour_has_the_checkpoint(ranks: tuple[int, ...]) -> None:
    holdings, snapshots = lost(*ranks)
    assert common_step(holdings, [GOOD], 1, snapshots)[0] == FROM_GOOD


def test_every_second_rank_may_be_lost() -> None:
    resume, reason = common_step([None, AT_12, None, AT_12], [], 1, [NONE, ALL[0], NONE, ALL[0]])
    assert resume == Resume(step=10, snapshot=True, fetched=[0, 2])
    assert "(rank 0's comes from rank 1 and rank 2's comes from rank 3)" in reason


@pytest.mark.parametrize(
    ("snapshots", "step"),
    [
        ([has(10, 6, kept=(6,)), NONE], 6),  # the newest had not come when its rank died
        ([has(10, kept=(6,)), NONE], 5),
        ([has(10, 6, kept=(10, 6)), NONE], 10),
        ([has(10, 6), None], 5),
    ],
)
def test_a_snapshot_counts_where_all_have_it(snapshots: list[Snapshots | None], step: int) -> None:
    resume, _ = common_step([AT_12, None], [GOOD], 1, snapshots)
    assert resume.step == step
    assert resume.snapshot is (step != 5)


def test_of_snapshot_and_checkpoint_the_newer_one_counts() -> None:
    newer = CheckpointInfo(name="step-000000011", step=11)
    same = CheckpointInfo(name="step-000000010", step=10)
    holdings, snapshots = lost(1)
    assert common_step(holdings, [newer], 1, snapshots)[0] == Resume(step=11, checkpoint=newer.name)
    assert common_step(holdings, [same], 1, snapshots)[0].snapshot, "nothing has to be read for it"


def test_a_worker_whose_state_went_with_it_has_its_own_snapshot() -> None:
    """On a GPU the state is the process's, the snapshots are the agent's."""
    resume, reason = common_step([None, AT_12], [GOOD], 1, ALL[:2])
    assert resume == Resume(step=10, snapshot=True)
    assert reason.startswith("goes back to the snapshot of step 10 in memory (each rank has its own) because rank 0")
    assert (
        common_step([None, None], [GOOD], 1, ALL[:2])[1]
        == "starts from the snapshot of step 10 in memory (each rank has its own)"
    )


def test_snapshots_that_failed_again_and_again_are_not_believed() -> None:
    holdings, snapshots = lost(1)
    assert common_step(holdings, [GOOD], MEMORY_TRIES, snapshots)[0].snapshot
    assert common_step(holdings, [GOOD], MEMORY_TRIES + 1, snapshots)[0] == UNBELIEVED


def test_many_snapshots_are_looked_through_once() -> None:
    compared = 0

    class Step(int):
        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return int(self) == other

        def __hash__(self) -> int:
            return int(self)

    steps = [Snapshots.model_construct(own=[Step(2 * n + odd) for n in range(500)], kept=[]) for odd in (0, 1)]
    assert newest_common(steps, Topology(2)) is None
    assert compared < 5_000


TWICE = Topology(stages=2, replicas=2)


@pytest.mark.parametrize(
    ("holdings", "missing"),
    [
        ([AT_8, AT_8, None, None], None),
        ([None, AT_8, AT_8, None], None),
        ([TO_8, AT_8, None, None], None),
        ([AT_8, None, AT_8, None], "ranks 1, 3 have nothing in memory"),
        ([AT_8, Holding(step=6), AT_8, AT_8], None),
        ([AT_8, Holding(step=6), AT_8, Holding(step=7)], "rank 3 is at step 7 and rank 0 at step 8"),
    ],
)
def test_a_part_of_the_state_is_lost_when_no_rank_holds_it(holdings: list[Holding | None], missing: str | None) -> None:
    assert lacking(TWICE, holdings) == missing
