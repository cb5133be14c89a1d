"""The learning rate of a step: a pure function."""

import math

from lmj_api.spec import LearningRateSchedule, Training

_TIME_SCALE = 10_000
"""Steps of the inverse root without warm-up."""


def warmup_steps(training: Training, steps: int) -> int:
    """Steps of warm-up in a run of ``steps``."""
    return training.warmup_steps or math.ceil(steps * training.warmup_ratio)


def learning_rate(training: Training, step: int, steps: int) -> float:
    """The rate that the 0-based ``step`` of ``steps`` is taken with: as ``transformers``' schedules of the same names."""
    warmup = warmup_steps(training, steps)
    if step < warmup:
        return training.learning_rate * (step / max(1, warmup))
    done = (step - warmup) / max(1, steps - warmup)
    match training.schedule:
        case LearningRateSchedule.CONSTANT:
            factor = 1.0
        case LearningRateSchedule.LINEAR:
            factor = max(0.0, (steps - step) / max(1, steps - warmup))
        case LearningRateSchedule.COSINE:
            factor = max(0.0, 0.5 * (1.0 + math.cos(math.pi * done)))
        case LearningRateSchedule.COSINE_WITH_RESTARTS:
            within = training.cycles * done % 1.0
            factor = max(0.0, 0.5 * (1.0 + math.cos(math.pi * within))) if done < 1.0 else 0.0
        case LearningRateSchedule.POLYNOMIAL:
            end = training.end_learning_rate
            falls = training.learning_rate - end
            # Divided, to be multiplied again: rounded as there.
            factor = (falls * (1 - done) ** training.power + end) / training.learning_rate
        case LearningRateSchedule.INVERSE_SQRT:
            scale = warmup or _TIME_SCALE
            factor = 1.0 / math.sqrt((step + scale - warmup) / scale)
    return training.learning_rate * factor
