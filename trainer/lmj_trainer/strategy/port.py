"""The port of a strategy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from lmj_trainer.group.commit import Report
    from lmj_trainer.task.port import Counts


class Strategy(Protocol):
    """One rank's part in the steps and evaluations of a view. Methods are for the compute thread, raise ViewBrokenError when the view breaks,
    and can be called again after that.
    """

    compute_seconds: float
    """What the newest step's micro-batches took this rank, without the time for which it waited for others. What does not depend on its
    share of the batch (replicas' sums, the commit, the update) is no part of it, so that it grows with that share alone."""

    def gradients(self, step: int, final: Callable[[Tensor], None] | None = None) -> list[float]:
        """Add the gradients of the 0-based ``step`` up in the state. ``final`` is told of each parameter that has got its last part,
        or of each part of one that has, flat.

        Returns the losses of what this rank computed to the end, each weighed by its part of the samples.
        """

    def whole(self, reports: Sequence[Report]) -> tuple[float, Tensor]:
        """The mean loss of the global batch, and the norm of each parameter's gradient in the model's order (float32 ``[parameters]``),
        from what all ranks report, in order of rank.
        """

    def evaluate(self, split: str, step: int, tick: Callable[[int, int], None]) -> Counts | None:
        """Run ``split`` forward with the weights of ``step`` committed steps. ``tick(done, all)`` is called as micro-batches end, on rank 0.

        Returns the counts on rank 0, None on others.
        """

    def rehearse(self) -> None:
        """Do the work of a micro-batch and forget it: kernels are chosen and memory is there when the first one comes that counts.

        Nothing is sent, and neither weights nor gradients change.
        """
