"""Whether a view still has its members."""

import pytest
from tests.unit.operator.seen import pod, view, worker

from lmj_api.protocol import WorkerPhase
from lmj_operator.plan.membership.membership import broken


@pytest.mark.parametrize(
    ("phase", "newest", "is_broken"),
    [
        (WorkerPhase.RUNNING, 3, False),
        (WorkerPhase.READY, 2, False),  # it has not joined yet
        (WorkerPhase.READY, 3, True),  # it has dropped it
        (WorkerPhase.EXITED, 3, True),
    ],
)
def test_a_view_is_broken_when_a_member_is_in_it_no_more(phase: WorkerPhase, newest: int, is_broken: bool) -> None:
    pods = pod(0, 1, worker()), pod(1, 1, worker(phase, view=newest))
    assert broken(view(*pods), pods) is is_broken
