"""What is to be known of a family of models, so that its layers can be cut into stages.

A model is a row of *units*: unit 0 the embeddings, units 1..L the layers, unit L+1 the head, which is its task's. The modules themselves
are those of ``transformers``; a family says where they are, and does between them what the model's own ``forward`` does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PretrainedConfig

    from lmj_trainer.model.inputs import Inputs

Arguments = Callable[[int], Mapping[str, Any]]
"""What a layer takes beside hidden states, by its number."""


@dataclass(frozen=True)
class Family:
    """Module paths of one family, in a model with a head."""

    base: str
    """Attribute of the model without a head; files of that alone lack it as a prefix."""
    embeddings: tuple[str, ...]
    """Modules of unit 0; one that a model lacks is skipped (ELECTRA's projection)."""
    layers: str
    """The ModuleList of layers."""
    linear: tuple[str, ...]
    """The linear modules of a layer: those that can have an adapter."""
    adapted: tuple[str, ...]
    """Those of them that get one where nothing else is said: as peft has it."""
    embed: Callable[[Mapping[str, Any], Inputs], Tensor]
    """``(modules of the model by path, inputs) -> hidden [b, t, h]``."""
    arguments: Callable[[Mapping[str, Any], PretrainedConfig, Tensor, Inputs], Arguments]
    """``(modules, configuration, hidden, inputs)`` of a micro-batch, on every stage."""
    final: tuple[str, ...] = ()
    """Modules between the last layer and the head, which the last stage has; applied in order."""
    drawn: tuple[str, ...] = ()
    """Ends of names of modules whose first weights the module around them draws."""
    causal: bool = False
    """A token sees only those before it."""
    constant: tuple[str, ...] = ()
    """Modules without parameters that every stage has. They are made anew from the configuration: what they hold is a function of that."""
