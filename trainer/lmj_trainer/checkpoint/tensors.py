"""Tensors in checkpoint files: written from one flat block, read by name. The only part of this folder that knows torch."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import torch
import xxhash
from safetensors import safe_open
from torch import Tensor

from lmj_api.manifest import Manifest, ManifestFile
from lmj_trainer.checkpoint.tensor_file import TensorFile, bytes_of
from lmj_trainer.checkpoint.write import MANIFEST
from lmj_trainer.errors import UserError

if TYPE_CHECKING:
    from lmj_trainer.state.stage_state import StageState
    from lmj_trainer.store.port import Ref

_FROZEN = "frozen/"
"""Before the name of a frozen weight, in a file's metadata."""
_PIECE = 8 << 20  # bytes written and hashed at a time


def write_tensors(
    path: Ref,
    tensors: Iterable[tuple[str, Tensor]],
    frozen: Mapping[str, str] | None = None,
    wrote: Callable[[int], None] = lambda size: None,
) -> ManifestFile:
    """Write float32 CPU ``tensors`` as a safetensors file, durably and atomically; the digest is taken on the way.

    ``frozen``: digests of weights that belong to them and are not written, because they never change. ``wrote`` is told of bytes that are on
    their way, before any more are: it may take its time.

    The library's writer would need a second pass for the digest; the format is a length, a JSON header and the bytes in order.
    """
    listed = list(tensors)
    metadata = {"format": "pt"} | {_FROZEN + name: digest for name, digest in (frozen or {}).items()}
    header: dict[str, object] = {"__metadata__": metadata}
    offset = 0
    for name, tensor in listed:
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [offset, offset + tensor.nbytes]}
        offset += tensor.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    pieces = [memoryview(struct.pack("<Q", len(text)) + text), *(bytes_of(tensor.contiguous()) for _, tensor in listed)]
    digest = xxhash.xxh3_128()

    def digested() -> Iterator[memoryview]:
        for view in pieces:
            for start in range(0, len(view), _PIECE):
                part = view[start : start + _PIECE]
                digest.update(part)
                yield part
                wrote(len(part))

    path.put(digested())
    return ManifestFile(name=path.name, size=sum(map(len, pieces)), xxh128=digest.hexdigest())


def read_manifest(folder: Ref) -> Manifest:
    """The manifest of the checkpoint in ``folder``."""
    return Manifest.model_validate_json((folder / MANIFEST).get())


def load_state(folder: Ref, state: StageState) -> Manifest:
    """Fill ``state`` from the checkpoint in ``folder``, written by any number of stages. KeyError: a tensor is missing.

    UserError: as :func:`require_frozen`.
    """
    manifest = read_manifest(folder)
    require_frozen(folder, manifest, state.frozen)
    state.fill(-1)
    state.forget_gradients()
    copy_tensors(folder, manifest, state.targets())
    state.fill(manifest.step)
    return manifest


def load_weights(folder: Ref, state: StageState) -> None:
    """Replace the weights alone. The state is no step's afterwards."""
    state.fill(-1)
    copy_tensors(folder, read_manifest(folder), ((slot.saved_as, slot.weight) for slot in state.slots))


def require_frozen(folder: Ref, manifest: Manifest, frozen: Mapping[str, str]) -> None:
    """UserError: the checkpoint was made with frozen weights of other digests than ``frozen``, by name."""
    missing = dict(frozen)
    for entry in manifest.files if frozen else []:
        for key, digest in TensorFile(folder / entry.name, entry.size).metadata.items():
            name = key.removeprefix(_FROZEN)
            if name in missing and missing.pop(name) != digest:
                raise UserError(
                    f"{name} of model.source is not what checkpoint {folder.name} was made with: put that model back, "
                    "or start over in another output.path"
                )
    if missing:
        raise KeyError(f"{folder} knows nothing of {min(missing)}, which was not trained")


def copy_tensors(folder: Ref, manifest: Manifest, targets: Iterable[tuple[str, Tensor]]) -> None:
    """Copy tensors by name from the checkpoint's files into ``targets``; nothing else of the files is read but their headers.

    Raises KeyError when one is in none of them: nothing is copied then.
    """
    wanted = dict(targets)
    missing, parts = set(wanted), []
    for entry in manifest.files:
        if not missing:
            break
        file = TensorFile(folder / entry.name, entry.size)
        parts.append((file, missing & file.tensors.keys()))
        missing -= file.tensors.keys()
    _require_all(folder, missing)
    with torch.no_grad():
        for file, names in parts:
            file.copy_into({name: wanted[name] for name in names})


def open_tensors(folder: Ref, manifest: Manifest, names: Iterable[str]) -> dict[str, Tensor]:
    """Tensors by name, mapped from the checkpoint's files: nothing is read before it is used. KeyError: one is missing."""
    missing = set(names)
    found = {}
    for entry in manifest.files:
        with (folder / entry.name).local() as path, safe_open(path, framework="pt") as file:
            for name in missing.intersection(file.keys()):
                found[name] = file.get_tensor(name)
                missing.discard(name)
    _require_all(folder, missing)
    return found


def _require_all(folder: Ref, missing: set[str]) -> None:
    if missing:
        raise KeyError(f"{folder} holds no {min(missing)} (and {len(missing) - 1} others that are needed)")
