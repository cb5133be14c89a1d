"""What a follower reports of its copy."""

from lmj_api.protocol import Copied
from lmj_trainer.follow.tally import Tally


def test_a_copy_is_counted_and_its_end_foretold() -> None:
    now = 100.0
    tally = Tally(100, lambda: now)
    assert tally.told == Copied(size=100)
    now = 105.0  # what came before the first part is no matter of the link's
    tally.state(20, 7)
    assert tally.told == Copied(done=20, size=100, step=7), "nothing is known of the speed yet"
    now = 107.0
    tally.state(40, 7)
    tally.gradients(15)
    assert tally.told == Copied(done=60, size=100, gradients=15, step=7, eta_seconds=2.0)
    tally.committed(8)
    assert tally.told.step == 8
    tally.state(40, 8)
    tally.in_sync(8, "abc")
    tally.committed(9)
    assert tally.told == Copied(done=100, size=100, gradients=15, step=9, in_sync_step=8, digest="abc")


def test_a_follower_that_had_all_before_copies_nothing() -> None:
    tally = Tally(100)
    tally.in_sync(3, "abc")
    assert tally.told == Copied(size=100, step=3, in_sync_step=3, digest="abc")
