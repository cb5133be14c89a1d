"""What ranks send to each other."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Kind(StrEnum):
    """Kinds of messages."""

    ACTIVATION = "activation"
    """To the next stage: hidden states of a micro-batch, ``[b, t, h]``."""
    GRADIENT = "gradient"
    """To the stage before: gradient of the loss by those hidden states."""
    SUMS = "sums"
    """To the ranks of the same stage in other replicas: sums of shards' gradients, in the elements that the receiver adds up."""
    SUM = "sum"
    """The answer to all of them: the sum of all shards in these elements."""
    TIED = "tied"
    """Between the first stage and the last one: a piece of the sender's part of the gradient of what both have a copy of."""
    PREPARED = "prepared"
    """To rank 0: all gradients of the step are there, with each parameter's norm (and, from the last stage, the losses)."""
    COMMIT = "commit"
    """From rank 0: apply the step."""
    RESUME = "resume"
    """From rank 0, first of all in a view: how its first step was committed, and what is still to be done after it."""
    TOLD = "told"
    """To rank 0, first of all in a view, when it may be a step behind: how that step was committed."""
    LINES = "lines"
    """To rank 0, where it said that it lacks some: what is to be recorded of earlier steps."""
    BOUNDARY = "boundary"
    """From rank 0, after an evaluation: what to do before the next step."""
    CREDIT = "credit"
    """To the first stage: the last one evaluated a micro-batch. With the last one come the counts of all."""
    COUNTS = "counts"
    """To the leader: what a replica counted of its part of an evaluation."""
    PART = "part"
    """To rank 0: a rank's file of a checkpoint is durable."""
    DURABLE = "durable"
    """From rank 0: the checkpoint's manifest is durable (or could not be written)."""
    AGAIN = "again"
    """From rank 0: whether the checkpoint that was waited for, and could not be written, is tried again."""
    SNAPSHOT = "snapshot"
    """To the next rank, cyclically: a piece of this rank's snapshot, to be kept there."""
    KEPT = "kept"
    """The answer to it."""
    RESTORE = "restore"
    """To the rank before: a piece of its snapshot, because it has it no more."""
    RESTORED = "restored"
    """The answer to it."""
    FINISHED = "finished"
    """From rank 0: whether all outputs are durable. To it: this rank has read that they are."""
    RELEASED = "released"
    """From rank 0: all have read it, leave."""


@dataclass(frozen=True)
class Envelope:
    """A message. ``(view, kind, step, index, sender)`` names it: it is sent once, and refused when the view is over."""

    view: int
    kind: Kind
    step: int
    index: int
    sender: int
    payload: Any = None
    """A tensor, or a dict of plain values and tensors."""

    @property
    def key(self) -> tuple[Kind, int, int, int]:
        """What a receiver waits for."""
        return self.kind, self.step, self.index, self.sender
