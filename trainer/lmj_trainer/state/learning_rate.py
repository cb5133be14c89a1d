"""The learning rate of a step: a pure function."""

import math

from lmj_api.spec import LearningRateSchedule, Training


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
    return training.learning_rate * factor
