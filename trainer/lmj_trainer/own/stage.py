"""A stage of a model of the user's own: some of its units, and their forward pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lmj_api.spec import Precision
from lmj_trainer.errors import UserError
from lmj_trainer.model.built import BuiltStage
from lmj_trainer.model.randomness import dropout_seed, reseed
from lmj_trainer.own.units import build, names_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lmj_trainer.model.inputs import Collated
    from lmj_trainer.model.stage import Place
    from lmj_trainer.own.source import Own


class OwnStage(BuiltStage):
    """Units ``layers`` of the model."""

    def __init__(
        self,
        own: Own,
        units: Sequence[nn.Module],
        layers: range,
        *,
        seed: int,
        precision: Precision = Precision.FLOAT32,
        recompute: bool = False,
    ) -> None:
        """``units``: of the whole model, as :func:`~lmj_trainer.own.units.build` makes them; those of other stages are let go."""
        mine = names_of([unit if index in layers else nn.Identity() for index, unit in enumerate(units)])
        super().__init__(mine, layers, len(units), seed=seed, precision=precision, recompute=recompute)
        self.own = own
        self._watched = True
        """The first forward pass is looked at: does it change what is no weight?"""

    def prefixes_of(self, layers: range) -> list[str]:
        """What the names of all begin with that a stage of ``layers`` has."""
        return [f"{index}." for index in layers]

    def draw(self, wanted: Mapping[str, Tensor]) -> list[str]:
        """As the class makes them. None of them is called random: who knows what it does."""
        made = dict(names_of(build(self.own, self.seed)).named_parameters())
        with torch.no_grad():
            for name, weight in wanted.items():
                weight.copy_(made[name])
        return []

    def __call__(self, inputs: Collated, hidden: Tensor | None, place: Place | None) -> Any:
        """The hidden states of the stage before (None for the first) → those of this one, one tensor, or what the last unit gives.

        ``place`` seeds dropout; None when the model is in eval mode.
        """
        watched = self._watched and place is not None
        before = [buffer.clone() for buffer in self.model.buffers()] if watched else []
        given: Any = hidden
        with self.autocast():
            for index in self.layers:
                if self.recompute and place is not None:
                    given = checkpoint(self._unit, index, given, inputs, place, use_reentrant=False, preserve_rng_state=False)
                else:
                    given = self._unit(index, given, inputs, place)
        if watched:
            self._require_constant(before)
            self._watched = False
        if place is not None and not self.last and not given.requires_grad and self.parameters_by_name():
            raise UserError(f"{self.own.where('model')}: what unit {self.layers[-1]} gives does not depend on any weights")
        low = isinstance(given, Tensor) and given.dtype in (torch.bfloat16, torch.float16)
        return given.float() if self.last and low else given

    def _unit(self, index: int, hidden: Tensor | None, inputs: Collated, place: Place | None) -> Any:
        if place is not None:
            reseed(dropout_seed(self.seed, place.step, place.micro_batch, index), self.device)
        unit, own = self.model[index], self.own
        with own.blamed(f"unit {index} ({type(unit).__name__})", "forward" if own.has("forward") else "model"):
            if own.has("forward"):
                output = own.task.forward(unit, hidden, inputs.value)
            else:
                output = _applied(unit, inputs.value) if index == 0 else unit(hidden)
        return output if index == self.head_unit - 2 else self._passed(index, output)

    def _passed(self, index: int, output: Any) -> Tensor:
        """What goes on to the next unit. As it would be had it been sent there: so it does not matter where the model is cut."""
        if not isinstance(output, Tensor) or not output.is_floating_point():
            what = f"a tensor of {output.dtype}" if isinstance(output, Tensor) else f"a {type(output).__name__}"
            raise UserError(
                f"{self.own.where('model')}: unit {index} ({type(self.model[index]).__name__}) gives {what}: one tensor of floats goes "
                "from a unit to the next"
            )
        passed = output.contiguous()
        if passed.requires_grad:
            passed.register_hook(torch.Tensor.contiguous)  # type: ignore[no-untyped-call]
        return passed

    def _require_constant(self, before: list[Tensor]) -> None:
        if (name := self.changed(before)) is not None:
            module, _, key = name.rpartition(".")
            kind = type(self.model.get_submodule(module)).__name__
            raise UserError(
                f"{self.own.where('model')}: {key} of unit {name.partition('.')[0]} ({kind}) changes in training beside the weights, and"
                " would be lost with a rank: use what keeps no statistics (LayerNorm, GroupNorm, BatchNorm with"
                " track_running_stats=False)"
            )


def _applied(unit: nn.Module, value: Any) -> Any:
    """What the first unit makes of what ``collate`` gave: a mapping by name, a tuple or list one after the other, all else as it is."""
    if isinstance(value, dict):
        return unit(**value)
    return unit(*value) if isinstance(value, tuple | list) else unit(value)
