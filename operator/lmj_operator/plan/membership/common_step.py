"""Where a view starts from: the newest step that all of its members can have."""

from collections.abc import Sequence

from lmj_api.protocol import CheckpointInfo, Holding, Snapshots
from lmj_api.topology import Topology
from lmj_api.view import Resume
from lmj_operator.plan.membership.snapshots import newest_common
from lmj_operator.plan.observe.lists import few, of_ranks

MEMORY_TRIES = 3
"""Restarts in a row without a new step after which memory is not believed any more: it may be what is wrong."""


def common_step(
    topology: Topology,
    holdings: Sequence[Holding | None],
    checkpoints: Sequence[CheckpointInfo],
    tries: int = 0,
    snapshots: Sequence[Snapshots | None] = (),
) -> tuple[Resume, str]:
    """The resume point of a view, and why, in one sentence.

    ``holdings``: what each rank has in memory, in order of rank. ``checkpoints``: all that are known. ``tries``: restarts in a row
    without a new step. ``snapshots``: those in each rank's memory. A commit needs every rank's gradients, so no two are further than a
    step apart; one that is behind has to have that step's gradients, and hears from another how it was committed. What is newest counts:
    the memory of all, else a snapshot of which each rank has its own or its keeper has it, or a checkpoint.
    """
    good = max((c for c in checkpoints if c.problem is None), key=lambda c: c.step, default=None)
    believed = tries <= MEMORY_TRIES
    leader = topology.leader  # it need not be rank 0, and has what it needs from storage
    durable = Resume(step=0, told_by=leader, believed=believed)
    if good is not None:
        durable = Resume(step=good.step, told_by=leader, checkpoint=good.name, believed=believed)
    at = f"checkpoint {good.name}" if good is not None else "the beginning"
    back = durable
    # Of one step: the snapshot, because nothing has to be read.
    common = newest_common(snapshots, topology) if believed else None
    if common is not None and common.step >= durable.step:
        back = Resume(step=common.step, told_by=leader, snapshot=True, fetched=list(common.fetched))
        at = f"the snapshot of step {common.step} in memory ({common.origin(topology)})"
    if all(held is None for held in holdings):
        return back, f"starts from {at}"
    missing = lacking(topology, holdings)
    if missing is not None:
        return back, f"goes back to {at} because {missing}"
    steps = {rank: held.step for rank, held in zip(topology.ranks, holdings, strict=True) if held is not None}
    newest = max(steps.values())
    if len(steps) < topology.size:
        # Another replica has what they lack, but sends it to those alone that follow it.
        without = few([rank for rank in topology.ranks if rank not in steps])
        return back, f"goes back to {at} because no rank sends rank {without} what it lacks"
    if newest < back.step:
        return back, f"goes on from {at} because the memory is of step {newest}"
    if not believed:
        return durable, f"goes back to {at} because what is in memory failed {tries} times in a row"
    everywhere = common.step if common is not None else None
    resume = Resume(step=newest, told_by=min(rank for rank, step in steps.items() if step == newest), common_snapshot=everywhere)
    return resume, f"goes on from step {newest}, which all have in memory"


def lacking(topology: Topology, holdings: Sequence[Holding | None]) -> str | None:
    """Why the ranks cannot go on from memory; None: they can, from the newest step. A part of the state is lost when no rank holds it."""
    known = dict(zip(topology.ranks, holdings, strict=True))
    held = [[(rank, has) for rank in topology.holders(part) if (has := known[rank]) is not None] for part in topology.parts]
    empty = sorted(rank for part in topology.parts if not held[part] for rank in topology.holders(part))
    if empty:
        return f"{of_ranks(empty)} {'has' if len(empty) == 1 else 'have'} nothing in memory"
    newest = [max(holders, key=lambda holder: holder[1].step) for holders in held]
    first, top = max(newest, key=lambda holder: holder[1].step)
    for rank, has in newest:
        if has.step != top.step and not (has.prepared and has.step + 1 == top.step):
            return f"rank {rank} is at step {has.step} and rank {first} at step {top.step}"
    return None
