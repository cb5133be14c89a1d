"""Which checkpoints go, and how they go."""

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from lmj_api.protocol import CheckpointInfo
from lmj_trainer.checkpoint.write import MANIFEST, sync_folder

FOLDER = re.compile(r"step-[0-9]{9,}")
"""Names of checkpoint folders; nothing else in the checkpoint folder is ever touched."""


def surplus(checkpoints: Iterable[CheckpointInfo], keep: int) -> list[str]:
    """Names of the checkpoints that may go, oldest first: all but the newest ``keep`` and the best.

    One with a problem neither goes (it may be the user's only copy, and evidence) nor counts. Of several that were the best
    in their time the newest is the best: it beat the others. Raises ValueError when ``keep`` is less than 1.
    """
    if keep < 1:
        raise ValueError(f"keep {keep}: at least one checkpoint must stay")
    good = sorted((c for c in checkpoints if c.problem is None), key=lambda c: c.step, reverse=True)
    best = next((c.name for c in good if c.best), None)
    return [c.name for c in reversed(good[keep:]) if c.name != best]


def remove(root: Path, names: Sequence[str]) -> None:
    """Remove the checkpoints ``names`` in ``root``, each with its manifest first.

    So a removal that is torn leaves a half-written checkpoint, never a torn one that claims to be good. A name that is gone
    already is no error. Raises ValueError for a name that is no checkpoint's, OSError when the disk refuses.
    """
    for name in names:
        if not FOLDER.fullmatch(name):
            raise ValueError(f"{name!r} is not the name of a checkpoint's folder")
    for name in names:
        folder = root / name
        if not folder.exists():
            continue
        (folder / MANIFEST).unlink(missing_ok=True)
        sync_folder(folder)
        for entry in sorted(os.listdir(folder)):
            os.unlink(folder / entry)
        os.rmdir(folder)
        sync_folder(root)
