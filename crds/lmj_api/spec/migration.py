"""How ranks move between nodes."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from lmj_api.base import Message


class MigrationStrategy(StrEnum):
    """``Live``: while training goes on. ``Checkpoint``: through a checkpoint. ``Never``: a rank stays until its node is gone."""

    LIVE = "Live"
    CHECKPOINT = "Checkpoint"
    NEVER = "Never"


class MigrationTimeout(StrEnum):
    """What follows a live migration that took too long: move through a ``Checkpoint``, or ``Stay``."""

    CHECKPOINT = "Checkpoint"
    STAY = "Stay"


class Migration(Message):
    """Moves of ranks between nodes. One machine has one node: nothing moves there."""

    strategy: MigrationStrategy = MigrationStrategy.LIVE
    """How a rank moves."""
    on_cordon: MigrationStrategy = MigrationStrategy.LIVE
    """How ranks leave a node that is cordoned, and so one that is drained, or has a taint that ends pods. ``Live``: they move, and evictions
    are refused until they have. Else they stay until they are evicted, one at a time."""
    max_concurrent: Annotated[int, Field(ge=1)] = 2
    """Ranks that move at the same time."""
    bandwidth_mbps: Annotated[int, Field(ge=1)] | None = None
    """Most megabits a second of a move's copy; gradients of the steps that are made meanwhile come on top. Null: no limit."""
    timeout_seconds: Annotated[float, Field(gt=0)] = 600.0
    """Longest time of a move."""
    on_timeout: MigrationTimeout = MigrationTimeout.CHECKPOINT
    """What follows when a move takes longer."""
