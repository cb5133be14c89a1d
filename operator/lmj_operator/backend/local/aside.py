"""Begin anew in an output folder: what is there goes into a folder of its own, and nothing is removed.

Hours of training are in it, and whoever begins anew is often wrong about what they need no more; a folder is removed in a second.
"""

import json
import os
from pathlib import Path

from lmj_api.layout import Layout
from lmj_api.names import parse_checkpoint_name
from lmj_operator.backend.local.store import write_atomically

_LARGEST_MANIFEST = 1 << 20
_BOOKKEEPING = ("status.json", "job.json", "migrate")


def is_unfinished(layout: Layout) -> bool:
    """Whether somebody began to begin anew, and was ended: then what is left there is of no whole run."""
    return _mark(layout).exists()


def move_aside(layout: Layout, job: str) -> Path | None:
    """Move all results, and the run's bookkeeping, into a new folder within; None: there was nothing. To be called with the run's lock held.

    The folder's name is written down first, so a move that was ended is gone on with. Of checkpoints that lie elsewhere those
    of ``job`` go, by its name: others may lie beside them.
    """
    mark = _mark(layout)
    if mark.exists():
        target = layout.output / Path(mark.read_text()).name
    else:
        number = next(n for n in range(1, 1_000_000) if not (layout.output / f"earlier-{n}").exists())
        target = layout.output / f"earlier-{number}"
        if not any(path.exists() for path, _ in _moves(layout, job, target)):
            return None
        write_atomically(mark, target.name.encode())
    for path, goal in _moves(layout, job, target):
        if path.exists():
            goal.parent.mkdir(parents=True, exist_ok=True)
            os.rename(path, goal)
            _sync(goal.parent)
            _sync(path.parent)
    mark.unlink()
    return target


def _mark(layout: Layout) -> Path:
    return layout.run / "aside"


def _moves(layout: Layout, job: str, target: Path) -> list[tuple[Path, Path]]:
    """What goes, and where to. The pods' folders and the lock are this command's, and the tokenized data fits any job."""
    results = [layout.metrics, layout.evaluation, layout.recorders, layout.model, layout.adapter, layout.tensorboard, layout.logs]
    results += [layout.output / "checkpoints", layout.pretrained, layout.trained]
    moves = [(path, target / path.name) for path in results]
    moves += [(path, target / layout.run.name / path.name) for path in (layout.run / name for name in _BOOKKEEPING)]
    if not layout.checkpoints.is_relative_to(layout.output) and layout.checkpoints.is_dir():
        own = [path for path in sorted(layout.checkpoints.iterdir()) if _is_checkpoint_of(path, job)]
        moves += [(path, layout.checkpoints / target.name / path.name) for path in own]
    return moves


def _is_checkpoint_of(path: Path, job: str) -> bool:
    try:
        parse_checkpoint_name(path.name)
        with (path / "manifest.json").open("rb") as file:
            return bool(json.loads(file.read(_LARGEST_MANIFEST)).get("job") == job)
    except (OSError, ValueError, AttributeError):
        return False


def _sync(folder: Path) -> None:
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
