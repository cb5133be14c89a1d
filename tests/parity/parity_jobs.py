"""Small jobs: a real ``save_pretrained`` model with random weights, and data that it can learn from."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForSequenceClassification, BertTokenizerFast

from lmj_api.spec import LiveMigrationJob

WORDS = [
    "good",
    "great",
    "fine",
    "nice",
    "bad",
    "poor",
    "awful",
    "dull",
    "the",
    "a",
    "movie",
    "plot",
    "was",
    "is",
    "and",
    "but",
    "not",
    "very",
]


def make_data(path: Path, rows: int = 400, seed: int = 0) -> Path:
    """A CSV of texts of 3 to 20 words; the label says whether more good words than bad ones are in it."""
    pick = random.Random(seed)
    lines = ["text,label"]
    for _ in range(rows):
        words = pick.choices(WORDS, k=pick.randint(3, 20))
        balance = sum(w in WORDS[:4] for w in words) - sum(w in WORDS[4:8] for w in words)
        lines.append(f"{' '.join(words)},{'pos' if balance > 0 else 'neg'}")
    path.write_text("\n".join(lines) + "\n")
    return path


def make_words(path: Path, rows: int = 400, seed: int = 0) -> Path:
    """A JSON lines file of lists of 3 to 20 words; the label of each says whether the word before it is a good one."""
    pick = random.Random(seed)
    lines = []
    for _ in range(rows):
        words = pick.choices(WORDS, k=pick.randint(3, 20))
        labels = ["pos" if before in WORDS[:4] else "neg" for before in ["the", *words[:-1]]]
        lines.append(json.dumps({"text": words, "label": labels}))
    path.write_text("\n".join(lines) + "\n")
    return path


def make_questions(path: Path, rows: int = 200, seed: int = 0) -> Path:
    """A JSON lines file of questions and texts of 10 to 40 words; the answer is the word after a good one, where there is one."""
    pick = random.Random(seed)
    lines = []
    for _ in range(rows):
        words = pick.choices(WORDS, k=pick.randint(10, 40))
        places = [place for place, before in enumerate(words[:-1], 1) if before in WORDS[:1]]
        answer = {"text": [words[places[0]]], "answer_start": [len(" ".join(words[: places[0]])) + 1]} if places else None
        lines.append(json.dumps({"question": "which one", "text": " ".join(words), "answers": answer}))
    path.write_text("\n".join(lines) + "\n")
    return path


def make_model(
    folder: Path,
    family: str,
    layers: int = 3,
    seed: int = 1,
    dropout: float = 0.1,
    kind: Any = AutoModelForSequenceClassification,
    **more: Any,
) -> Path:
    """A model of ``family`` with random weights, saved by ``save_pretrained`` with its tokenizer. ``more``: of its configuration."""
    vocabulary = folder.parent / f"{folder.name}-vocab.txt"
    vocabulary.parent.mkdir(parents=True, exist_ok=True)
    vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]) + "\n")
    tokenizer = BertTokenizerFast(vocab=str(vocabulary))
    sizes: dict[str, Any] = {"vocab_size": len(tokenizer), "pad_token_id": 0, "num_labels": 2}
    sizes |= {"id2label": {0: "neg", 1: "pos"}, "label2id": {"neg": 0, "pos": 1}}
    if family == "distilbert":
        sizes |= {"dim": 32, "n_layers": layers, "n_heads": 2, "hidden_dim": 64, "max_position_embeddings": 40}
        sizes |= {"dropout": dropout, "attention_dropout": dropout, "seq_classif_dropout": dropout}
    elif family == "gpt2":
        sizes |= {"n_embd": 32, "n_layer": layers, "n_head": 2, "n_inner": 64, "n_positions": 40, "eos_token_id": 3}
        sizes |= {"embd_pdrop": dropout, "attn_pdrop": dropout, "resid_pdrop": dropout}
    elif family in ("llama", "mistral", "qwen2"):
        sizes |= {"hidden_size": 32, "num_hidden_layers": layers, "num_attention_heads": 4, "num_key_value_heads": 2}
        sizes |= {"intermediate_size": 64, "max_position_embeddings": 40, "attention_dropout": dropout, "eos_token_id": 3}
        sizes["vocab_size"] += 1  # Qwen2's tokenizer adds one of its own
        # Each row sees less than all of itself.
        sizes |= {"sliding_window": 8} if family == "mistral" else {}
        sizes |= {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 1} if family == "qwen2" else {}
    else:
        sizes |= {"hidden_size": 32, "num_hidden_layers": layers, "num_attention_heads": 2, "intermediate_size": 64}
        sizes |= {"max_position_embeddings": 40, "hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    if family == "electra":
        sizes |= {"embedding_size": 16}
    torch.manual_seed(seed)
    model = kind.from_config(AutoConfig.for_model(family, **{**sizes, **more}))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def make_job(
    output: Path, data: Path, model: Path, stages: int, /, lora: dict[str, Any] | None = None, **changes: Any
) -> LiveMigrationJob:
    """30 steps with dropout, clipping that clips, warm-up and accumulation on. ``changes``: parts of the spec, merged one level deep."""
    spec: dict[str, Any] = {
        "pipeline": {"stages": stages, "microBatches": 4},
        "model": {"source": str(model), "lora": lora},
        "dataset": {"source": str(data), "text": ["text"], "label": "label", "maxLength": 32},
        "training": {
            "epochs": 50,
            "maxSteps": 30,
            "batchSize": 16,
            "gradientAccumulationSteps": 2,
            "learningRate": 1e-3,
            "warmupSteps": 5,
            "maxGradNorm": 0.5,
            "weightDecay": 0.01,
            "seed": 7,
        },
        "checkpoint": {"everySteps": 7},
        "output": {"path": str(output)},
    }
    for key, value in changes.items():
        spec[key] = spec.get(key, {}) | value
    return LiveMigrationJob.model_validate({"metadata": {"name": "parity"}, "spec": spec})
