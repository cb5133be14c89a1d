"""Small stages of a small BERT, whose word embeddings are larger than a chunk of the optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from lmj_api.spec import LiveMigrationJob, Model
from lmj_trainer.follow import source as source_module
from lmj_trainer.follow import stream as stream_module
from lmj_trainer.model.stage import Stage
from lmj_trainer.state.stage_state import StageState
from lmj_trainer.state.weights import initialise
from lmj_trainer.task.sequence_classification.heads import HEADS

from .pair import Pair
from .small_job import small_job

torch.set_num_threads(1)

SIZES: dict[str, dict[str, Any]] = {
    "bert": {},
    "roberta": {"max_position_embeddings": 41},
    "electra": {"embedding_size": 40},
    "distilbert": {"dim": 48, "n_layers": 3, "n_heads": 2, "hidden_dim": 64},
    "gpt2": {"n_inner": 64, "eos_token_id": 3},
    "llama": {"num_key_value_heads": 1, "eos_token_id": 3},
    "mistral": {"num_key_value_heads": 1, "sliding_window": 8, "eos_token_id": 3},
    "qwen2": {
        "num_key_value_heads": 1,
        "sliding_window": 8,
        "use_sliding_window": True,
        "max_window_layers": 1,
        "eos_token_id": 3,
    },
}
RANDOM = Model.model_validate({"scratch": {}})


def small_config(family: str = "bert", **changes: Any) -> Any:
    sizes: dict[str, Any] = {"vocab_size": 3001, "pad_token_id": 0, "num_labels": 2, "max_position_embeddings": 40}
    if family != "distilbert":
        sizes |= {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 64}
    return AutoConfig.for_model(family, **{**sizes, **SIZES[family], **changes})


def small_state(
    config: Any, layers: range, seed: int = 3, model: Model | None = RANDOM, threads: int = 1
) -> tuple[Stage, StageState]:
    """A stage and its state on the CPU, with the weights of ``model`` (None: without any)."""
    stage = Stage(config, HEADS, layers, seed=seed)
    state = StageState(stage, torch.device("cpu"), threads=threads)
    stage.set_training(True)
    if model is not None:
        initialise(stage, state, model)
    return stage, state


@pytest.fixture
def make_config() -> Callable[..., Any]:
    return small_config


@pytest.fixture
def make_state() -> Callable[..., tuple[Stage, StageState]]:
    return small_state


@pytest.fixture
def job(tmp_path: Path) -> LiveMigrationJob:
    return small_job(tmp_path)


@pytest.fixture
def pair(make_state: Callable[..., Any], make_config: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    # A copy of many parts, of which few are under way at once, takes several steps.
    monkeypatch.setattr(source_module, "_PART", 1 << 10)
    monkeypatch.setattr(source_module, "_COPY_PART", 1 << 10)
    monkeypatch.setattr(stream_module, "LEAST_COPY_WINDOW", 1 << 14)
    for module in (source_module, stream_module):
        monkeypatch.setattr(module, "WINDOW", 1 << 14)
    made = Pair(make_state, make_config())
    yield made
    made.close()
