"""Copies of a state into the host's memory, beside what a GPU computes meanwhile."""

from __future__ import annotations

import torch
from torch import Tensor

PIECE = 8 << 20
"""Elements that cross the bus at once: 32 MB."""


def copy_beside(target: Tensor, source: Tensor) -> None:
    """``target.copy_(source)`` of flat tensors, for a thread beside the one that computes. Returns when all is in ``target``.

    From a GPU on a stream of its own, else the next step's kernels would wait for it. ``target`` may be memory of any kind, which the GPU
    writes to at a fraction of the bus's rate: so it goes through two pinned pieces, of which one is filled while the other is emptied.
    """
    if source.device.type != "cuda":
        target.copy_(source)
        return
    stream = torch.cuda.Stream(source.device)  # type: ignore[no-untyped-call]
    # The update that made the state is queued there.
    stream.wait_stream(torch.cuda.default_stream(source.device))
    rooms = [torch.empty(min(PIECE, len(source)), dtype=source.dtype, pin_memory=True) for _ in range(2)]
    filled = [torch.cuda.Event() for _ in rooms]  # type: ignore[no-untyped-call]
    pieces = list(zip(torch.split(source, PIECE), torch.split(target, PIECE), strict=True))

    def fill(number: int) -> None:
        piece, _ = pieces[number]
        with torch.cuda.stream(stream):
            rooms[number % 2][: len(piece)].copy_(piece, non_blocking=True)
            filled[number % 2].record(stream)

    fill(0)
    for number, (_, room) in enumerate(pieces):
        if number + 1 < len(pieces):
            fill(number + 1)
        filled[number % 2].synchronize()
        room.copy_(rooms[number % 2][: len(room)])
