"""How many weights a model of a known family has, and how many of them a stage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lmj_api.spec import Architecture
from lmj_trainer.model.config import layer_count
from lmj_trainer.model.families.registry import FAMILIES

if TYPE_CHECKING:
    from lmj_trainer.model.head import Heads


@dataclass(frozen=True)
class Sizes:
    """Weights of the parts that a model is cut into. Small vectors of some families are left out."""

    first: int
    """Before the first layer: the embeddings."""
    layer: int
    layers: int
    """The number of layers."""
    last: int
    """After the last layer: the head."""
    tied: int = 0
    """Of ``first``, those that the head uses too: a stage of its own holds them once more."""

    @property
    def total(self) -> int:
        """Of the whole model."""
        return self.first + self.layers * self.layer + self.last

    def of(self, layers: range) -> int:
        """Of the stage that has these ``layers``."""
        first, last = layers.start == 0, layers.stop == self.layers
        return len(layers) * self.layer + self.first * first + self.last * last + self.tied * (last and not first)


def sizes_of(config: Any, heads: Heads) -> Sizes:
    """Those of the model with one of ``heads``. ``config``: of a family that can be cut."""
    return (_decoder if FAMILIES[config.model_type].causal else _encoder)(config, heads)


def _encoder(config: Any, heads: Heads) -> Sizes:
    hidden, vocabulary = int(config.hidden_size), int(config.vocab_size)
    inner = int(config.hidden_dim if config.model_type == Architecture.DISTILBERT else config.intermediate_size)
    embedded = int(getattr(config, "embedding_size", hidden))
    types = int(getattr(config, "type_vocab_size", 0) or 0)
    embeddings = (vocabulary + int(config.max_position_embeddings) + types + 2) * embedded
    projection = (embedded + 1) * hidden if embedded != hidden else 0
    layer = 4 * (hidden + 1) * hidden + (hidden + 1) * inner + (inner + 1) * hidden + 4 * hidden
    tied = 0
    if heads.vocabulary:
        # A layer as wide as a token's row of the table, its norm, and a bias for each token.
        head = (hidden + 1) * embedded + 2 * embedded + vocabulary
        tied, table = _table(config, vocabulary * embedded)
        head += table
    else:
        head = heads.dense * (hidden + 1) * hidden + (hidden + 1) * int(config.num_labels)
    return Sizes(embeddings + projection, layer, layer_count(config), head, tied)


def _decoder(config: Any, heads: Heads) -> Sizes:
    hidden, vocabulary = int(config.hidden_size), int(config.vocab_size)
    tied, outputs = _table(config, vocabulary * hidden) if heads.vocabulary else (0, int(config.num_labels) * hidden)
    if config.model_type == Architecture.GPT2:
        inner = int(config.n_inner or 4 * hidden)
        layer = 4 * (hidden + 1) * hidden + (hidden + 1) * inner + (inner + 1) * hidden + 4 * hidden
        return Sizes((vocabulary + int(config.n_positions)) * hidden, layer, layer_count(config), 2 * hidden + outputs, tied)
    inner, count = int(config.intermediate_size), int(config.num_attention_heads)
    each = int(getattr(config, "head_dim", None) or hidden // count)
    queries, keys = count * each, int(config.num_key_value_heads) * each
    biases = queries + 2 * keys if config.model_type == Architecture.QWEN2 else 0
    layer = 2 * hidden * (queries + keys) + biases + 3 * hidden * inner + 2 * hidden
    return Sizes(vocabulary * hidden, layer, layer_count(config), hidden + outputs, tied)


def _table(config: Any, weights: int) -> tuple[int, int]:
    """A head's table of ``weights`` for the vocabulary: as one that the embeddings have too, and as one of its own."""
    return (weights, 0) if config.tie_word_embeddings else (0, weights)
