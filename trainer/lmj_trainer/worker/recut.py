"""What workers of another cut take of this rank's state."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from lmj_api.topology import Topology
from lmj_trainer.model.partition import partition

if TYPE_CHECKING:
    from lmj_api.protocol import Recut
    from lmj_trainer.model.part import Part
    from lmj_trainer.state.stage_state import StageState

log = logging.getLogger(__name__)


def shares_of(recut: Recut | None, stage: Part, state: StageState) -> dict[str, frozenset[str]]:
    """Names of the parameters that each of ``recut`` has of ``stage``, by its address; nothing of a cut that the model cannot have."""
    if recut is None:
        return {}
    stages = Topology(recut.cut.stages)
    try:
        layers = partition(stage.head_unit - 1, recut.cut.stages, recut.cut.layers)
    except ValueError as error:
        log.warning("nobody follows in %s: %s", recut.cut, error)  # who was to cannot start for the same reason, and says so
        return {}
    return {
        member.address: frozenset(
            slot.name for slot in state.slots if slot.name.startswith(tuple(stage.prefixes_of(layers[stages.stage(member.rank)])))
        )
        for member in recut.followers
    }
