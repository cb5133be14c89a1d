"""How ranks move between nodes."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from lmj_api.base import Message


class MigrationStrategy(StrEnum):
    """``Live``: while training goes on. ``Checkpoint``: all take a checkpoint, its pod leaves, and another is made. ``Never``: it stays."""

    LIVE = "Live"
    CHECKPOINT = "Checkpoint"
    NEVER = "Never"


class MigrationTimeout(StrEnum):
    """What follows a live migration that took too long: move through a ``Checkpoint``, or ``Stay``."""

    CHECKPOINT = "Checkpoint"
    STAY = "Stay"


class Cloud(StrEnum):
    """Whose machine a node is."""

    AWS = "AWS"
    GCP = "GCP"
    AZURE = "Azure"


class Migration(Message):
    """Moves of ranks between nodes. One machine has one node: a rank moves there on request alone, into another process."""

    strategy: MigrationStrategy = MigrationStrategy.LIVE
    """How a rank moves that is asked to, or is on a node that ``placement`` does not allow any more."""
    on_cordon: MigrationStrategy = MigrationStrategy.LIVE
    """How ranks leave a node that is cordoned, and so one that is drained, or has a taint that ends pods or is named in ``onTaints``; at most
    what ``strategy`` allows. Evictions are refused until they have. ``Never``: they stay until they are evicted, one at a time."""
    on_taints: list[Annotated[str, Field(min_length=1, max_length=317)]] = [
        "ToBeDeletedByClusterAutoscaler",
        "aws-node-termination-handler/asg-lifecycle-termination",
        "aws-node-termination-handler/rebalance-recommendation",
        "aws-node-termination-handler/scheduled-maintenance",
        "aws-node-termination-handler/spot-itn",
        "cloud.google.com/impending-node-termination",
        "karpenter.sh/disrupted",
        "karpenter.sh/disruption",
        "kubevirt.io/drain",
        "remediator.kubernetes.azure.com/unschedulable",
    ]
    """Keys of taints that keep new pods from a node (``NoSchedule``) and say that it is about to be taken away."""
    spot_notices: Cloud | None = None
    """Each pod asks the metadata service of this cloud whether its machine is about to be taken away: ranks leave it as a node that is
    cordoned, before there is any taint. Null: nobody is asked."""
    max_concurrent: Annotated[int, Field(ge=1, le=64)] = 2
    """Ranks that move at the same time."""
    bandwidth_mbps: Annotated[int, Field(ge=1)] | None = None
    """Most megabits a second of a move's copy; gradients of the steps that are made meanwhile come on top. Null: no limit."""
    timeout_seconds: Annotated[float, Field(gt=0)] = 600.0
    """Longest time of a move."""
    on_timeout: MigrationTimeout = MigrationTimeout.CHECKPOINT
    """What follows when a move takes longer."""

    @property
    def off_nodes(self) -> MigrationStrategy:
        """How ranks leave a node that is about to be taken away."""
        order = (MigrationStrategy.NEVER, MigrationStrategy.CHECKPOINT, MigrationStrategy.LIVE)
        return min(self.strategy, self.on_cordon, key=order.index)
