"""The origin system's way: the whole batch goes through each stage in turn, by RPC, without micro-batches."""

from __future__ import annotations

import os

import torch
import torch.distributed.rpc as rpc
from common import THREADS, Workload, serve

work = Workload.from_environment()
torch.set_num_threads(THREADS)
rank = int(os.environ["RANK"])
model = work.model()
half = work.layers // 2


def back(hidden: torch.Tensor, mask: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The second stage: forward, loss, backward, clip, step. Returns the gradient by ``hidden``."""
    import naive

    assert naive.second is not None, "it is the second rank that is called"
    return naive.second.run(hidden, mask, labels)


class Second:
    def __init__(self) -> None:
        layers = list(model.bert.encoder.layer[half:])
        self.layers = layers
        modules = torch.nn.ModuleList([*layers, model.bert.pooler, model.classifier])
        self.weights = list(modules.parameters())
        self.optimizer = torch.optim.AdamW(self.weights, lr=work.learning_rate, fused=True)

    def run(self, hidden: torch.Tensor, mask: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        torch.set_num_threads(THREADS)
        hidden.requires_grad_()
        out = hidden
        for layer in self.layers:
            out = layer(out, mask[:, None, None, :].bool())
        logits = model.classifier(model.dropout(model.bert.pooler(out)))
        torch.nn.functional.cross_entropy(logits, labels).backward()
        torch.nn.utils.clip_grad_norm_(self.weights, work.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        assert hidden.grad is not None
        return hidden.grad


second = Second() if rank == 1 else None

if __name__ == "__main__":
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"tcp://127.0.0.1:{os.environ['MASTER_PORT']}", rpc_timeout=600)
    if rank == 1:
        import naive

        naive.second = second
        rpc.init_rpc("second", rank=1, world_size=2, rpc_backend_options=options)
        serve(lambda number: None)
    rpc.init_rpc("first", rank=0, world_size=2, rpc_backend_options=options)
    import naive

    layers = model.bert.encoder.layer[:half]
    weights = [*model.bert.embeddings.parameters(), *layers.parameters()]
    optimizer = torch.optim.AdamW(weights, lr=work.learning_rate, fused=True)

    def step(number: int) -> None:
        ids, mask, labels = work.data(number)
        hidden = model.bert.embeddings(input_ids=ids)
        for layer in layers:
            hidden = layer(hidden, mask[:, None, None, :].bool())
        grad = rpc.rpc_sync("second", naive.back, args=(hidden.detach(), mask, labels))
        hidden.backward(grad)
        torch.nn.utils.clip_grad_norm_(weights, work.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()

    serve(step)
