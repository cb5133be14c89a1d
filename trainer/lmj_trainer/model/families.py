"""The families of models that can be cut into stages: where their parts are.

A model is a row of *units*: unit 0 the embeddings, units 1..L the encoder layers, unit L+1 the head, which is its task's. Only names
differ between families; the modules themselves are those of ``transformers``.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    """Module paths of one family, in a model with a head."""

    base: str
    """Attribute of the encoder model; files of the bare encoder lack it as a prefix."""
    embeddings: tuple[str, ...]
    """Modules of unit 0, applied in order; a missing one is skipped (ELECTRA's projection)."""
    layers: str
    """The ModuleList of encoder layers."""


FAMILIES: dict[str, Family] = {
    "bert": Family("bert", ("bert.embeddings",), "bert.encoder.layer"),
    "distilbert": Family("distilbert", ("distilbert.embeddings",), "distilbert.transformer.layer"),
    "roberta": Family("roberta", ("roberta.embeddings",), "roberta.encoder.layer"),
    "electra": Family("electra", ("electra.embeddings", "electra.embeddings_project"), "electra.encoder.layer"),
}
