"""A stage of a model that is built with its values, as others build it: what it trains, and what stays as it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import torch
import xxhash

from lmj_trainer.model.precision import autocast

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager

    from torch import Tensor, nn

    from lmj_api.spec import Precision
    from lmj_trainer.model.stage import Place


class BuiltStage(ABC):
    """All of ``model`` is the stage's. To others it is a :class:`~lmj_trainer.model.part.Part`."""

    halves = False
    """The graph may be any: it is walked through at once."""

    def __init__(self, model: nn.Module, layers: range, units: int, *, seed: int, precision: Precision, recompute: bool) -> None:
        """``units``: of the whole model, of which the stage has ``layers``."""
        self.model: Any = model
        self.layers, self.seed, self.precision, self.recompute = layers, seed, precision, recompute
        self.first, self.last, self.head_unit = layers.start == 0, layers.stop == units, units + 1
        self.config: Any = None
        self.prefixes = self.prefixes_of(layers)
        self.tied: dict[str, str] = {}
        self.device = torch.device("cpu")
        self._again = _again(model)
        for tensor in self._constants():
            # Not mapped from a file: what is computed with it depends, in the last bits, on where in a cache line it lies.
            tensor.data = tensor.data.clone()
        self.frozen = {name: xxhash.xxh3_64_hexdigest(p.numpy().data.cast("B")) for name, p in self.frozen_by_name()}

    @abstractmethod
    def prefixes_of(self, layers: range) -> list[str]:
        """What the names of all begin with that a stage of ``layers`` has."""

    @abstractmethod
    def draw(self, wanted: Mapping[str, Tensor]) -> list[str]:
        """Write the first weights into ``wanted``, by their names. Returns those that are random although the model is pretrained."""

    @abstractmethod
    def __call__(self, inputs: Any, hidden: Tensor | None, place: Place | None) -> Any:
        """As of :class:`~lmj_trainer.model.part.Part`."""

    def parameters_by_name(self) -> list[tuple[str, nn.Parameter]]:
        """What the stage trains, in the whole model's order."""
        return [(n, p) for n, p in self.model.named_parameters() if p.requires_grad]

    def frozen_by_name(self) -> list[tuple[str, Tensor]]:
        """The stage's parameters that are not trained."""
        return [(n, p.detach()) for n, p in self.model.named_parameters() if not p.requires_grad]

    def modules_by_name(self) -> list[tuple[str, nn.Module]]:
        """The stage's modules."""
        return [(n, m) for n, m in self.model.named_modules() if n]

    def materialise(self, device: torch.device) -> None:
        """The parameters are others now, on ``device``: have all that share one share it again, and move what never changes there too."""
        self.device = device
        for alias, name in self._again:
            module, _, key = alias.rpartition(".")
            setattr(self.model.get_submodule(module), key, self.model.get_parameter(name))
        for tensor in self._constants():
            tensor.data = tensor.data.to(device)

    def _constants(self) -> Iterator[Tensor]:
        yield from (parameter for parameter in self.model.parameters() if not parameter.requires_grad)
        yield from self.model.buffers()

    def changed(self, before: list[Tensor]) -> str | None:
        """The name of the first buffer that is not what it was ``before``; None: all are."""
        named = zip(self.model.named_buffers(), before, strict=True)
        return next((name for (name, buffer), old in named if not torch.equal(buffer, old)), None)

    def autocast(self) -> AbstractContextManager[Any]:
        """In what is computed."""
        return autocast(self.precision, self.device)

    def blank(self, inputs: Any) -> Tensor | None:
        """What the stage before would give: its shape is not known here."""
        return None

    def set_training(self, training: bool) -> None:
        """Dropout on (training) or off (evaluation)."""
        self.model.train(training)


def _again(model: nn.Module) -> list[tuple[str, str]]:
    """Names under which a parameter is there once more, each with its first name."""
    first: dict[int, str] = {}
    named = [(name, first.setdefault(id(p), name)) for name, p in model.named_parameters(remove_duplicate=False)]
    return [(name, other) for name, other in named if name != other]
