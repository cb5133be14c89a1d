"""Evaluations of a rank: when they are due, how they run, and what is said of them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lmj_api.protocol import EventKind

if TYPE_CHECKING:
    from collections.abc import Collection

    from lmj_api.protocol import Evaluation
    from lmj_api.spec.metric import Metric
    from lmj_trainer.strategy.port import Strategy
    from lmj_trainer.task.port import Objective
    from lmj_trainer.worker.control import Control
    from lmj_trainer.worker.pace import Pace
    from lmj_trainer.worker.recorder import Recorder


@dataclass(frozen=True)
class Evaluator:
    """All ranks compute; rank 0 alone has the result, which it records and reports."""

    splits: Collection[str]
    """Those that the dataset has."""
    strategy: Strategy
    objective: Objective
    control: Control
    pace: Pace
    every: int | None = None
    """Steps after which validation runs; None: those of an epoch."""
    metric: Metric | None = None
    """What the best is chosen by; None: as the task has it."""

    def due(self, committed: int) -> bool:
        """Whether validation runs after ``committed`` steps: after each epoch or every so many steps, and at the end of training."""
        every = self.every or self.pace.per_epoch
        ends = committed > 0 and (committed % every == 0 or committed == self.pace.steps)
        return ends and "validation" in self.splits

    def run(self, split: str, recorder: Recorder | None, step: int) -> Evaluation | None:
        """Evaluate ``split`` with the weights of ``step``. ``recorder``: rank 0's, which gets the result; None on others."""
        ticked = 0.0

        def tick(done: int, count: int) -> None:
            nonlocal ticked
            if time.monotonic() - ticked > 1:
                ticked = time.monotonic()
                self.control.emit(EventKind.PREPARING, progress=self.pace.at(step, f"evaluate {split} {done}/{count}"))

        counts = self.strategy.evaluate(split, step, tick)
        if counts is None or recorder is None:
            return None
        result = self.objective.evaluation(counts, split, step).model_copy(update={"metric": self.metric})
        recorder.evaluation(result)
        return result

    def test(self, recorder: Recorder | None, step: int) -> None:
        """Evaluate the test split, and report it."""
        result = self.run("test", recorder, step)
        if result is not None:
            self.report(result)

    def report(self, result: Evaluation, best: bool = False) -> None:
        """``best``: its weights are the best so far."""
        text = f"{result.split} of step {result.step}: {result.scores_text}"
        self.control.emit(EventKind.EVALUATED, text, evaluation=result, best=best)
