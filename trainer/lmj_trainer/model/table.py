"""The table of tokens, whose gradient has only the rows of the tokens that were read."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional


class Table(nn.Embedding):
    """As ``nn.Embedding``, and its weight's ``.grad`` gets the same bits. That is of tens of thousands of rows, a micro-batch reads some
    hundreds: ``nn.Embedding`` fills a whole table with zeros in each backward pass and adds it, here only the rows that were read are added.

    For the CPU: on a GPU the numbers of these rows would have to be waited for.
    """

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - nn.Embedding's name of it
        """Token ids, int64 ``[b, t]``, to their rows, float32 ``[b, t, h]``."""
        if not (self.weight.requires_grad and torch.is_grad_enabled()):
            return super().forward(input)
        rows: Tensor = _Rows.apply(self.weight, input, self.padding_idx)
        return rows


def with_table(model: Any) -> None:
    """Replace the token embeddings of ``model``, of transformers, where they are plain ones."""
    tokens = model.get_input_embeddings()
    if type(tokens) is not nn.Embedding or tokens.max_norm is not None or tokens.scale_grad_by_freq or tokens.sparse:
        return
    with torch.device("meta"):
        table = Table(tokens.num_embeddings, tokens.embedding_dim, tokens.padding_idx)
    table.weight = tokens.weight
    table.train(tokens.training)
    model.set_input_embeddings(table)


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, ids: Tensor, padding: int | None) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.shape, ctx.padding = weight.shape, padding
        return functional.embedding(ids, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (ids,) = ctx.saved_tensors
        rows, places = torch.unique(ids, return_inverse=True)
        # The kernel of nn.Embedding: places of one row are added in their order, from zero.
        values = torch.ops.aten.embedding_dense_backward(grad, places, len(rows), -1, False)
        if ctx.padding is not None:
            values[rows == ctx.padding] = 0.0
        # Each row once, so the sum with what is in the weight's gradient already has one order.
        return torch.sparse_coo_tensor(rows[None], values, ctx.shape, is_coalesced=True, check_invariants=False), None, None
