"""Standbys that become a rank's pod: which of them may, and for how long that is remembered."""

import pytest
from tests.unit.operator.seen import facts, move, observed, pod, worker

from lmj_api.status import JobStatus, Promotion, StandbyStatus
from lmj_operator.plan.pods.promotions import kept_promotions, take_standbys
from lmj_operator.plan.pods.wants import Want


@pytest.mark.parametrize(
    ("promotion", "stays", "why"),
    [
        (Promotion(pod="j-s-7", rank=0, serial=2), True, "its pod, which is wanted, may not have been seen yet"),
        (Promotion(pod="j-s-1", rank=0, serial=1), True, "its pod was replaced and is there yet"),
        (Promotion(pod="j-s-7", rank=0, serial=1), False, "its pod was replaced and is gone"),
        (Promotion(pod="j-s-1", rank=5, serial=2), False, "the job has no such rank any more"),
    ],
)
def test_a_promotion_stays_as_long_as_its_pod_may_be_there(promotion: Promotion, stays: bool, why: str) -> None:
    seen = observed(pod(None, 1, worker()), status=JobStatus(promotions=[promotion]))
    new = Promotion(pod="j-s-9", rank=1, serial=3)
    assert kept_promotions(seen, {0: Want(2, 1), 1: Want(3, 1)}, (new,)) == [*([promotion] if stays else []), new], why


@pytest.mark.parametrize(
    ("spare", "to", "taken"),
    [
        ("node-2", None, True),
        ("node-1", None, False),
        ("node-2", "node-2", True),
        ("node-2", "node-3", False),
    ],
)
def test_a_rank_that_leaves_its_node_takes_a_standby_that_is_where_it_is_to_be(spare: str, to: str | None, taken: bool) -> None:
    status = JobStatus(standbys=[StandbyStatus(pod="j-s-1")], moves=[move(strategy="Checkpoint", to=to)])
    seen = observed(pod(None, 1, agent={"warm": True}, node=spare), status=status)
    found = take_standbys(
        seen, (facts(0, pod(0, 1, worker())), facts(1, None)), {0: Want(1, 1), 1: Want(2, 1)}, (), not_before=0.0, now=10.0
    )
    assert [c.pod for c in found.promotions] == (["j-s-1"] if taken else [])


def test_a_claim_uses_its_serial_up() -> None:
    """Another pod may have been made with the one that was wanted."""
    seen = observed(pod(None, 1, agent={"warm": True}), status=JobStatus(standbys=[StandbyStatus(pod="j-s-1")]), ranks=1)
    found = take_standbys(seen, (facts(0, None, next_serial=4),), {0: Want(2, 1)}, (), not_before=0.0, now=10.0)
    assert found.promotions == (Promotion(pod="j-s-1", rank=0, serial=4),)
    assert [(f.serial, f.next_serial) for f in found.ranks] == [(4, 5)]
    assert found.wanted == {0: Want(4, 1)}
