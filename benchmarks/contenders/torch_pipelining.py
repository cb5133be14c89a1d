"""torch.distributed.pipelining over Gloo: ``1f1b``, or ``zb`` (interleaved zero-bubble, two stages a rank). Clips over both ranks."""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
import torch.distributed as dist
from common import THREADS, Workload, serve
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleavedZeroBubble
from torch.distributed.pipelining.stage import _PipelineStageBase

work = Workload.from_environment()
torch.set_num_threads(THREADS)
rank, ranks = int(os.environ["RANK"]), 2
kind = sys.argv[1]
stages = 2 if kind == "1f1b" else 4
whole = work.model()


class Part(torch.nn.Module):
    """One stage; the mask travels with the hidden states, as stages of this library only see what is sent to them."""

    def __init__(self, model: Any, index: int) -> None:
        super().__init__()
        size = work.layers // stages
        self.first, self.last = index == 0, index == stages - 1
        self.layers = torch.nn.ModuleList(model.bert.encoder.layer[index * size : (index + 1) * size])
        if self.first:
            self.embeddings = model.bert.embeddings
        if self.last:
            self.head = torch.nn.ModuleList([model.bert.pooler, model.dropout, model.classifier])

    def forward(self, hidden: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        if self.first:
            hidden = self.embeddings(input_ids=hidden)
        for layer in self.layers:
            hidden = layer(hidden, attention_mask[:, None, None, :].bool())
        if self.last:
            for module in self.head:
                hidden = module(hidden)
        return hidden


parts = {index: Part(whole, index) for index in range(rank, stages, ranks)}
del whole
weights = [p for part in parts.values() for p in part.parameters()]
optimizer = torch.optim.AdamW(weights, lr=work.learning_rate, fused=True)
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{os.environ['MASTER_PORT']}", rank=rank, world_size=ranks)
made: list[_PipelineStageBase] = [PipelineStage(part, index, stages, torch.device("cpu")) for index, part in parts.items()]
loss = torch.nn.functional.cross_entropy
schedule: Any = (
    Schedule1F1B(made[0], work.micro_batches, loss_fn=loss)
    if kind == "1f1b"
    else ScheduleInterleavedZeroBubble(made, work.micro_batches, loss_fn=loss)
)


def step(number: int) -> None:
    ids, mask, labels = work.data(number)
    has_last = stages - 1 in parts
    arguments = (ids,) if 0 in parts else ()
    extra = {"target": labels, "losses": []} if has_last else {}
    schedule.step(*arguments, attention_mask=mask, **extra)
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(p.grad) for p in weights])) ** 2
    dist.all_reduce(norm)
    torch.nn.utils.clip_grads_with_norm_(weights, work.max_grad_norm, norm.sqrt())
    optimizer.step()
    optimizer.zero_grad()


serve(step)
