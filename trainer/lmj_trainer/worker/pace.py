"""How far training is, and how fast it goes."""

import time
from collections import deque

from lmj_api.protocol import Progress
from lmj_trainer.group.commit import Commit

_SECONDS = 10.0
"""Throughput is that of the last so many seconds."""


class Pace:
    """Makes the progress that a worker reports."""

    def __init__(self, steps: int, steps_per_epoch: int, samples: int) -> None:
        """``samples``: of one step."""
        self.steps, self.per_epoch, self._samples = steps, steps_per_epoch, samples
        self.last = steps
        """The step after which training ends."""
        self._stopped: str | None = None
        self._recent: deque[float] = deque(maxlen=1000)
        self.begin()

    def ends(self, step: int, why: str | None) -> None:
        """Training ends after ``step`` because of ``why``; None: it does not end before all of its steps."""
        self.last, self._stopped = (self.steps if why is None else step), why

    def begin(self) -> None:
        """Throughput starts again: what was done last was no step."""
        self._recent.clear()
        self._recent.append(time.monotonic())

    def committed(self, step: int, commit: Commit, rate: float, replicas: int | None = None) -> tuple[Progress, float]:
        """Progress at ``step``, which ``replicas`` have just committed with learning rate ``rate``, and the seconds that it took."""
        now, recent = time.monotonic(), self._recent
        took = now - recent[-1]
        recent.append(now)
        while len(recent) > 2 and now - recent[0] > _SECONDS:
            recent.popleft()
        speed = (len(recent) - 1) / max(1e-9, recent[-1] - recent[0])
        facts = {
            "loss": commit.loss,
            "learning_rate": rate,
            "grad_norm": commit.grad_norm,
            "samples_per_second": speed * self._samples,
            "eta_seconds": (self.steps - step) / speed,
            "replicas": replicas,
        }
        return self.at(step).model_copy(update=facts), took

    def at(self, step: int, activity: str = "train") -> Progress:
        """Progress at ``step``, without what only a commit tells."""
        return Progress(step=step, steps=self.steps, epoch=step / self.per_epoch, stopped=self._stopped, activity=activity)
