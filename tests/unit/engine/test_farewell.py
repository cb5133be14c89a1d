"""The end of a job: ranks in threads, over the transport in memory, where one that has left is gone for all others at once."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor, wait

import pytest

from lmj_api.topology import Topology
from lmj_trainer.group.farewell import tell_again, tell_finished, wait_finished
from lmj_trainer.group.group import Group
from lmj_trainer.transport.inbox import ViewBrokenError
from lmj_trainer.transport.memory import MemoryTransport

DEADLINE = 30.0
STEP = 7


class Ranks:
    """Three ranks of one view."""

    def __init__(self, patience: float = DEADLINE) -> None:
        network: dict[str, MemoryTransport] = {}
        topology = Topology(3, 1)
        self.transports = [MemoryTransport(network, f"rank-{rank}") for rank in topology.ranks]
        self.groups = [Group(transport, rank, topology, patience) for rank, transport in enumerate(self.transports)]
        for rank, transport in enumerate(self.transports):
            transport.join(1, rank, {other: f"rank-{other}" for other in topology.ranks if other != rank})

    def leave(self, rank: int) -> None:
        """What the others notice when a process ends."""
        for other, transport in enumerate(self.transports):
            if other != rank:
                transport.inbox.fail(1, f"rank {rank} is lost", rank)

    def end(self, rank: int, attempt: int = 0) -> None:
        """Do what ``rank`` does when training is complete, and end."""
        try:
            if rank == 0:
                tell_finished(self.groups[0], STEP, attempt)
            else:
                wait_finished(self.groups[rank], STEP)
        finally:
            self.leave(rank)


@pytest.fixture
def pool():
    with ThreadPoolExecutor(3) as executor:
        yield executor


def ended(*futures: Future[None]) -> None:
    for future in futures:
        future.result(DEADLINE)


def test_nobody_leaves_before_all_know(pool: ThreadPoolExecutor) -> None:
    ranks = Ranks()
    early = [pool.submit(ranks.end, 0), pool.submit(ranks.end, 1)]
    assert not wait(early, 0.3).done, "rank 2 has read nothing yet"
    ended(*early, pool.submit(ranks.end, 2))


def test_the_outputs_may_be_written_at_a_later_attempt(pool: ThreadPoolExecutor) -> None:
    ranks = Ranks()
    tell_again(ranks.groups[0], STEP, 0)
    tell_again(ranks.groups[0], STEP, 1)
    others = [pool.submit(ranks.end, rank) for rank in (1, 2)]
    assert not wait(others, 0.3).done
    ended(pool.submit(ranks.end, 0, 2), *others)


def test_who_knows_takes_a_loss_for_the_end(pool: ThreadPoolExecutor) -> None:
    """Rank 2 dies when the model is saved, and the others have read it."""
    ranks = Ranks()
    early = [pool.submit(ranks.end, 0), pool.submit(ranks.end, 1)]
    assert not wait(early, 0.3).done
    ranks.leave(2)
    ended(*early)


def test_the_leader_waits_for_nobody_longer_than_for_any_message(pool: ThreadPoolExecutor) -> None:
    """One reads nothing any more, and lives: the job is complete, and its leader leaves."""
    ranks = Ranks(patience=0.1)
    ended(pool.submit(ranks.end, 0))


def test_a_view_that_breaks_before_is_broken() -> None:
    ranks = Ranks(patience=0.2)
    tell_again(ranks.groups[0], STEP, 0)
    with pytest.raises(ViewBrokenError, match="no finished 1 of step 7"):
        wait_finished(ranks.groups[1], STEP)
    ranks.leave(1)
    with pytest.raises(ViewBrokenError, match="rank 1 is lost"):
        wait_finished(ranks.groups[2], STEP)
