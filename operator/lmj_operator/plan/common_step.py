"""Where a view starts from: the newest step that all of its members can have."""

from collections.abc import Sequence

from lmj_api.protocol import CheckpointInfo, Holding, Snapshots
from lmj_api.view import Resume
from lmj_operator.plan.snapshots import newest_common

MEMORY_TRIES = 3
"""Restarts in a row without a new step after which memory is not believed any more: it may be what is wrong."""


def common_step(
    holdings: Sequence[Holding | None],
    checkpoints: Sequence[CheckpointInfo],
    tries: int = 0,
    snapshots: Sequence[Snapshots | None] = (),
) -> tuple[Resume, str]:
    """The resume point of a view, and why, in one sentence.

    ``holdings``: what each rank has in memory, in order of rank. ``checkpoints``: all that are known. ``tries``: restarts in a row
    without a new step. ``snapshots``: those in each rank's memory. A commit needs every rank's gradients, so no two are further than a
    step apart; one that is behind has to have that step's gradients, and hears from another how it was committed. What is newest counts:
    the memory of all, else a snapshot of which each rank has its own or its neighbour has it, or a checkpoint.
    """
    good = max((c for c in checkpoints if c.problem is None), key=lambda c: c.step, default=None)
    believed = tries <= MEMORY_TRIES
    durable = Resume(step=0, believed=believed)
    if good is not None:
        durable = Resume(step=good.step, checkpoint=good.name, believed=believed)
    at = f"checkpoint {good.name}" if good is not None else "the beginning"
    back = durable
    # Of one step: the snapshot, for nothing has to be read.
    common = newest_common(snapshots) if believed else None
    if common is not None and common.step >= durable.step:
        back = Resume(step=common.step, snapshot=True, fetched=list(common.fetched))
        at = f"the snapshot of step {common.step} in memory ({common.origin(len(snapshots))})"
    if all(held is None for held in holdings):
        return back, f"starts from {at}"
    missing = lacking(holdings)
    if missing is not None:
        return back, f"goes back to {at}, for {missing}"
    steps = [held.step for held in holdings if held is not None]
    newest = max(steps)
    if newest < back.step:
        return back, f"goes on from {at}, for the memory is of step {newest}"
    if not believed:
        return durable, f"goes back to {at}, for what is in memory failed {tries} times in a row"
    everywhere = common.step if common is not None else None
    resume = Resume(step=newest, told_by=steps.index(newest), common_snapshot=everywhere)
    return resume, f"goes on from step {newest}, which all have in memory"


def lacking(holdings: Sequence[Holding | None]) -> str | None:
    """Why the ranks cannot go on from memory; None: they can, from the newest step."""
    empty = [rank for rank, held in enumerate(holdings) if held is None]
    if len(empty) == 1:
        return f"rank {empty[0]} has nothing in memory"
    if empty:
        return f"ranks {', '.join(map(str, empty))} have nothing in memory"
    known = [held for held in holdings if held is not None]
    newest = max(range(len(known)), key=lambda rank: known[rank].step)
    top = known[newest].step
    for rank, held in enumerate(known):
        if held.step != top and not (held.prepared and held.step + 1 == top):
            return f"rank {rank} is at step {held.step} and rank {newest} at step {top}"
    return None
