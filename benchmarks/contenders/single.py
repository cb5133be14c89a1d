"""The whole model in one process, one thread, the same micro-batches. Two of them at once say what two busy cores can do."""

from __future__ import annotations

import torch
from common import THREADS, Workload, serve

work = Workload.from_environment()
torch.set_num_threads(THREADS)
model = work.model()
optimizer = torch.optim.AdamW(model.parameters(), lr=work.learning_rate, fused=True)


def step(number: int) -> None:
    ids, mask, labels = work.data(number)
    for part in work.slices():
        logits = model(input_ids=ids[part], attention_mask=mask[part]).logits
        (torch.nn.functional.cross_entropy(logits, labels[part]) / work.micro_batches).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), work.max_grad_norm)
    optimizer.step()
    optimizer.zero_grad()


serve(step)
