"""What a script says of its progress, as the progress that a worker reports. Pure: text and the time in, a Progress out."""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from lmj_api.bounds import LARGEST
from lmj_api.protocol import Progress
from lmj_trainer.launch.trainer_status import read_trainer_status

NAMES = {
    "step": ("step", "global_step", "current_step", "iteration", "iter"),
    "steps": ("steps", "total_steps", "max_steps", "num_training_steps", "total_iterations", "max_iters"),
    "loss": ("loss", "train_loss", "training_loss", "train/loss"),
    "learning_rate": ("learning_rate", "lr", "train/learning_rate"),
    "epoch": ("epoch", "current_epoch", "train/epoch"),
    "grad_norm": ("grad_norm", "gradient_norm", "train/grad_norm"),
    "samples_per_second": ("samples_per_second", "train_samples_per_second", "train/samples_per_second"),
    "eta_seconds": ("eta_seconds", "eta", "remaining_seconds"),
}
"""Field of Progress, and the names that scripts give to it. Of several in one report the first counts."""
MOST_LINE = 16_384
"""Bytes of one report; what is longer is no report."""
MOST_NUMBER = 40
"""Characters of a number that is told as text."""
EXAMPLE = '{"step": 3, "steps": 100, "loss": 0.5}'


class ReportError(ValueError):
    """What was told is no report. Its text is one line for whoever sent it."""


class Reports:
    """Takes the reports of one view's script; ``progress`` is what they say together.

    A report need not repeat what an earlier one said. One with a smaller step than before starts anew: what was said of the steps before
    it, but for their number, is dropped. All times are seconds of one monotonic clock.
    """

    def __init__(self, first_step: int = 0) -> None:
        """``first_step``: where the script goes on, as far as anybody knows, until it says a step itself."""
        self.progress: Progress | None = None
        """None: nothing was reported."""
        self._first_step = first_step
        self._steps: int | None = None
        self._since: tuple[int, float] | None = None
        """The first step that this run told, and when."""
        self._shown_epoch: tuple[int, float] | None = None
        """The newest step told with an epoch above 0, and that epoch."""

    def take_lines(self, text: bytes, now: float) -> None:
        """Take JSON objects: one a line, or one after the other. Raise ReportError if there is none, or at the first that is no report."""
        taken = 0
        for line in text.splitlines():
            if len(line) > MOST_LINE:
                raise ReportError(f"a report of {len(line):,} bytes: at most {MOST_LINE:,} are read; send {EXAMPLE}")
            for told in _objects(line):
                self.take(told, now)
                taken += 1
        if not taken:
            raise ReportError(f"no report: send {EXAMPLE}")

    def take_trainer_status(self, body: bytes, now: float) -> None:
        """Take what the Trainer of transformers posts: see ``trainer_status``. Raise ReportError if the body is not that."""
        try:
            status = read_trainer_status(body)
        except ValueError as error:
            raise ReportError(str(error)) from None
        told, percent = dict(status.metrics), status.percent
        # A log of the user's may use the general names for something else.
        told |= {name: told[given] for name, given in (("step", "current_step"), ("steps", "total_steps")) if given in told}
        if "current_step" in told:
            self.take(told, now)
        elif percent == 0:
            self._begin(told)
        elif percent == 100:
            self._take_all(_numbers(told), self._last_step(told), now)
        elif percent is not None:
            self._steps = self._steps or 100
            self._take_all(_numbers(told), int(self._steps * percent / 100), now)
        else:
            raise ReportError("no progressPercentage in trainerStatus")
        self._estimate(status.remaining_seconds, now)

    def take(self, told: Mapping[str, Any], now: float) -> None:
        """Take one report: names of ``NAMES`` and their values; what else it says is not read.

        What is no finite number is shown as unknown: a loss that is NaN takes the place of the one before. Raise ReportError if it says
        nothing that is shown, or if its step is no whole number that counts something.
        """
        numbers = _numbers(told)
        if not numbers:
            raise ReportError(f"nothing in the report that is shown: send {EXAMPLE}")
        step = _count(numbers["step"]) if "step" in numbers else None
        if "step" in numbers and step is None:
            raise ReportError(f"step: a whole number from 0 on is wanted; send {EXAMPLE}")
        self._take_all(numbers, step, now)
        self._estimate(numbers.get("eta_seconds"), now, told=True)

    def _begin(self, told: Mapping[str, Any]) -> None:
        """A training begins. It does not say at which step: the first one of the view may go on, a later one is another training."""
        numbers = _numbers(told)
        self._steps = _count(numbers.get("steps"), least=1)
        self._since = self._shown_epoch = None
        first = self._first_step if self.progress is None else 0
        self.progress = Progress(step=first, steps=max(first, 1, self._steps or 1), epoch=0.0)

    def _take_all(self, numbers: Mapping[str, float | None], step: int | None, now: float) -> None:
        self._steps = _count(numbers.get("steps"), least=1) or self._steps
        before = self.progress
        if step is None:
            step = before.step if before is not None else self._first_step
        elif self._since is None or (before is not None and step < before.step):
            self._since = step, now
        if before is not None and step < before.step:
            before = self._shown_epoch = None
        known: dict[str, Any] = {"epoch": 0.0} if before is None else before.model_dump(exclude={"eta_seconds"})
        epoch = numbers.get("epoch")
        if epoch is not None and 0 <= epoch <= LARGEST:
            known["epoch"] = epoch
            self._shown_epoch = (step, epoch) if step > 0 and epoch > 0 else self._shown_epoch
        known |= {name: numbers[name] for name in ("loss", "learning_rate", "grad_norm", "samples_per_second") if name in numbers}
        # Without the number of steps, and where it is too small, the newest step is the last one known.
        self.progress = Progress(**known | {"step": step, "steps": max(step, 1, self._steps or 1)})

    def _estimate(self, seconds: float | None, now: float, told: bool = False) -> None:
        """Say how long it will take: ``told`` by the script, else measured here, else ``seconds`` that are somebody's guess."""
        at = self.progress
        if at is None:
            return
        measured = None
        if self._since is not None and self._steps is not None and at.step > self._since[0] and now > self._since[1]:
            measured = (at.steps - at.step) * (now - self._since[1]) / (at.step - self._since[0])
        chosen = seconds if measured is None or (told and seconds is not None) else measured
        good = chosen is not None and 0 <= chosen <= LARGEST
        self.progress = at.model_copy(update={"eta_seconds": chosen if good else None})

    def _last_step(self, told: Mapping[str, Any]) -> int:
        """The step at which a Trainer ended that says 100 %. It says so too when it was stopped early, and names no step.

        The epoch that it names is exact, the one of its newest step was rounded to hundredths: together they say whether all steps were
        taken. If not, the newest step that it named counts. A training too short to have named one says how long it took, and steps a second.
        """
        newest = self.progress.step if self.progress is not None else self._first_step
        if self._steps is None:
            return newest
        epoch, shown = _number(told.get("epoch")), self._shown_epoch
        if shown is not None and epoch is not None:
            estimate = shown[0] * epoch / shown[1]
            return self._steps if estimate >= self._steps - 1 - 0.005 * estimate / shown[1] else newest
        seconds, speed = _number(told.get("train_runtime")), _number(told.get("train_steps_per_second"))
        if seconds is None or speed is None or not 0 <= seconds * speed <= LARGEST:
            return self._steps
        return min(self._steps, self._first_step + round(seconds * speed))


class RateLimit:
    """Lets a Progress through at most every so many seconds. The newest waits its turn, and takes the place of one that waits."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._let_through = -math.inf
        self._newest: Progress | None = None
        self._waits = False

    def offer(self, progress: Progress) -> None:
        """Let ``progress`` wait, unless it is the newest already."""
        if progress != self._newest:
            self._newest, self._waits = progress, True

    def due_in(self, now: float) -> float | None:
        """Seconds until the one that waits may go; None: none waits."""
        return max(0.0, self._let_through + self._seconds - now) if self._waits else None

    def take(self, now: float) -> Progress | None:
        """The one that waits, which goes now whether it may or not: ask ``due_in`` first. None: none waits."""
        if not self._waits:
            return None
        self._let_through, self._waits = now, False
        return self._newest


def _objects(line: bytes) -> Iterator[dict[str, Any]]:
    """The JSON objects of one line; ``curl -d @FILE`` sends several lines as one."""
    decoder, place = json.JSONDecoder(), 0
    try:
        text = line.decode().strip()
        while place < len(text):
            value, place = decoder.raw_decode(text, place)
            if not isinstance(value, dict):
                raise ReportError(f"a report is a JSON object; send {EXAMPLE}")
            yield value
            place += len(text[place:]) - len(text[place:].lstrip())
    except ReportError:
        raise
    except (ValueError, RecursionError):
        raise ReportError(f"a report is a JSON object on one line, in UTF-8; send {EXAMPLE}") from None


def _numbers(told: Mapping[str, Any]) -> dict[str, float | None]:
    """Value of each field that is told; None: told, and no number."""
    names = {field: next((name for name in names if name in told), None) for field, names in NAMES.items()}
    return {field: _number(told[name]) for field, name in names.items() if name is not None}


def _number(value: object) -> float | None:
    """A finite number, which may be written as text; None: ``value`` is none."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float | str)
        or (isinstance(value, str) and len(value) > MOST_NUMBER)
    ):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _count(number: float | None, least: int = 0) -> int | None:
    """``number`` as a whole number; None: it is none, or less than ``least``, or too large."""
    return int(number) if number is not None and number.is_integer() and least <= number <= LARGEST else None
