"""What everybody else knows of a rank's part of the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch import Tensor, nn

    from lmj_trainer.model.stage import Place


class Part(Protocol):
    """A stage: of a model of transformers, or of the user's own."""

    model: Any
    """The module that has the stage's parameters, by the names that they have in the whole model."""
    config: Any
    """transformers' configuration of the model; None: it has none."""
    layers: range
    """Its units that can be cut into stages."""
    head_unit: int
    """One more than there are of these in the whole model."""
    first: bool
    last: bool
    recompute: bool
    halves: bool
    """Whether its backward pass may be done in two halves."""
    tied: dict[str, str]
    """Parameters that are copies of others on the first stage, and these."""
    frozen: dict[str, str]
    """Digests of the weights that are not trained, by name, once they are there."""
    prefixes: list[str]
    """What the names of all its parameters begin with."""
    device: torch.device

    def prefixes_of(self, layers: range) -> list[str]:
        """What the names of all begin with that a stage of ``layers`` has."""

    def parameters_by_name(self) -> list[tuple[str, nn.Parameter]]:
        """What the stage trains, in the whole model's order."""

    def frozen_by_name(self) -> Sequence[tuple[str, Tensor]]:
        """The stage's parameters that are not trained."""

    def modules_by_name(self) -> list[tuple[str, nn.Module]]:
        """The stage's modules, named as in the whole model."""

    def materialise(self, device: torch.device) -> None:
        """The parameters are those of a state now, on ``device``: drop what other stages hold, and have the rest there too."""

    def __call__(self, inputs: Any, hidden: Tensor | None, place: Place | None) -> Any:
        """Hidden states of the stage before (None for the first) → those of this one, or the output of the last.

        ``place`` seeds dropout; None when the model is in eval mode.
        """

    def blank(self, inputs: Any) -> Tensor | None:
        """Something of the shape that the stage before gives for ``inputs``; None: it is not known."""

    def set_training(self, training: bool) -> None:
        """Dropout on (training) or off (evaluation)."""
