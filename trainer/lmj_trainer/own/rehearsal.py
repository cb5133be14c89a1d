"""A user's class tried with a few rows, before anything is trained: what is wrong with it is found there, as far as two rows show it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from lmj_trainer.errors import UserError
from lmj_trainer.model.partition import partition
from lmj_trainer.model.stage import Place
from lmj_trainer.own.collate import collated
from lmj_trainer.own.objective import OwnObjective
from lmj_trainer.own.source import load_own
from lmj_trainer.own.stage import OwnStage
from lmj_trainer.own.units import build, require_stages

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import nn

    from lmj_api.spec import JobSpec
    from lmj_trainer.model.inputs import Collated
    from lmj_trainer.own.source import Own


def built(spec: JobSpec, check_cut: Callable[[int], None]) -> tuple[list[nn.Module], int]:
    """The units of the model, which can be cut as ``spec`` says, and how many weights it has. UserError: they cannot, or there is no model.

    ``check_cut``: raises UserError for a number of units that cannot.
    """
    own = load_own(spec.model)
    units = build(own, spec.training.seed)
    check_cut(len(units))
    require_stages(own, units, partition(len(units), spec.pipeline.stages, spec.pipeline.layers))
    return units, sum(parameter.numel() for unit in units for parameter in unit.parameters())


def rehearse(spec: JobSpec, units: Sequence[nn.Module], rows: Sequence[Mapping[str, Any]]) -> None:
    """Train on ``rows``, and evaluate them, unit by unit, and forget it. UserError: that cannot be done."""
    own, seed, precision = load_own(spec.model), spec.training.seed, spec.training.precision
    # Each unit as a stage: what goes from one to the next is what would be sent.
    stages = [OwnStage(own, units, range(k, k + 1), seed=seed, precision=precision) for k in range(len(units))]
    inputs = collated(own, rows, seed, torch.device("cpu"))
    _train(own, stages, inputs)
    objective = OwnObjective(own)
    counts, hidden = objective.counts(), None
    with torch.no_grad():
        for stage in stages:
            stage.set_training(False)
            hidden = stage(inputs, hidden, None)
        counts.add(0, hidden, inputs.labels)
    if counts.samples and not own.has("evaluate"):  # that is of a whole split: two rows may be too few
        objective.evaluation(counts, "train", 0)


def _train(own: Own, stages: Sequence[OwnStage], inputs: Collated) -> None:
    given: list[torch.Tensor | None] = [None]
    outputs: list[torch.Tensor] = []
    for stage in stages:
        stage.set_training(True)
        outputs.append(stage(inputs, given[-1], Place(0, 0)))
        if not stage.last:
            given.append(outputs[-1].detach().requires_grad_())
    outputs[-1] = OwnObjective(own).loss(outputs[-1], inputs.labels)
    grad = None
    for index in reversed(range(len(stages))):
        output, hidden = outputs[index], given[index]
        if index == 0 and not output.requires_grad:
            return  # it has no weights
        with own.blamed(f"the backward pass of unit {index} ({type(stages[index].model[index]).__name__})", "model"):
            torch.autograd.backward(output, grad)
        if hidden is None:
            return
        if hidden.grad is None:
            raise UserError(f"{own.where('model')}: what unit {index} gives does not depend on what unit {index - 1} does")
        grad = hidden.grad
