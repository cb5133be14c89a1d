"""Data parallel as PyTorch has it, over Gloo: ``torchrun`` (DistributedDataParallel in a loop of one's own) or ``accelerate``.

Both at their best: gradients are exchanged once a step, and lie in the buckets that are exchanged. The launchers of that name set the same
variables and are no part of a step.
"""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext

import torch
import torch.distributed as dist
from common import THREADS, Workload, serve

work = Workload.from_environment()
torch.set_num_threads(THREADS)
rank, ranks = int(os.environ["RANK"]), 2
os.environ |= {"WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1"}
mine = work.slices()[rank * work.micro_batches // ranks : (rank + 1) * work.micro_batches // ranks]
loss = torch.nn.functional.cross_entropy


def torchrun() -> None:
    """The loop that users of torchrun write."""
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(work.model(), gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=work.learning_rate, fused=True)

    def step(number: int) -> None:
        ids, mask, labels = work.data(number)
        for part in mine:
            with nullcontext() if part is mine[-1] else model.no_sync():
                logits = model(input_ids=ids[part], attention_mask=mask[part]).logits
                (loss(logits, labels[part]) / len(mine)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), work.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()

    serve(step)


def accelerate() -> None:
    """The loop that users of accelerate write."""
    from accelerate import Accelerator
    from accelerate.utils import DistributedDataParallelKwargs

    handlers = [DistributedDataParallelKwargs(gradient_as_bucket_view=True)]
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=len(mine), kwargs_handlers=handlers)
    whole = work.model()
    model, optimizer = accelerator.prepare(whole, torch.optim.AdamW(whole.parameters(), lr=work.learning_rate, fused=True))

    def step(number: int) -> None:
        ids, mask, labels = work.data(number)
        for part in mine:
            with accelerator.accumulate(model):
                logits = model(input_ids=ids[part], attention_mask=mask[part]).logits
                accelerator.backward(loss(logits, labels[part]))
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), work.max_grad_norm)
                optimizer.step()
                optimizer.zero_grad()

    serve(step)


{"torchrun": torchrun, "accelerate": accelerate}[sys.argv[1]]()
