"""Which checkpoints go, and how they go."""

from collections.abc import Collection, Iterable, Sequence

from lmj_api.names import parse_checkpoint_name, run_of_checkpoint
from lmj_api.protocol import CheckpointInfo
from lmj_api.run import Run
from lmj_trainer.checkpoint.owner import OWNER_FILE
from lmj_trainer.checkpoint.write import MANIFEST
from lmj_trainer.store.port import Ref


def is_checkpoint(name: str) -> bool:
    """Whether ``name`` is one of a checkpoint's folder; nothing else in the checkpoint folder is ever touched."""
    try:
        parse_checkpoint_name(name)
    except ValueError:
        return False
    return True


def surplus(
    checkpoints: Iterable[CheckpointInfo],
    keep: int,
    run: Run | None = None,
    others: Collection[str] = (),
    every: int | None = None,
) -> list[str]:
    """Names of the checkpoints that may go, oldest first: all but the newest ``keep``, the best, and milestones.

    A milestone is the first checkpoint from a multiple of ``every`` steps on, before the next multiple.

    One with a problem neither goes (it may be the user's only copy, and evidence) nor counts. Of several that were the best
    in their time the newest is the best: it beat the others. ``run``: whose are the newer of one step. So what an earlier run has left,
    and this one has begun with, goes when it has ``keep`` of its own. ``others``: names of those that are nobody's to remove, because they are
    another job's or a later run's. Raises ValueError when ``keep`` is less than 1.
    """
    if keep < 1:
        raise ValueError(f"keep {keep}: at least one checkpoint must stay")

    def age(checkpoint: CheckpointInfo) -> tuple[int, bool, int]:
        step, view = parse_checkpoint_name(checkpoint.name)
        return step, run is None or run_of_checkpoint(checkpoint.name) == run.short, view

    by_age = sorted((c for c in checkpoints if c.problem is None and c.name not in others), key=age, reverse=True)
    # Of one step the newest view's is enough.
    good = [c for i, c in enumerate(by_age) if i == 0 or by_age[i - 1].step != c.step]
    best = next((c.name for c in good if c.best), None)
    stay = {*(c.name for c in good[:keep]), best, *_milestones(good, every)}
    return [c.name for c in reversed(by_age) if c.name not in stay]


def _milestones(good: Sequence[CheckpointInfo], every: int | None) -> Iterable[str]:
    """``good``: one of each step, newest first."""
    if every is None:
        return ()
    # The later ones of a span are written over by the first.
    first = {c.step // every: c.name for c in good}
    return (name for span, name in first.items() if span > 0)


def remove(root: Ref, names: Sequence[str]) -> None:
    """Remove the checkpoints ``names`` in ``root``. A name that is gone already is no error.

    Raises ValueError for a name that is no checkpoint's, OSError when the disk refuses.
    """
    for name in names:
        parse_checkpoint_name(name)
    for name in names:
        if (root / name).is_folder():
            discard(root / name)


def discard(folder: Ref) -> None:
    """Remove a checkpoint's folder: the manifest first, the owner's file last.

    So a removal that is torn leaves a half-written checkpoint, never a torn one that claims to be good, and a later clean-up knows
    whose it is.
    """
    (folder / MANIFEST).delete()
    for name in folder.files():
        if name != OWNER_FILE:
            (folder / name).delete()
    (folder / OWNER_FILE).delete()
    folder.remove()
