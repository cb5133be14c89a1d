"""What stands on the layers: the part of a model that its task decides."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor, nn

    from lmj_trainer.model.inputs import Inputs


@dataclass(frozen=True)
class Head:
    """That of one family."""

    modules: tuple[str, ...]
    """Its modules in the model. Their weights may be missing from a pretrained file: then they start at random."""
    compute: Callable[[nn.Module, Tensor, Inputs], Tensor]
    """``(model, hidden [b, t, h], inputs) -> output``: of a classifier, logits ``[b, labels]`` or ``[b, t, labels]``."""
    table: str | None = None
    """Its module that compares with a table of tokens, which may be the one that the embeddings look tokens up in; None: there is none."""

    @property
    def prefixes(self) -> tuple[str, ...]:
        """What the names of its parameters begin with."""
        return tuple(f"{module}." for module in self.modules)


@dataclass(frozen=True)
class Heads:
    """A task's head in each family."""

    auto: str
    """The class of transformers that makes the model: ``AutoModelForSequenceClassification``."""
    adapters: str
    """peft's ``TaskType``, which decides what is trained beside adapters."""
    problem_type: str | None
    """What transformers is to compute as loss, for others who train the saved model; None: its own choice."""
    dense: int
    """Layers as wide as the model before the last one, which gives labels."""
    by_family: Mapping[str, Head]
    """By ``model_type``."""
    vocabulary: bool = False
    """Whether there is an output for each token of the vocabulary, and none for labels."""

    def made(self, architecture: str) -> bool:
        """Whether a class of transformers of this name is of the task: ``BertForSequenceClassification``."""
        return architecture.endswith(self.auto.removeprefix("AutoModel")) or (
            self.vocabulary and "gpt2" in self.by_family and architecture == "GPT2LMHeadModel"
        )
