"""As ``plain.py``, of a job whose model and task are a class of the user's own: ``plain_own.py JOB.json OUT.safetensors LOSSES.json``.

The model is the class's, its units are called one after the other, each with the generator seeded as the engine seeds it.
"""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from lmj_api.layout import Layout
from lmj_api.spec import LiveMigrationJob
from lmj_trainer.data.order import step_rows, total_steps
from lmj_trainer.dataset.prepared import prepare
from lmj_trainer.model.randomness import derive_seed, dropout_seed


def main(job_path: str, weights: str, losses_path: str) -> None:
    torch.set_num_threads(1)
    spec = LiveMigrationJob.model_validate_json(Path(job_path).read_bytes()).spec
    training = spec.training
    table = prepare(spec, Layout.of(spec).cache, print).splits["train"]
    file, name = spec.model.python_file
    task = runpy.run_path(file)[name]()
    torch.manual_seed(derive_seed(training.seed, "model"))
    units = torch.nn.ModuleList(task.model())
    norms = [p for m in units.modules() if type(m).__name__.endswith("Norm") for p in m.parameters(recurse=False)]
    named = [(n, p) for n, p in units.named_parameters() if p.requires_grad]
    plain = [p for n, p in named if n.endswith(".bias") or any(p is q for q in norms)]
    decayed = [p for _, p in named if not any(p is q for q in plain)]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": training.weight_decay}, {"params": plain, "weight_decay": 0.0}],
        lr=training.learning_rate,
        betas=(training.adam_beta1, training.adam_beta2),
        eps=training.adam_epsilon,
        fused=True,
    )
    steps, warmup = total_steps(len(table), training), training.warmup_steps
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda k: k / max(1, warmup) if k < warmup else max(0.0, (steps - k) / max(1, steps - warmup))
    )
    count = spec.pipeline.micro_batches * training.gradient_accumulation_steps
    losses = []
    for step in range(steps):
        rows = step_rows(len(table), training, step)
        # Equal micro-batches, of which the first goes in halves.
        first, *others = np.split(rows, count)
        total = 0.0
        for i, part in enumerate([first[: len(first) // 2], first[len(first) // 2 :], *others]):
            hidden, targets = task.collate(table.rows(part))
            for index, unit in enumerate(units):
                torch.manual_seed(dropout_seed(training.seed, step, i, index))
                hidden = unit(hidden)
            loss = task.loss(hidden, targets) * (len(part) / len(rows))
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_([p for _, p in named], training.max_grad_norm, foreach=False)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(total)
    save_file({n: t.detach().clone() for n, t in units.state_dict().items()}, weights)
    Path(losses_path).write_text(json.dumps(losses))


if __name__ == "__main__":
    main(*sys.argv[1:])
