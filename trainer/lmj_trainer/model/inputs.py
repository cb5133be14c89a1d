"""What a model reads of a micro-batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Inputs:
    """A micro-batch on the stage's device. Shapes ``[b, t]`` (labels: as of the task), int64."""

    input_ids: Tensor
    attention_mask: Tensor
    """1 where there is a token, 0 in the padding behind a row's tokens."""
    token_type_ids: Tensor | None
    labels: Tensor


@dataclass(frozen=True)
class Targets:
    """What the loss of a user's own class takes of a micro-batch."""

    rows: int
    value: Any
    """As ``collate`` gave it, with tensors on the stage's device; None where only the rows are counted."""


@dataclass(frozen=True)
class Collated:
    """A micro-batch of a user's own class."""

    value: Any
    """What the model reads: a tensor, or several in a tuple or by name, on the stage's device."""
    labels: Targets
