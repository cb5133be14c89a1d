"""What a rank remembers beside its tensors."""

from dataclasses import dataclass

from lmj_trainer.state.loss_scale import LossScale


@dataclass(frozen=True)
class Facts:
    """Of one step. It goes where the tensors go: to a follower, and into a snapshot in memory."""

    seconds: float
    """Time of training."""
    evaluated: int
    """The newest step that was evaluated; -1: none."""
    best_step: int | None
    best_score: float | None
    waited: int = 0
    """Evaluations in a row of which none was better."""
    counted: int = -1
    """The step of the newest evaluation in that; -1: none was counted."""
    loss_scale: LossScale | None = None
    """Of Float16 training."""
