"""Start over in an output folder: what is there goes into a folder of its own, and nothing is removed.

Hours of training are in it, and people who begin again are often wrong about what they no longer need; a folder is removed in a second.
"""

import json
import os
from pathlib import Path

from lmj_api.layout import Layout
from lmj_api.names import parse_checkpoint_name
from lmj_operator.backend.local.store import sync_folder, write_atomically

_LARGEST_MANIFEST = 1 << 20
_OF_SCRIPT = "checkpoint-*"
"""What transformers calls its checkpoints. All else in a script's folders is its own, and may be the script."""
_BOOKKEEPING = ("status.json", "job.json", "migrate", "scale")


def is_unfinished(layout: Layout) -> bool:
    """Whether somebody began to start over, and was ended: then what is left there is of no whole run."""
    return _mark(layout).exists()


def move_aside(layout: Layout, job: str) -> Path | None:
    """Move all results, and the run's bookkeeping, into a new folder within; None: there was nothing. To be called with the run's lock held.

    The folder's name is written down first, so a move that was ended is gone on with, and each change is durable before the next. Of
    checkpoints that lie elsewhere those of ``job`` go, by its name: others may lie beside them.
    """
    mark = _mark(layout)
    if mark.exists():
        target = layout.output / Path(mark.read_text()).name
    else:
        target = _unused(layout)
        # What the check of a first run has fetched is no earlier run's.
        if not any(path.exists() for path, _ in _moves(layout, job, target) if path != layout.fetched):
            return None
        write_atomically(mark, target.name.encode())
    moves = _moves(layout, job, target)
    if any(path.exists() and goal.exists() for path, goal in moves):  # what is aside already is of another run
        target = _unused(layout)
        write_atomically(mark, target.name.encode())
        moves = _moves(layout, job, target)
    for folder in sorted({target, *(goal.parent for path, goal in moves if path.exists())}):
        folder.mkdir(parents=True, exist_ok=True)
        sync_folder(folder.parent)
    for path, goal in moves:
        if path.exists():
            os.rename(path, goal)
            sync_folder(goal.parent)
            sync_folder(path.parent)
    mark.unlink()
    sync_folder(mark.parent)  # else a power cut brings it back, and the next run moves this one's results aside
    return target


def _mark(layout: Layout) -> Path:
    return layout.run / "aside"


def _unused(layout: Layout) -> Path:
    """The first folder that nothing was moved into yet, here or beside the checkpoints."""
    names = (f"earlier-{number}" for number in range(1, 1_000_000))
    return layout.output / next(n for n in names if not (layout.output / n).exists() and not (layout.checkpoints / n).exists())


def _moves(layout: Layout, job: str, target: Path) -> list[tuple[Path, Path]]:
    """What goes, and where to. The pods' folders and the lock are this command's, and the tokenized data fits any job."""
    results = [layout.metrics, layout.evaluation, layout.recorders, layout.model, layout.int8, layout.adapter, layout.tensorboard]
    results += [layout.logs, layout.output / "checkpoints", layout.pretrained, layout.trained, layout.trackers, layout.views]
    results += [layout.fetched]
    moves = [(path, target / path.name) for path in results]
    moves += [(path, target / layout.run.name / path.name) for path in (layout.run / name for name in _BOOKKEEPING)]
    if layout.checkpoints != layout.output / "checkpoints" and layout.checkpoints.is_dir():
        inside = layout.checkpoints.is_relative_to(layout.output)  # then nothing of anybody else's lies there
        own = [path for path in sorted(layout.checkpoints.iterdir()) if _is_checkpoint_of(path, None if inside else job)]
        moves += [(path, layout.checkpoints / target.name / path.name) for path in own]
    if (saved := layout.script_checkpoints) is not None and saved != layout.output / "checkpoints" and saved.is_dir():
        moves += [(path, saved / target.name / path.name) for path in sorted(saved.glob(_OF_SCRIPT)) if path.is_dir()]
    return moves


def _is_checkpoint_of(path: Path, job: str | None) -> bool:
    """``job`` None: of any, also one that is not complete."""
    try:
        parse_checkpoint_name(path.name)
        if job is None:
            return True
        with (path / "manifest.json").open("rb") as file:
            return bool(json.loads(file.read(_LARGEST_MANIFEST)).get("job") == job)
    except (OSError, ValueError, AttributeError):
        return False
