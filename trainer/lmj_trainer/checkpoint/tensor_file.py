"""A file of tensors in a store, read by ranges: its header, and of the rest what is asked for. The format is that of safetensors: a length,
a JSON header and the bytes in order.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from lmj_trainer.store.port import Ref

_BEGINNING = 64 << 10
"""Bytes read at once: most headers are shorter."""
_LARGEST_HEADER = 16 << 20
"""Bytes; that of a hundred thousand tensors."""
_RUN = 64 << 20
"""Bytes read at once of tensors that lie side by side; a larger one is read alone."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Where a float32 tensor lies."""

    shape: tuple[int, ...]
    start: int
    """Bytes from the file's beginning."""
    size: int
    """Bytes."""

    @property
    def end(self) -> int:
        """Of its bytes, from the file's beginning."""
        return self.start + self.size


class TensorFile:
    """What a file holds. Its header is the word of whoever wrote it: nothing is allocated that the file does not have."""

    def __init__(self, file: Ref, size: int) -> None:
        """``size``: the file's, in bytes. Raises OSError, and ValueError where it is no such file."""
        self._file = file
        beginning = file.get(size=min(size, _BEGINNING))
        length = struct.unpack("<Q", beginning[:8])[0] if len(beginning) >= 8 else size
        if length > min(size - 8, _LARGEST_HEADER):
            raise ValueError(f"{file} is not a file of tensors: a header of {length} bytes in {size}")
        text = beginning[8 : 8 + length]
        if len(text) < length:
            text += file.get(8 + len(text), length - len(text))
        try:
            header = json.loads(text)
            self.metadata: dict[str, str] = dict(header.pop("__metadata__", None) or {})
            self.tensors = {name: _stored(about, 8 + length, size) for name, about in header.items()}
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ValueError(f"{file} is not a file of tensors: {error}") from None

    def copy_into(self, targets: Mapping[str, Tensor]) -> None:
        """Copy the tensors of these names, float32, over them. Raises OSError, with which some are copied, and ValueError for another shape."""
        found = [(self.tensors[name], target.detach()) for name, target in targets.items()]
        for stored, target in found:
            if target.shape != stored.shape:
                raise ValueError(f"{self._file} has a tensor of shape {list(stored.shape)}, not of {list(target.shape)}")
        for run in _runs([(stored, target) for stored, target in found if stored.size > 0]):
            spaces = [target if _in_memory(target) else torch.empty(stored.shape) for stored, target in run]
            self._file.fill(run[0][0].start, [bytes_of(space) for space in spaces])
            for (_, target), space in zip(run, spaces, strict=True):
                if space is not target:
                    target.copy_(space)


def bytes_of(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor: what is written to them is in it."""
    return memoryview(tensor.view(-1).numpy().data).cast("B")


def _in_memory(target: Tensor) -> bool:
    return target.device.type == "cpu" and target.dtype == torch.float32 and target.is_contiguous()


def _stored(about: dict[str, Any], first: int, size: int) -> Stored:
    """``first``: where the tensors begin in a file of ``size`` bytes. Raises ValueError, and as a dictionary or a list does."""
    begin, end = about["data_offsets"]
    shape = tuple(about["shape"])
    if about["dtype"] != "F32":
        raise ValueError(f"a tensor of {about['dtype']}, not of F32")
    if not all(type(number) is int and number >= 0 for number in (begin, end, *shape)):
        raise ValueError("a tensor without a shape, or a place")
    # Each by itself first: the product of numbers of thousands of digits takes minutes.
    if max(shape, default=0) > size or end - begin != 4 * math.prod(shape) or first + end > size:
        raise ValueError("a tensor that is longer than its place")
    return Stored(shape, first + begin, end - begin)


def _runs(tensors: list[tuple[Stored, Tensor]]) -> Iterator[list[tuple[Stored, Tensor]]]:
    """Those that lie side by side, as far as they are short together."""
    run: list[tuple[Stored, Tensor]] = []
    for stored, target in sorted(tensors, key=lambda each: (each[0].start, each[0].end)):
        if run and (stored.start != run[-1][0].end or stored.end - run[0][0].start > _RUN):
            yield run
            run = []
        run.append((stored, target))
    if run:
        yield run
