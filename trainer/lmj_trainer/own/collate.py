"""Rows of the dataset as what the user's model reads, and what its loss takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from lmj_trainer.errors import UserError
from lmj_trainer.model.inputs import Collated, Targets
from lmj_trainer.own.units import seed_all

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lmj_trainer.own.source import Own


def collated(own: Own, rows: Sequence[Mapping[str, Any]], seed: int, device: torch.device) -> Collated:
    """The micro-batch of ``rows`` on ``device``. ``seed``: of what is drawn while it is made."""
    seed_all(seed)
    made = own.call("collate", list(rows))
    if not isinstance(made, tuple) or len(made) != 2:
        raise UserError(
            f"{own.where('collate')}: {own.name}.collate gives a {type(made).__name__}: a pair is needed, of what the model reads and of"
            " what the loss takes"
        )
    value, targets = (moved(part, device) for part in made)
    return Collated(value, Targets(len(rows), targets))


def moved(value: Any, device: torch.device) -> Any:
    """``value``, with all tensors in it on ``device``."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {key: moved(part, device) for key, part in value.items()}
    if isinstance(value, list):
        return [moved(part, device) for part in value]
    # A named tuple is made of its parts, one after the other.
    if isinstance(value, tuple):
        parts = [moved(part, device) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value
