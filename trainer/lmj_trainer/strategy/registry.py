"""The strategies, by their names in ``spec.strategy``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from lmj_api.spec import Strategy as Name
from lmj_trainer.strategy.pipeline.pipeline import Pipeline

if TYPE_CHECKING:
    from lmj_trainer.group.group import Group
    from lmj_trainer.model.part import Part
    from lmj_trainer.state.stage_state import StageState
    from lmj_trainer.strategy.port import Strategy
    from lmj_trainer.strategy.step_data import StepData
    from lmj_trainer.task.port import Objective


class Factory(Protocol):
    """Makes a rank's part in a strategy."""

    def __call__(self, stage: Part, state: StageState, group: Group, batches: StepData, objective: Objective) -> Strategy:
        """``stage``: what the rank computes; ``state``: its weights and gradients; ``batches``: its data; ``objective``: the loss."""


STRATEGIES: dict[Name, Factory] = {Name.PIPELINE: Pipeline}
