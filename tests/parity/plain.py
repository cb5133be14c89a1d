"""The same training as a plain loop in one process: a ``transformers`` model, ``torch.optim.AdamW``, ``clip_grad_norm_``. No engine.

It shares three facts with the engine, by their definition: which rows make a micro-batch, the seed of dropout in each unit, and which tokens are
hidden. Run as a
program, so that threads and environment are its own: ``plain.py JOB.json OUT.safetensors LOSSES.json``.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from lmj_api.layout import Layout
from lmj_api.spec import LiveMigrationJob, Optimizer, Precision, Task
from lmj_trainer.data.batch import Batch
from lmj_trainer.data.masking import Masking
from lmj_trainer.data.order import epoch_order, grouped, step_rows, total_steps
from lmj_trainer.dataset.prepared import prepare
from lmj_trainer.model.families.registry import FAMILIES
from lmj_trainer.model.randomness import derive_seed, dropout_seed

KINDS = {
    Task.SEQUENCE_CLASSIFICATION: AutoModelForSequenceClassification,
    Task.TOKEN_CLASSIFICATION: AutoModelForTokenClassification,
    Task.CAUSAL_LM: AutoModelForCausalLM,
    Task.MASKED_LM: AutoModelForMaskedLM,
    Task.MULTI_LABEL_CLASSIFICATION: AutoModelForSequenceClassification,
    Task.QUESTION_ANSWERING: AutoModelForQuestionAnswering,
}
NORM = re.compile(r"LayerNorm|layer_?norm|\bnorm\b|\bln_")


def padded(split, rows, pad):
    items = [split.row(int(i))[0] for i in rows]
    width = -(-max(map(len, items)) // 8) * 8
    width = min(width, split.max_length)
    ids = torch.full((len(rows), width), pad)
    mask = torch.zeros((len(rows), width), dtype=torch.long)
    of_tokens = torch.full((len(rows), width), -100)
    for i, tokens in enumerate(items):
        ids[i, : len(tokens)] = torch.from_numpy(np.asarray(tokens, dtype=np.int64))
        mask[i, : len(tokens)] = 1
        if len(split.labels) != len(split):
            begin = split.offsets[rows[i]]
            of_tokens[i, : len(tokens)] = torch.from_numpy(np.asarray(split.labels[begin : begin + len(tokens)]))
    labels = torch.from_numpy(np.asarray(split.labels[rows])) if len(split.labels) == len(split) else of_tokens
    return ids, mask, labels


def seed_units(base, seeds):
    places = {"encoder": "layer", "transformer": "layer", "": "layers", ".": "h"}
    layers = next(
        getattr(inner, name) for path, name in places.items() if hasattr(inner := getattr(base, path.strip("."), base), name)
    )
    base.get_input_embeddings().register_forward_pre_hook(seeds(0))
    for i, layer in enumerate(layers):
        layer.register_forward_pre_hook(seeds(i + 1))
    # The head is whatever follows the last layer: its first random draw is after this hook in every family.
    layers[-1].register_forward_hook(seeds(len(layers) + 1))


def main(job_path: str, weights: str, losses_path: str) -> None:
    torch.set_num_threads(1)
    job = LiveMigrationJob.model_validate_json(Path(job_path).read_bytes())
    spec, training = job.spec, job.spec.training
    prepared = prepare(spec, Layout.of(spec).cache, print)
    split = prepared.splits["train"]
    steps = total_steps(len(split), training)
    language, several = spec.model.task is Task.CAUSAL_LM, spec.model.task is Task.MULTI_LABEL_CLASSIFICATION
    asked, hides = spec.model.task is Task.QUESTION_ANSWERING, spec.model.task is Task.MASKED_LM
    model = KINDS[spec.model.task].from_pretrained(spec.model.source, dtype=torch.float32)
    whole = model
    if (lora := spec.model.lora) is not None:
        from peft import LoraConfig, TaskType, get_peft_model
        from peft.tuners.lora import LoraLayer

        kind = TaskType.CAUSAL_LM if language else TaskType.FEATURE_EXTRACTION if hides else TaskType.SEQ_CLS
        config = {"r": lora.r, "lora_alpha": lora.alpha, "lora_dropout": lora.dropout, "target_modules": lora.target_modules}
        whole = get_peft_model(model, LoraConfig(task_type=kind, **config))
        # peft's own first values, each adapter's drawn by itself.
        for name, module in model.named_modules():
            if isinstance(module, LoraLayer):
                torch.manual_seed(derive_seed(training.seed, f"lora:{name}"))
                module.reset_lora_parameters("default", True)
    ends = []
    if (language or hides) and lora is None and model.config.tie_word_embeddings:
        # One table at both ends: each end's part of its gradient is added up by itself.
        output = model.get_output_embeddings()
        ends = [model.get_input_embeddings().weight, torch.nn.Parameter(output.weight.detach().clone())]
        output.weight = ends[1]
    whole.train()

    place = [0, 0]

    def seeds(unit):
        def hook(*_):
            torch.manual_seed(dropout_seed(training.seed, place[0], place[1], unit))

        return hook

    if model.config.model_type not in FAMILIES:
        model.register_forward_pre_hook(seeds(0))
    else:
        seed_units(model.base_model, seeds)

    plain = [p for n, p in model.named_parameters() if n.endswith(".bias") or NORM.search(n)]
    decayed = [p for p in model.parameters() if not any(p is q for q in plain)]
    groups = [{"params": decayed, "weight_decay": training.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    if training.optimizer is Optimizer.SGD:
        optimizer = torch.optim.SGD(groups, lr=training.learning_rate, momentum=training.momentum, fused=True)
    else:
        betas = (training.adam_beta1, training.adam_beta2)
        optimizer = torch.optim.AdamW(groups, lr=training.learning_rate, betas=betas, eps=training.adam_epsilon, fused=True)
    warmup = training.warmup_steps
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda k: k / max(1, warmup) if k < warmup else max(0.0, (steps - k) / max(1, steps - warmup))
    )
    dtype = {Precision.BFLOAT16: torch.bfloat16, Precision.FLOAT16: torch.float16}.get(training.precision)
    scaler = torch.amp.GradScaler("cpu", enabled=training.precision is Precision.FLOAT16)

    def computed(**inputs):
        with torch.autocast("cpu", dtype, enabled=dtype is not None, cache_enabled=False):
            return model(**inputs)

    count_of_parts = spec.pipeline.micro_batches * training.gradient_accumulation_steps
    losses = []
    for step in range(steps):
        rows = step_rows(len(split), training, step)
        if training.group_by_length:
            size = len(rows)
            epoch, number = divmod(step, len(split) // size)
            order = epoch_order(training.seed, epoch, len(split))
            rows = grouped(order, np.diff(split.offsets), size, training.seed, epoch)[number]
        total = 0.0
        # Equal micro-batches, of which the first goes in halves.
        first, *others = np.split(rows, count_of_parts)
        parts = [padded(split, part, prepared.pad_id) for part in (first[: len(first) // 2], first[len(first) // 2 :], *others)]
        if hides:
            places = [(step, place) for place in range(len(rows))]
            masking = Masking(training.seed, spec.dataset.masked_part, prepared.mask_id, prepared.vocab_size)
            for i, (ids, mask, labels) in enumerate(parts):
                whole_batch = Batch(ids.numpy(), mask.numpy(), None, labels.numpy())
                batch = masking.hidden(whole_batch, [places.pop(0) for _ in ids])
                parts[i] = torch.from_numpy(batch.input_ids), mask, torch.from_numpy(batch.labels)
        if language:
            # Each token is to be told from those before it.
            parts = [(ids, mask, torch.nn.functional.pad(labels, (0, 1), value=-100)[:, 1:]) for ids, mask, labels in parts]
        counts = [len(labels) if several or asked else int((labels != -100).sum()) for _, _, labels in parts]
        for i, ((ids, mask, labels), count) in enumerate(zip(parts, counts, strict=True)):
            place[:] = step, i
            if asked:
                # The text, and the token behind it, are of the second kind.
                places = torch.arange(ids.shape[1])
                types = ((places >= labels[:, 2:3]) & (places <= labels[:, 3:4])).long()
                given = {"token_type_ids": types, "start_positions": labels[:, 0], "end_positions": labels[:, 1]}
                loss = computed(input_ids=ids, attention_mask=mask, **given).loss
            elif several:
                logits = computed(input_ids=ids, attention_mask=mask).logits.float()
                loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels.float())
            else:
                logits = computed(input_ids=ids, attention_mask=mask).logits.float()
                loss = torch.nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten())
            loss = loss * (count / sum(counts))
            scaler.scale(loss).backward()
            total += loss.item()
        for unused in (p for p in model.parameters() if p.requires_grad and p.grad is None):
            # BERT's cls.predictions.bias, where the decoder has its own: the engine counts its norm of 0 among the others.
            unused.grad = torch.zeros_like(unused)
        for table in ends[1:]:
            ends[0].grad += table.grad
            table.grad = None
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), training.max_grad_norm, foreach=False)
        scaler.step(optimizer)
        scaler.update()
        for table in ends[1:]:
            table.data.copy_(ends[0].data)
        schedule.step()
        optimizer.zero_grad()
        losses.append(total)
    if spec.model.lora is not None:
        adapter = Path(weights).parents[1] / "adapter"
        whole.save_pretrained(adapter, save_embedding_layers=False)
        model = whole.merge_and_unload()
    saved = [(n, p) for n, p in model.named_parameters() if not any(p is table for table in ends[1:])]
    save_file({n: p.detach().clone() for n, p in saved}, weights)
    Path(losses_path).write_text(json.dumps(losses))


if __name__ == "__main__":
    main(*sys.argv[1:])
