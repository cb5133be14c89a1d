"""The families of models that can be cut into stages: where their parts are and what their heads compute.

A model is a row of *units*: unit 0 the embeddings, units 1..L the encoder layers, unit L+1 the head. Only names and the head differ
between families; the modules themselves are those of ``transformers``.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Family:
    """Module paths of one family, in a ``...ForSequenceClassification`` model."""

    base: str
    """Attribute of the encoder model; files of the bare encoder lack it as a prefix."""
    embeddings: tuple[str, ...]
    """Modules of unit 0, applied in order; a missing one is skipped (ELECTRA's projection)."""
    layers: str
    """The ModuleList of encoder layers."""
    head: tuple[str, ...]
    """Modules of the head."""
    compute_head: Callable[[nn.Module, Tensor], Tensor]
    """``(model, hidden [b, t, h]) -> logits [b, labels]``."""
    fresh: tuple[str, ...]
    """Prefixes of parameters that a pretrained file may lack: they start at random."""


def _bert_head(model: nn.Module, hidden: Tensor) -> Tensor:
    return model.classifier(model.dropout(model.bert.pooler(hidden)))  # type: ignore[no-any-return,operator,union-attr]


def _class_head(model: nn.Module, hidden: Tensor) -> Tensor:
    return model.classifier(hidden)  # type: ignore[no-any-return,operator]


def _distilbert_head(model: nn.Module, hidden: Tensor) -> Tensor:
    pooled = torch.relu(model.pre_classifier(hidden[:, 0]))  # type: ignore[operator]
    return model.classifier(model.dropout(pooled))  # type: ignore[no-any-return,operator]


FAMILIES: dict[str, Family] = {
    "bert": Family(
        base="bert",
        embeddings=("bert.embeddings",),
        layers="bert.encoder.layer",
        head=("bert.pooler", "classifier"),
        compute_head=_bert_head,
        fresh=("bert.pooler.", "classifier."),
    ),
    "distilbert": Family(
        base="distilbert",
        embeddings=("distilbert.embeddings",),
        layers="distilbert.transformer.layer",
        head=("pre_classifier", "classifier"),
        compute_head=_distilbert_head,
        fresh=("pre_classifier.", "classifier."),
    ),
    "roberta": Family(
        base="roberta",
        embeddings=("roberta.embeddings",),
        layers="roberta.encoder.layer",
        head=("classifier",),
        compute_head=_class_head,
        fresh=("classifier.",),
    ),
    "electra": Family(
        base="electra",
        embeddings=("electra.embeddings", "electra.embeddings_project"),
        layers="electra.encoder.layer",
        head=("classifier",),
        compute_head=_class_head,
        fresh=("classifier.",),
    ),
}
