"""The order of the samples: a pure function of (seed, epoch); a step's rows are a function of the step's number.

So there is no loader state to save, to send or to lose, and every stage derives its batches alone.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from lmj_api.spec import Training

Indices = NDArray[np.int64]

_POOL = 50
"""Batches whose rows are sorted together."""


@lru_cache(maxsize=4)
def epoch_order(seed: int, epoch: int, n: int) -> Indices:
    """A permutation of ``range(n)``, read-only: the order of ``epoch`` (from 0) under ``seed``."""
    # RandomState, not Generator: its stream is frozen, so a run can be resumed under another version of numpy.
    order = np.random.RandomState([seed, epoch]).permutation(n).astype(np.int64)
    order.flags.writeable = False
    return order


def selection_order(seed: int, part: str, n: int) -> Indices:
    """A permutation of ``range(n)`` for choosing the rows of ``part`` (a cap, a fraction); unlike any epoch's order."""
    return np.random.RandomState([seed, *part.encode(), 0x53504C54]).permutation(n).astype(np.int64)


def global_batch(training: Training) -> int:
    """Rows of one optimizer step."""
    return training.batch_size * training.gradient_accumulation_steps


def steps_per_epoch(n: int, training: Training) -> int:
    """Full global batches in ``n`` rows; what is left over is left out of that epoch."""
    return n // global_batch(training)


def total_steps(n: int, training: Training) -> int:
    """Steps of the whole run: ``max_steps`` where it is set, whatever the epochs, else all full batches of all epochs."""
    per_epoch = steps_per_epoch(n, training)
    if per_epoch == 0:
        raise ValueError(f"{n} rows do not fill one global batch of {global_batch(training)}")
    return training.max_steps if training.max_steps is not None else training.epochs * per_epoch


def step_rows(n: int, training: Training, step: int) -> Indices:
    """Row indices of the global batch of ``step`` (from 0), int64 ``[global batch]``; of an order that knows no lengths."""
    per_epoch = steps_per_epoch(n, training)
    if per_epoch == 0 or step < 0:
        raise ValueError(f"no step {step} with {n} rows and a global batch of {global_batch(training)}")
    epoch, place = divmod(step, per_epoch)
    size = global_batch(training)
    return epoch_order(training.seed, epoch, n)[place * size : (place + 1) * size]


def grouped(rows: Indices, lengths: NDArray[np.int64], size: int, seed: int, epoch: int) -> Indices:
    """Batches ``[batches, size]`` of ``rows``, an order of ``epoch``, each of rows of similar length.

    ``lengths``: of all rows there are. Of each ``_POOL`` batches, in their order, the longest rows make a batch, the next ones another, and
    so on; and all batches come in an order of the seed, so that a row's length does not say when it is read. What does not fill a batch is
    left out first, as it is without lengths: it is not always the shortest.
    """
    kept = rows[: len(rows) // size * size]
    pools = [kept[start : start + _POOL * size] for start in range(0, len(kept), _POOL * size)]
    batches = np.concatenate([pool[np.argsort(-lengths[pool], kind="stable")] for pool in pools]).reshape(-1, size)
    return batches[np.random.RandomState([seed, epoch, 0x4C454E47]).permutation(len(batches))]


def micro_batches(rows: Indices, parts: int, *, in_halves: bool = True) -> list[Indices]:
    """``rows`` cut into ``parts`` equal pieces, in order, and the first of these ``in_halves``. Raises ValueError when they do not divide.

    Later stages stand still until the first piece reaches them: with a half of one, half as long. It does not depend on the number of
    stages, because the pieces decide the bits of the gradient's sum.
    """
    if parts < 1 or len(rows) % parts:
        raise ValueError(f"{len(rows)} rows cannot be cut into {parts} equal micro-batches")
    first, *others = np.split(rows, parts)
    half = len(first) // 2
    return [first[:half], first[half:], *others] if half and in_halves else [first, *others]
