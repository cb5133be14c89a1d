"""Which evaluation is the best, and whether training stops before its last step: a pure function of the evaluations so far.

What it needs to know of them is a part of the state (:class:`~lmj_trainer.state.stage_state.Best`): it goes into checkpoints and snapshots, to
followers and through the death of a worker, so a run that was disturbed decides as one that was not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lmj_trainer.state.stage_state import Best

if TYPE_CHECKING:
    from lmj_api.spec import EarlyStopping


@dataclass(frozen=True)
class Stopping:
    """Early stopping by one rule."""

    rule: EarlyStopping | None
    """None: all steps are trained."""

    def judged(self, before: Best, step: int, score: float) -> Best:
        """What is known after the evaluation of ``step``, of ``score``. It may be judged again after a death in it."""
        # Done again, it was the best once already.
        better = before.score is None or before.step == step or score > before.score
        best = (step, score) if better else (before.step, before.score)
        if self.rule is None:
            return Best(*best)
        if before.counted == step:
            return Best(*best, before.waited, step)
        counts = before.score is None or score - before.score > self.rule.threshold
        return Best(*best, 0 if counts else before.waited + 1, step)

    def why(self, best: Best) -> str | None:
        """Why training ends where ``best`` is what is known; None: it goes on."""
        if self.rule is None or best.waited < self.rule.patience:
            return None
        times = f"{best.waited} evaluations in a row were" if best.waited > 1 else "an evaluation was"
        return (
            f"stopped early at step {best.counted}: {times} no better (training.earlyStopping); the best is of step {best.step}"
        )
