"""The loss scale of Float16 training, as ``torch.amp.GradScaler`` adapts it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lmj_api.manifest import DOUBLING_STEPS, LARGEST_EXPONENT, MOST_SKIPPED

SKIP = 0.0
"""The coefficient of a commit whose gradients overflowed: the step counts, and its update is left out. No clipping gives it."""


@dataclass(frozen=True)
class LossScale:
    """What losses are multiplied by before the backward pass, a power of two: small gradients do not become zero in float16, and unscaling
    them changes no bit. It halves after a step whose gradients overflowed.
    """

    step: int
    """Committed steps that it has seen."""
    exponent: int = 16
    good: int = 0
    """Steps since it changed."""
    skipped: int = 0
    """Steps whose update was left out."""

    @property
    def factor(self) -> float:
        """The scale."""
        return float(1 << self.exponent)

    @property
    def exhausted(self) -> bool:
        """An overflow now would not be the scale's fault."""
        return self.exponent == 0 or self.skipped == MOST_SKIPPED

    @property
    def kept(self) -> dict[str, int]:
        """What a checkpoint of its step keeps of it."""
        return {"exponent": self.exponent, "good": self.good, "skipped": self.skipped}

    def after(self, coefficient: float) -> LossScale:
        """The scale after one more step, committed with ``coefficient``."""
        if coefficient == SKIP:
            return LossScale(self.step + 1, max(0, self.exponent - 1), 0, self.skipped + 1)
        if self.good + 1 == DOUBLING_STEPS and self.exponent < LARGEST_EXPONENT:
            return replace(self, step=self.step + 1, exponent=self.exponent + 1, good=0)
        return replace(self, step=self.step + 1, good=min(self.good + 1, DOUBLING_STEPS - 1))

    def packed(self) -> int:
        """All of it in one word above 0, so that it changes at once."""
        return ((self.step << 16 | self.skipped) << 11 | self.good) << 5 | self.exponent

    @classmethod
    def unpacked(cls, word: int) -> LossScale | None:
        """Of :meth:`packed`; None: there is none, which is 0."""
        if word == 0:
            return None
        return cls(word >> 32, word & 31, word >> 5 & 2047, word >> 16 & MOST_SKIPPED)
