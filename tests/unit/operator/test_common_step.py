"""Where a view starts from."""

import pytest

from lmj_api.protocol import CheckpointInfo, Holding
from lmj_api.view import Resume
from lmj_operator.plan.common_step import MEMORY_TRIES, common_step

AT_8 = Holding(step=8)
TO_8 = Holding(step=7, prepared=True)
GOOD = CheckpointInfo(name="step-000000005", step=5)
BAD = CheckpointInfo(name="step-000000009", step=9, problem="rank-0.safetensors is torn")
FROM_GOOD = Resume(step=5, checkpoint=GOOD.name)


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
        ([AT_8, None], "goes back to checkpoint step-000000005, for rank 1 has nothing in memory"),
        ([None, AT_8, None], "goes back to checkpoint step-000000005, for ranks 0, 2 have nothing in memory"),
        ([AT_8, Holding(step=7)], "goes back to checkpoint step-000000005, for rank 1 is at step 7 and rank 0 at step 8"),
        ([Holding(step=7), AT_8], "goes back to checkpoint step-000000005, for rank 0 is at step 7 and rank 1 at step 8"),
        (
            [Holding(step=6, prepared=True), AT_8],
            "goes back to checkpoint step-000000005, for rank 0 is at step 6 and rank 1 at step 8",
        ),
        ([Holding(step=4)] * 2, "goes on from checkpoint step-000000005, for the memory is of step 4"),
        ([None, None], "starts from checkpoint step-000000005"),
    ],
)
def test_from_a_checkpoint(holdings: list[Holding | None], reason: str) -> None:
    assert common_step(holdings, [BAD, GOOD]) == (FROM_GOOD, reason)


def test_memory_that_fails_again_and_again_is_not_believed() -> None:
    assert common_step([AT_8, AT_8], [GOOD], MEMORY_TRIES)[0] == Resume(step=8)
    resume, reason = common_step([AT_8, AT_8], [GOOD], MEMORY_TRIES + 1)
    assert resume == FROM_GOOD
    assert reason == "goes back to checkpoint step-000000005, for what is in memory failed 4 times in a row"


def test_from_the_beginning() -> None:
    assert common_step([None, None], []) == (Resume(step=0), "starts from the beginning")
    assert common_step([AT_8, None], []) == (Resume(step=0), "goes back to the beginning, for rank 1 has nothing in memory")
