"""What reads and writes checkpoints, on a folder of this machine: each takes a path where the product takes a reference to a place."""

from collections.abc import Callable
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from lmj_api.names import checkpoint_name
from lmj_api.run import Run
from lmj_trainer.checkpoint import digest, fence, leftovers, prune, tensors, write
from lmj_trainer.checkpoint import scan as scans
from lmj_trainer.store.port import Ref
from lmj_trainer.store.posix import PosixStore

P, R = ParamSpec("P"), TypeVar("R")


def at(path: Path) -> Ref:
    """The place at ``path``."""
    return Ref(PosixStore(path.parent), path.name)


def _on_disk(function: Callable[Concatenate[Ref, P], R]) -> Callable[Concatenate[Path, P], R]:
    def call(path: Path, *arguments: P.args, **options: P.kwargs) -> R:
        return function(at(path), *arguments, **options)

    return call


def make_folder(root: Path, step: int, view: int, run: Run | None = None) -> Path:
    """A checkpoint's folder, made."""
    path = root / checkpoint_name(step, view, run)
    path.mkdir(parents=True, exist_ok=True)
    return path


file_digest = _on_disk(digest.file_digest)
declare_over, newest_over, successor = _on_disk(fence.declare_over), _on_disk(fence.newest_over), _on_disk(fence.successor)
folders = _on_disk(fence.folders)
clear, sign = _on_disk(leftovers.clear), _on_disk(leftovers.sign)
remove = _on_disk(prune.remove)
scan, survey, verify = _on_disk(scans.scan), _on_disk(scans.survey), _on_disk(scans.verify)
load_state, load_weights = _on_disk(tensors.load_state), _on_disk(tensors.load_weights)
write_tensors = _on_disk(tensors.write_tensors)
commit_manifest = _on_disk(write.commit_manifest)
