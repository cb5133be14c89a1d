"""The configuration of the model: read from its source or made from scratch. Imports transformers only when called."""

import json
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

from lmj_api.nearest import did_you_mean
from lmj_api.spec import Architecture, Model, Scratch
from lmj_trainer.errors import UserError
from lmj_trainer.hub import hub_is_reachable, is_hub_id, judged
from lmj_trainer.model.families.registry import FAMILIES
from lmj_trainer.model.head import Heads
from lmj_trainer.weight_files import not_a_folder
from lmj_trainer.wording import one_line

SUPPORTED = tuple(architecture.value for architecture in Architecture)
"""Values of ``model_type`` that can be cut into stages."""

_AFTER_PADDING = frozenset(
    {"roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "roberta-prelayernorm", "data2vec-text", "longformer"}
)
"""Models whose positions are counted from the padding token's id + 1."""
_POSITIONS = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len")
_ANY_LENGTH = 1 << 20
"""Tokens that a model reads whose configuration names no limit."""

CONVOLVED = frozenset({"gpt2", "openai-gpt", "decision_transformer", "imagegpt"})
"""Models whose layers have a class of their own (``Conv1D``) in the place of linear ones."""

_DROPOUTS = (
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "classifier_dropout",
    "dropout",
    "attention_dropout",
    "seq_classif_dropout",
    "embd_pdrop",
    "resid_pdrop",
    "attn_pdrop",
)
"""Every dropout of the supported families."""


def load_config(model: Model, labels: Sequence[str], vocab_size: int) -> Any:
    """The ``PretrainedConfig`` of ``model`` with a head for ``labels``; ``vocab_size`` is the tokenizer's.

    UserError, one line: there is no such model, its family is not supported, or its tokenizer knows more tokens than it does.
    """
    if model.scratch is not None:
        config = scratch_config(model.scratch, vocab_size)
    else:
        config = read_config(str(model.source), model.revision)
        if getattr(config, "quantization_config", None) is not None:
            raise UserError(
                f"model {model.source} has quantized weights, which cannot be trained: name the model that it was made from"
            )
        known = getattr(config, "vocab_size", None)
        if known is not None and vocab_size > known:
            raise UserError(f"model {model.source} knows {known} tokens, its tokenizer {vocab_size}: they don't belong together")
        if model.dropout is not None:
            for name in _DROPOUTS:
                if hasattr(config, name):
                    setattr(config, name, model.dropout)
    if labels:
        config.num_labels = len(labels)
        config.id2label = dict(enumerate(labels))
        config.label2id = {label: i for i, label in enumerate(labels)}
    return config


def read_config(source: str, revision: str | None) -> Any:
    """The configuration of the folder or hub id ``source``, a new object each time. UserError as :func:`load_config`."""
    from copy import deepcopy

    return deepcopy(_read(source, revision))


@cache
def _read(source: str, revision: str | None) -> Any:
    folder = Path(source)
    reachable = True
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise UserError(f"model {source} is a folder without a config.json: give one that save_pretrained wrote")
    elif folder.is_file():
        raise UserError(f"model {source} {not_a_folder(folder.name)}")
    elif folder.is_absolute() or not is_hub_id(source):
        near = did_you_mean(folder.name, sorted(p.name for p in folder.parent.iterdir())) if folder.parent.is_dir() else ""
        raise UserError(f"no model {source}: there is no such folder{near}")
    else:
        reachable = hub_is_reachable()
    from transformers import AutoConfig, PretrainedConfig

    try:
        settings, _ = PretrainedConfig.get_config_dict(source, revision=revision)
        kind = settings.get("model_type")
        if kind not in SUPPORTED and kind not in _known():
            raise UserError(
                f"model {source} is of type {kind!r}, which transformers does not have: use one of {', '.join(SUPPORTED)}, or another of its"
            )
        return AutoConfig.from_pretrained(source, revision=revision, trust_remote_code=False)
    except (OSError, ValueError, TypeError, KeyError, RuntimeError) as error:
        if folder.is_dir():
            raise UserError(f"model {source}: its config.json cannot be read: {one_line(error)}") from error
        what = f"no model {source}" + (f" of revision {revision}" if revision else "")
        raise judged(error, what, reachable) from error


def _known() -> Collection[str]:
    """Every ``model_type`` that transformers has."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    return CONFIG_MAPPING_NAMES.keys()  # type: ignore[no-any-return]


def has_class(heads: Heads, model_type: str) -> bool:
    """Whether transformers has a class of a model of ``model_type`` with a head of ``heads``."""
    from importlib import import_module

    # By its own name: where torch is not, its package has a stand-in for it, and only names are wanted here.
    modeling_auto = import_module("transformers.models.auto.modeling_auto")
    names: Mapping[str, object] = getattr(modeling_auto, f"MODEL_FOR_{_NAMES[heads.auto]}_MAPPING_NAMES")
    return model_type in names


_NAMES = {
    "AutoModelForSequenceClassification": "SEQUENCE_CLASSIFICATION",
    "AutoModelForTokenClassification": "TOKEN_CLASSIFICATION",
    "AutoModelForCausalLM": "CAUSAL_LM",
    "AutoModelForMaskedLM": "MASKED_LM",
    "AutoModelForQuestionAnswering": "QUESTION_ANSWERING",
}
"""What transformers calls the list of a class's models."""


def scratch_config(scratch: Scratch, vocab_size: int) -> Any:
    """A new model's configuration. The tokenizer's padding token has id 0, ``[CLS]`` 2 and ``[SEP]`` 3."""
    if FAMILIES[scratch.architecture].causal:
        return _scratch_decoder(scratch, vocab_size)
    from transformers import BertConfig, DistilBertConfig, ElectraConfig, RobertaConfig

    spread = _spread(scratch)
    if scratch.architecture is Architecture.DISTILBERT:
        return DistilBertConfig(
            vocab_size=vocab_size,
            max_position_embeddings=scratch.max_positions,
            n_layers=scratch.layers,
            n_heads=scratch.heads,
            dim=scratch.hidden_size,
            hidden_dim=scratch.intermediate_size,
            dropout=scratch.dropout,
            attention_dropout=scratch.dropout,
            seq_classif_dropout=scratch.dropout,
            initializer_range=spread,
            pad_token_id=0,
        )
    common = {
        "vocab_size": vocab_size,
        "num_hidden_layers": scratch.layers,
        "hidden_size": scratch.hidden_size,
        "num_attention_heads": scratch.heads,
        "intermediate_size": scratch.intermediate_size,
        "max_position_embeddings": scratch.max_positions,
        "hidden_dropout_prob": scratch.dropout,
        "attention_probs_dropout_prob": scratch.dropout,
        "classifier_dropout": scratch.dropout,
        "initializer_range": spread,
        "pad_token_id": 0,
    }
    if scratch.architecture is Architecture.ELECTRA:
        return ElectraConfig(**common, embedding_size=scratch.hidden_size)
    if scratch.architecture is Architecture.ROBERTA:
        # Its positions are counted from the padding token's id + 1.
        positions = {"max_position_embeddings": scratch.max_positions + 1}
        return RobertaConfig(**{**common, **positions}, type_vocab_size=1, bos_token_id=2, eos_token_id=3)
    return BertConfig(**common)


def _spread(scratch: Scratch) -> float:
    """The deviation of first weights: BERT's 0.02 is for its width of 768. With it a narrow model starts with next to no signal, and may stay
    on the first plateau.
    """
    narrower: float = (768 / scratch.hidden_size) ** 0.5
    return 0.02 * narrower


def _scratch_decoder(scratch: Scratch, vocab_size: int) -> Any:
    from transformers import GPT2Config, LlamaConfig, MistralConfig, Qwen2Config

    common: dict[str, Any] = {
        "vocab_size": vocab_size,
        "initializer_range": _spread(scratch),
        "pad_token_id": 0,
        "bos_token_id": 2,
        "eos_token_id": 3,
        "classifier_dropout": scratch.dropout,
    }
    if scratch.architecture is Architecture.GPT2:
        return GPT2Config(
            **common,
            n_positions=scratch.max_positions,
            n_embd=scratch.hidden_size,
            n_layer=scratch.layers,
            n_head=scratch.heads,
            n_inner=scratch.intermediate_size,
            tie_word_embeddings=False,
            resid_pdrop=scratch.dropout,
            embd_pdrop=scratch.dropout,
            attn_pdrop=scratch.dropout,
        )
    kinds = {Architecture.LLAMA: LlamaConfig, Architecture.MISTRAL: MistralConfig, Architecture.QWEN2: Qwen2Config}
    return kinds[scratch.architecture](
        **common,
        max_position_embeddings=scratch.max_positions,
        hidden_size=scratch.hidden_size,
        intermediate_size=scratch.intermediate_size,
        num_hidden_layers=scratch.layers,
        num_attention_heads=scratch.heads,
        num_key_value_heads=scratch.heads,
        attention_dropout=scratch.dropout,
        sliding_window=None,
        tie_word_embeddings=False,
    )


def layer_count(config: Any) -> int:
    """Layers that can be cut into stages; 1: the model is of no family, and is one stage."""
    if config.model_type not in FAMILIES:
        return 1
    return int(config.num_hidden_layers)


def max_positions(config: Any) -> int:
    """Tokens of the longest sequence that the model reads."""
    most = next((value for name in _POSITIONS if isinstance(value := getattr(config, name, None), int)), _ANY_LENGTH)
    # Positions 0 to padding_idx stay unused.
    return most - int(config.pad_token_id) - 1 if config.model_type in _AFTER_PADDING else most


def stored_count(folder: Path) -> int | None:
    """Weights in the safetensors files in ``folder``; None: it has none that can be read."""
    total = 0
    try:
        for path in folder.glob("*.safetensors"):
            with path.open("rb") as file:  # no more is read, and no memory taken, than there is
                header = json.loads(file.read(min(int.from_bytes(file.read(8), "little"), path.stat().st_size)))
            total += sum(prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return total or None
