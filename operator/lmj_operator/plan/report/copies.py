"""Where the states are that training could go on from: in the memory of which pods, being written, and durable."""

from collections import Counter
from collections.abc import Sequence

from lmj_api.protocol import CheckpointInfo
from lmj_api.status import StateCopy
from lmj_api.topology import Topology
from lmj_operator.plan.observe.facts import RankFacts

MOST = 8
"""That are told."""
IN_MEMORY = 3
"""Of them: each rank has two snapshots, and while one is taken not all have the same two."""


def copies(
    topology: Topology,
    ranks: Sequence[RankFacts],
    durable: Sequence[CheckpointInfo],
    writing: int | None,
    before: Sequence[StateCopy],
) -> list[StateCopy]:
    """Newest step first, at most :data:`MOST`. ``ranks``: those of the job, whose memory counts. ``durable``: the good checkpoints that are
    known; ``writing``: the step of one that is under way. ``before``: what was told, whose checkpoints count too.
    """
    own, kept = Counter[int](), Counter[int]()
    for facts in ranks:
        memory = facts.worker.memory if facts.worker is not None else None
        if memory is not None:
            own.update(set(memory.own))
            # That of one's own rank in one's own pod is no second place.
            kept.update(set(memory.kept) if topology.kept(facts.rank) != facts.rank else ())
    names = {copy.step: copy.checkpoint for copy in before if copy.checkpoint is not None}
    names |= {c.step: c.name for c in sorted(durable, key=lambda c: (c.step, c.time))}
    in_memory = sorted(own.keys() | kept.keys(), reverse=True)[:IN_MEMORY]
    above = {*in_memory, *([writing] if writing is not None else [])}
    steps = above | set(sorted(names.keys() - above, reverse=True)[: MOST - len(above)])
    return [
        StateCopy(
            step=step,
            memory=own[step] if step in in_memory else 0,
            neighbours=kept[step] if step in in_memory else 0,
            writing=step == writing and step not in names,
            checkpoint=names.get(step),
        )
        for step in sorted(steps, reverse=True)
    ]
