"""A checkpoint of one number of stages, loaded into others: how long, how many bytes are read, and whether all bits are the same."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from saving_ways import STEP, fill, make_state, separate
from transformers import BertConfig

from lmj_api.manifest import Manifest
from lmj_api.names import part_file
from lmj_trainer.checkpoint.digest import file_digest
from lmj_trainer.checkpoint.tensors import load_state, write_tensors
from lmj_trainer.checkpoint.write import commit_manifest, folder_of
from lmj_trainer.model.partition import partition
from lmj_trainer.state.stage_state import StageState
from lmj_trainer.store.port import Ref
from lmj_trainer.store.posix import PosixStore

VIEW = 1


class CountingStore(PosixStore):
    """A folder that counts the bytes which are read of its files."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.read = 0

    def get(self, key: str, start: int = 0, size: int | None = None) -> bytes:
        """As of the store."""
        found = super().get(key, start, size)
        self.read += len(found)
        return found

    def fill(self, key: str, start: int, buffers: Sequence[memoryview]) -> None:
        """As of the store."""
        super().fill(key, start, buffers)
        self.read += sum(map(len, buffers))


@dataclass(frozen=True)
class Loaded:
    """One shape into which the checkpoint was loaded."""

    stages: int
    replicas: int
    seconds: float
    """Of all ranks, one after the other, for each replica."""
    read: float
    """Bytes that all ranks read together, over those of the checkpoint."""
    equal: bool
    """All tensors have the bits of those that were saved."""

    @property
    def shape(self) -> str:
        """For people."""
        ranks = f"{self.stages} stage{'s' * (self.stages > 1)}"
        return ranks if self.replicas == 1 else f"{ranks} of {self.replicas} replicas"


def written(config: BertConfig, stages: int, place: Path) -> tuple[Ref, dict[str, torch.Tensor], int]:
    """A checkpoint of ``stages``: its folder, the tensors that are in it, and its bytes."""
    folder = folder_of(Ref(CountingStore(place)), STEP, VIEW)
    tensors: dict[str, torch.Tensor] = {}
    files = []
    for number, layers in enumerate(partition(config.num_hidden_layers, stages)):
        state = make_state(config, layers)
        fill(state)
        own = separate(state)
        files.append(write_tensors(folder / part_file(number), own.items()))
        tensors |= own
    commit_manifest(
        folder, Manifest(job="job", view=VIEW, step=STEP, epoch=0.5, state_digest="d", seconds=1.0, best=False, files=files)
    )
    return folder, tensors, sum(file.size for file in files)


def verified(folder: Ref) -> float:
    """Seconds in which one reader compares all digests; it brings the files into this machine's memory."""
    began = time.monotonic()
    for name in folder.files():
        file_digest(folder / name)
    return time.monotonic() - began


class Shape:
    """Ranks whose states are there and are filled from the checkpoint again and again."""

    def __init__(self, config: BertConfig, stages: int, replicas: int) -> None:
        self.stages, self.replicas = stages, replicas
        self._states: list[StageState] = [make_state(config, layers) for layers in partition(config.num_hidden_layers, stages)]

    def load(self, folder: Ref, tensors: dict[str, torch.Tensor], size: int) -> Loaded:
        """Fill all of them. The ranks of another replica take the place of those of the first: they do the same."""
        store = folder.store
        assert isinstance(store, CountingStore)
        store.read, began = 0, time.monotonic()
        for _ in range(self.replicas):
            for state in self._states:
                load_state(folder, state)
        seconds = (time.monotonic() - began) / self.replicas
        return Loaded(self.stages, self.replicas, seconds, store.read / size, _equal(self._states, tensors))


def _equal(states: Iterable[StageState], tensors: dict[str, torch.Tensor]) -> bool:
    found = {name: tensor for state in states for name, tensor in state.tensors()}
    return found.keys() == tensors.keys() and all(torch.equal(found[name], tensors[name]) for name in found)
