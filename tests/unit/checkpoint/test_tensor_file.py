"""Files of tensors read by ranges: what the library reads, and nothing that a header only claims."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save
from tests.unit.store.memory import MemoryStore

from lmj_trainer.checkpoint import tensor_file
from lmj_trainer.checkpoint.tensor_file import TensorFile
from lmj_trainer.checkpoint.tensors import write_tensors
from lmj_trainer.store.port import Ref

shapes = st.lists(st.lists(st.integers(0, 5), max_size=3).map(tuple), min_size=1, max_size=8)


class Counting(MemoryStore):
    """Knows what is read."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[tuple[int, int]] = []

    def fill(self, key: str, start: int, buffers: Sequence[memoryview]) -> None:
        self.read.append((start, sum(map(len, buffers))))
        super().fill(key, start, buffers)


def put(content: bytes) -> Ref:
    file = Ref(Counting(), "rank-0.safetensors")
    file.put([content])
    return file


def reads(file: Ref) -> list[tuple[int, int]]:
    assert isinstance(file.store, Counting)
    return file.store.read


def space_for(shape: Sequence[int], *, copied: bool = False) -> torch.Tensor:
    """``copied``: of doubles, so that it cannot be written to at once."""
    return torch.zeros(tuple(shape), dtype=torch.float64 if copied else torch.float32)


@given(shapes, st.data(), st.integers(1, 200), st.booleans())
def test_what_is_asked_for_comes_back_to_the_bit(
    made: list[tuple[int, ...]], data: st.DataObject, run: int, copied: bool
) -> None:
    tensors = {f"t{number}": torch.randn(shape) for number, shape in enumerate(made)}
    file = Ref(Counting(), "rank-0.safetensors")
    size = write_tensors(file, tensors.items(), {"w": "digest"}).size
    names = data.draw(st.lists(st.sampled_from(sorted(tensors)), unique=True))
    before, tensor_file._RUN = tensor_file._RUN, run
    try:
        opened = TensorFile(file, size)
        found = {name: space_for(tensors[name].shape, copied=copied) for name in names}
        opened.copy_into(found)
    finally:
        tensor_file._RUN = before
    assert all(torch.equal(found[name].float(), tensors[name]) for name in names)
    assert opened.metadata == {"format": "pt", "frozen/w": "digest"}
    assert sum(length for _, length in reads(file)) == sum(tensors[name].nbytes for name in names), "not a byte more"


def test_it_reads_what_the_library_writes() -> None:
    tensors = {"b": torch.arange(6.0).view(2, 3), "a": torch.tensor(7.0)}
    content = save(tensors)
    found = {name: space_for(tensor.shape) for name, tensor in tensors.items()}
    TensorFile(put(content), len(content)).copy_into(found)
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)


def test_those_that_lie_side_by_side_are_read_at_once() -> None:
    content = save({f"t{number}": torch.ones(10) for number in range(5)})
    file = put(content)
    opened = TensorFile(file, len(content))
    first = opened.tensors["t0"].start
    opened.copy_into({name: torch.zeros(10) for name in ("t4", "t0", "t1")})
    assert reads(file) == [(first, 80), (first + 160, 40)]


def test_a_long_header_is_read_whole(tmp_path: Path) -> None:
    tensors = {f"{number:0200}": torch.ones(1) for number in range(1000)}
    content = save(tensors)
    assert len(TensorFile(put(content), len(content)).tensors) == 1000


def headed(header: object, body: bytes = bytes(8), length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + body


def about(**other: object) -> dict[str, object]:
    return {"t": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | other}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x01",
        headed({}, length=2**63),
        headed({}, length=1000),
        headed(b"{"),
        headed(b"[" * 100_000),
        headed([1]),
        headed({"t": 1}),
        headed({"t": {}}),
        headed({"__metadata__": 3}),
        headed(about(dtype="F16")),
        headed(about(shape=[2**62])),
        headed(about(shape=[-2])),
        headed(about(shape=[int("9" * 4000)] * 200)),
        headed(about(shape=[2.0])),
        headed(about(shape="no")),
        headed(about(shape=[3], data_offsets=[0, 12])),
        headed(about(data_offsets=[8, 0])),
        headed(about(data_offsets=[-8, 0])),
        headed(about(data_offsets=[2**70, 2**70 + 8])),
        headed(about(data_offsets=[True, 9])),
    ],
)
def test_a_header_that_lies_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"^memory://rank-0.safetensors is not a file of tensors: "):
        TensorFile(put(content), len(content))


@given(st.integers(0, 400), st.binary(min_size=1, max_size=6))
def test_whatever_is_altered_it_is_refused_or_read(at: int, other: bytes) -> None:
    content = bytearray(save({"one": torch.ones(3), "two": torch.ones(2, 2)}))
    at %= len(content)
    content[at : at + len(other)] = other[: len(content) - at]
    try:
        opened = TensorFile(put(bytes(content)), len(content))
    except ValueError:
        return
    spaces = {name: space_for(stored.shape) for name, stored in opened.tensors.items() if stored.size > 0}
    assert all(space.nbytes <= len(content) for space in spaces.values())
    opened.copy_into(spaces)


def test_another_shape_is_refused_before_anything_is_copied() -> None:
    content = save({"a": torch.ones(4), "b": torch.ones(2, 2)})
    targets = {"a": torch.zeros(4), "b": torch.zeros(4)}
    with pytest.raises(ValueError, match=r"shape \[2, 2\], not of \[4\]$"):
        TensorFile(put(content), len(content)).copy_into(targets)
    assert not targets["a"].any()
