"""The last messages of a job: no rank leaves before all know that training is complete.

A rank that leaves is lost to those that still wait, so each follower answers what it was told, and the leader releases all when it has all
answers. Who knows that training is complete takes a view that breaks meanwhile for the end.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from lmj_trainer.transport.envelope import Kind
from lmj_trainer.transport.inbox import ViewBrokenError

if TYPE_CHECKING:
    from lmj_trainer.group.group import Group

_FLUSH_SECONDS = 10.0


def tell_finished(group: Group, step: int, attempt: int) -> None:
    """On the leader, whose ``attempt`` to write the outputs has succeeded: tell all, and leave when all know it or one is lost."""
    with contextlib.suppress(ViewBrokenError):
        group.tell(Kind.FINISHED, step, attempt)
        for rank in group.others:
            group.take(Kind.FINISHED, step, rank)
        group.tell(Kind.RELEASED, step)
    group.flush(_FLUSH_SECONDS)


def tell_again(group: Group, step: int, attempt: int) -> None:
    """On the leader: ``attempt`` has failed, and there will be another."""
    group.tell(Kind.FINISHED, step, attempt, True)


def wait_finished(group: Group, step: int) -> None:
    """On a follower: return when all may leave. Raises ViewBrokenError when the view breaks before it knows that training is complete."""
    attempt = 0
    while group.take(Kind.FINISHED, step, index=attempt):
        attempt += 1
    with contextlib.suppress(ViewBrokenError):
        group.send(group.leader, Kind.FINISHED, step)
        group.take(Kind.RELEASED, step)
