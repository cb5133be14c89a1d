"""The model that a user's class makes: its units, each with the weights that a function of the seed gives it."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from lmj_trainer.errors import UserError
from lmj_trainer.model.randomness import derive_seed, reseed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lmj_trainer.own.source import Own


def seed_all(seed: int) -> None:
    """Seed every generator that a user's code may draw from: Python's, numpy's, and torch's on the CPU."""
    random.seed(seed)
    np.random.seed(seed % (1 << 32))
    reseed(seed, torch.device("cpu"))


def build(own: Own, seed: int) -> list[nn.Module]:
    """The units of the whole model, on the CPU: those of a list, or one. Equal ones each time.

    UserError: it is something else, or cannot be trained.
    """
    seed_all(derive_seed(seed, "model"))
    made = own.call("model")
    units = list(made) if isinstance(made, list | tuple | nn.ModuleList) else [made]
    where = own.where("model")
    for index, unit in enumerate(units):
        if not isinstance(unit, nn.Module):
            what = f"{own.name}.model gives" if made is unit else f"unit {index} of {own.name}.model is"
            raise UserError(f"{where}: {what} a {type(unit).__name__}: an nn.Module is needed, or a list of them")
    if not units:
        raise UserError(f"{where}: {own.name}.model gives an empty list: a unit at least is needed")
    _require_parameters(own, units)
    return units


def names_of(units: Sequence[nn.Module]) -> nn.ModuleList:
    """The whole model with the names that its tensors have in checkpoints: ``0.weight``, of unit 0."""
    return nn.ModuleList(units)


def _require_parameters(own: Own, units: Sequence[nn.Module]) -> None:
    where, owner = own.where("model"), dict[int, int]()
    for index, unit in enumerate(units):
        for name, parameter in unit.named_parameters():
            if parameter.dtype is not torch.float32:
                raise UserError(
                    f"{where}: {name} of unit {index} is {parameter.dtype}: weights have to be float32 (training.precision says in what "
                    "is computed)"
                )
            if parameter.is_meta:
                raise UserError(f"{where}: {name} of unit {index} has no values (it is on the meta device)")
            first = owner.setdefault(id(parameter), index)
            if first != index:
                raise UserError(
                    f"{where}: {name} of unit {index} is a weight of unit {first} too: only weights within one unit can be shared"
                )


def require_stages(own: Own, units: Sequence[nn.Module], parts: Sequence[range]) -> None:
    """UserError: one of the stages ``parts`` has nothing to train."""
    for stage, part in enumerate(parts):
        if not any(p.requires_grad for index in part for p in units[index].parameters()):
            which = f"units {part.start} to {part.stop - 1}" if len(part) > 1 else f"unit {part.start}"
            raise UserError(
                f"{own.where('model')}: stage {stage} ({which}) has no weights to train: put {which} together with others, or say in "
                "pipeline.layers how many units each stage has"
            )
