"""One pipeline stage: its own units of the model, and their forward pass."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import transformers
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lmj_api.spec import Precision
from lmj_trainer.model.families.registry import FAMILIES
from lmj_trainer.model.lora import ADAPTER, adapted, is_dead, plain_name
from lmj_trainer.model.precision import autocast
from lmj_trainer.model.randomness import derive_seed, dropout_seed, reseed
from lmj_trainer.model.table import with_table

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from lmj_api.spec import Lora
    from lmj_trainer.model.families.family import Arguments
    from lmj_trainer.model.head import Heads
    from lmj_trainer.model.inputs import Inputs


@dataclass(frozen=True)
class Place:
    """Where a micro-batch of training is: what dropout, hiding tokens and what a user's class draws are functions of."""

    step: int
    """0-based."""
    micro_batch: int
    """Its number of all micro-batches of the step."""
    first: int = 0
    """The place of its first row in the global batch."""


class Stage:
    """Units ``layers`` of the model, with the embeddings if ``first`` and the head if ``last``. Built without memory: see ``state``."""

    halves = True

    def __init__(
        self,
        config: PretrainedConfig,
        heads: Heads,
        layers: range,
        *,
        seed: int,
        precision: Precision = Precision.FLOAT32,
        recompute: bool = False,
        lora: Lora | None = None,
        source: str | None = None,
    ) -> None:
        """``heads``: the task's.

        ``lora``: train adapters and the head alone, on the model of ``source``; the rest is there after ``weights.freeze``.
        """
        self.config = config
        self.family, self.head = FAMILIES[config.model_type], heads.by_family[config.model_type]
        with torch.device("meta"):
            self.model: Any = getattr(transformers, heads.auto).from_config(config, dtype=torch.float32)
            self.tied: dict[str, str] = {}
            """Parameters of the head that are copies of others on the first stage, and these: of ``lm_head.weight``, the table of tokens."""
            if self.head.table is not None and config.tie_word_embeddings:
                inner, tokens = self.model.get_submodule(self.head.table), self.model.get_input_embeddings()
                original = next(name for name, module in self.model.named_modules() if module is tokens)
                self.tied = {f"{self.head.table}.weight": f"{original}.weight"}
                inner.weight = nn.Parameter(torch.empty_like(inner.weight))
                self._padding = tokens.padding_idx
        self._aliases = _aliases(self.model)
        self.peft: Any = None if lora is None else adapted(self.model, lora, heads.adapters, source)
        """peft's model around ``model``, which has its adapters in it; None: all weights are trained."""
        self.frozen: dict[str, str] = {}
        """Digests of the weights that are not trained, once they are there; named as without adapters."""
        total = len(self.model.get_submodule(self.family.layers))
        self.layers = layers
        self.first, self.last = layers.start == 0, layers.stop == total
        self.seed, self.precision, self.recompute = seed, precision, recompute
        self.head_unit = total + 1
        self.prefixes = self.prefixes_of(layers)
        self.device = torch.device("cpu")
        self._modules: dict[str, Any] = {}
        """Those of the stage and the constant ones, by their paths in the whole model; once they are materialised."""

    def prefixes_of(self, layers: range) -> list[str]:
        """What the names of all begin with that a stage of ``layers`` has."""
        prefixes = [f"{self.family.layers}.{i}." for i in layers]
        if layers.start == 0:
            prefixes += [f"{name}." for name in self.family.embeddings]
        if layers.stop == self.head_unit - 1:
            prefixes += [*(f"{name}." for name in self.family.final), *self.head.prefixes]
        return prefixes

    def parameters_by_name(self) -> list[tuple[str, nn.Parameter]]:
        """What the stage trains, named as in the whole model and in the whole model's order."""
        return [(n, p) for n, p in self._parameters() if p.requires_grad]

    def frozen_by_name(self) -> list[tuple[str, nn.Parameter]]:
        """The stage's parameters that are not trained."""
        return [(n, p) for n, p in self._parameters() if not p.requires_grad and not is_dead(n)]

    def _parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        return ((n, p) for n, p in self.model.named_parameters() if n.startswith(tuple(self.prefixes)))

    def modules_by_name(self) -> list[tuple[str, nn.Module]]:
        """The stage's modules that own parameters or buffers directly, named as in the whole model."""
        return [(n, m) for n, m in self.model.named_modules() if f"{n}.".startswith(tuple(self.prefixes))]

    def initialise(self, name: str, module: nn.Module) -> None:
        """Give ``module`` (materialised) its random weights: the family's own rule, or peft's for an adapter.

        Seeded by name, so the cut does not matter, and nor do adapters beside it.
        """
        if name.endswith(f".lora_A.{ADAPTER}"):
            reached = name.removesuffix(f".lora_A.{ADAPTER}")
            reseed(derive_seed(self.seed, f"lora:{reached}"), torch.device("cpu"))
            self.model.get_submodule(reached).reset_lora_parameters(ADAPTER, True)
            return
        if name.endswith(f".lora_B.{ADAPTER}"):
            nn.init.zeros_(module.weight)  # type: ignore[arg-type]
            return
        reseed(derive_seed(self.seed, f"weights:{plain_name(name)}"), torch.device("cpu"))
        self.model._init_weights(module)
        if (original := self.tied.get(f"{plain_name(name)}.weight")) is not None:
            # The values of what it is a copy of.
            table = nn.Embedding(*module.weight.shape, padding_idx=self._padding)  # type: ignore[misc]
            self.initialise(original.rpartition(".")[0], table)
            module.weight.copy_(table.weight)  # type: ignore[operator]
        if plain_name(name).endswith(self.family.drawn):
            self.model._init_weights(self.model.get_submodule(plain_name(name).rpartition(".")[0]))

    def rename(self) -> None:
        """Have parameters that were replaced replaced under their other names too."""
        for alias, name in self._aliases.items():
            module, _, key = alias.rpartition(".")
            setattr(self.model.get_submodule(module), key, self.model.get_parameter(name))

    def materialise(self, device: torch.device) -> None:
        """Drop what other stages hold and refill the constant buffers, which a build without memory leaves empty."""
        self.device = device
        self.rename()
        for name, module in self.modules_by_name():
            for key, buffer in list(module.named_buffers(recurse=False)):
                if key == "position_ids":
                    value = torch.arange(buffer.shape[-1]).expand(buffer.shape)
                elif key == "token_type_ids":
                    value = torch.zeros(buffer.shape, dtype=buffer.dtype)
                else:
                    raise RuntimeError(
                        f"buffer {name}.{key} of {type(module).__name__} is not known: its value cannot be rebuilt"
                    )
                module.register_buffer(key, value.to(device), persistent=False)
        for name in self.family.constant:
            parent, _, key = name.rpartition(".")
            # With memory, and on the CPU first: so it is the same on every device.
            made = type(self.model.get_submodule(name))(self.config).to(device)
            setattr(self.model.get_submodule(parent), key, made)
        keep = tuple(self.prefixes)
        for name, module in list(self.model.named_modules()):
            for key, child in list(module.named_children()):
                path = f"{name}.{key}." if name else f"{key}."
                elsewhere = not any(path.startswith(k) or k.startswith(path) for k in keep)
                if any(True for _ in child.parameters()) and (elsewhere or is_dead(path)):
                    setattr(module, key, nn.Identity())
        if self.first and device.type == "cpu":
            with_table(self.model)
        self._modules = dict(self.model.named_modules())

    def __call__(self, inputs: Inputs, hidden: Tensor | None, place: Place | None) -> Tensor:
        """Hidden states ``[b, t, h]`` of the stage before (None for the first) → those of this one, or the head's output of the last.

        ``place`` seeds dropout; None when the model is in eval mode.
        """
        with autocast(self.precision, self.device):
            if self.first:
                self._reseed(place, 0)
                hidden = self.family.embed(self._modules, inputs)
            assert hidden is not None
            arguments = self.family.arguments(self._modules, self.config, hidden, inputs)
            for index in self.layers:
                if self.recompute and place is not None:
                    hidden = checkpoint(
                        self._layer, index, hidden, arguments, place, use_reentrant=False, preserve_rng_state=False
                    )
                else:
                    hidden = self._layer(index, hidden, arguments, place)
            if not self.last:
                return hidden
            self._reseed(place, self.head_unit)
            for name in self.family.final:
                hidden = self._modules[name](hidden)
            return self.head.compute(self.model, hidden, inputs).float()

    def _layer(self, index: int, hidden: Tensor, arguments: Arguments, place: Place | None) -> Tensor:
        self._reseed(place, index + 1)
        output: Tensor = self._modules[f"{self.family.layers}.{index}"](hidden, **arguments(index))
        return output

    def _reseed(self, place: Place | None, unit: int) -> None:
        if place is not None:
            reseed(dropout_seed(self.seed, place.step, place.micro_batch, unit), self.device)

    def blank(self, inputs: Inputs) -> Tensor | None:
        """Zeros in the place of the hidden states of the stage before, ``[b, t, h]``."""
        return torch.zeros(*inputs.input_ids.shape, self.config.hidden_size, device=self.device, requires_grad=True)

    def set_training(self, training: bool) -> None:
        """Dropout on (training) or off (evaluation)."""
        self.model.train(training)


def _aliases(model: nn.Module) -> dict[str, str]:
    """Further names of parameters that have several, with the first: ``cls.predictions.decoder.bias``, of ``cls.predictions.bias``."""
    first = {parameter: name for name, parameter in model.named_parameters()}
    return {name: first[p] for name, p in model.named_parameters(remove_duplicate=False) if name != first[p]}
