"""How long a rank that was moved stays where it is."""

import pytest
from tests.unit.operator.seen import facts, follower, pod, worker

from lmj_api.protocol import Holding, WorkerPhase
from lmj_api.status import Incident, IncidentKind
from lmj_api.topology import Topology
from lmj_operator.plan.moves.moved import FIRST_REST_SECONDS, rests, with_kept
from lmj_operator.plan.observe.times import rfc3339


@pytest.mark.parametrize(("moves", "rest"), [(1, 2.0), (2, 4.0), (3, 8.0), (9, 20.0)])
def test_each_move_doubles_the_rest_up_to_a_limit(moves: int, rest: float) -> None:
    incident = Incident(time=rfc3339(100.0), kind=IncidentKind.MOVED, rank=1, pod="j-r1-1", message="", view=1, step=5)
    seen, seconds = pod(1, 2, created=100.0), rest * FIRST_REST_SECONDS
    longest = 20.0 * FIRST_REST_SECONDS
    assert rests(seen, [incident] * moves, longest, now=99.0 + seconds)
    assert not rests(seen, [incident] * moves, longest, now=100.0 + seconds)


def test_where_nothing_moved_of_late_nobody_rests() -> None:
    assert not rests(pod(1, 2, created=100.0), [], 300.0, now=101.0)


def test_a_follower_that_does_not_know_yet_that_its_source_is_gone_need_not_say_what_it_has() -> None:
    empty, in_sync = (
        pod(1, 1, worker(WorkerPhase.READY, holding=None)),
        pod(1, 2, worker(WorkerPhase.FOLLOWING, holding=Holding(step=6))),
    )
    ranks = facts(0, pod(0, 1, worker(WorkerPhase.READY))), facts(1, empty, entry=follower(state="InSync"), follower=in_sync)
    assert [f.pod.name for f in with_kept(Topology(2), ranks, 0) if f.pod is not None] == ["j-r0-1", "j-r1-2"]
