"""Who may write a checkpoint, and who may remove one: no member of a view that is over, though nobody could tell it so."""

import re

from lmj_api.manifest import Manifest
from lmj_api.names import checkpoint_name, parse_checkpoint_name
from lmj_api.run import Run
from lmj_trainer.checkpoint.owner import Owner
from lmj_trainer.checkpoint.prune import is_checkpoint
from lmj_trainer.checkpoint.scan import survey_one
from lmj_trainer.store.port import Ref

_OVER = re.compile(r"\.over-v([1-9][0-9]*)-([0-9a-f]{8})")


def declare_over(root: Ref, run: Run, view: int) -> None:
    """Leave word in ``root`` that ``view`` of ``run``, and all before it, are over. Raises OSError.

    Who looks for the newest checkpoint does this first. A member of such a view that finds no word after its manifest is in place knows
    that every reader sees its checkpoint, and so that the next view does not stand on one that it removes for its own.
    """
    if not root.is_folder():
        return  # nobody has written anything
    older = [name for name, number in _declared(root, run) if number < view]
    (root / f".over-v{view}-{run.short}").create()
    for name in older:
        (root / name).delete()


def newest_over(root: Ref, run: Run) -> int:
    """The newest view of ``run`` that is declared to be over in ``root``; 0: none is. Raises OSError."""
    return max((number for _, number in _declared(root, run)), default=0)


def successor(root: Ref, mine: Manifest) -> str | None:
    """The name of a checkpoint in ``root`` that a view newer than that of ``mine`` has written in the same run; None: there is none.

    Between this look and a manifest's rename a newer view may write its first; then an older view's checkpoint stands beside it, in a
    folder of its own: a true state of the same run. The plan does not go back to one of a step that the newer view has done itself.
    """
    owner = Owner.of(mine)
    for name in folders(root):
        step, view = parse_checkpoint_name(name)
        if view <= mine.view or name != checkpoint_name(step, view, owner.run):
            continue  # not newer, or another run's, whose views are counted again
        manifest = survey_one(root / name)
        if manifest is not None and manifest.view == view and owner.same_run(Owner.of(manifest)):
            return name
    return None


def folders(root: Ref) -> list[str]:
    """Names of all checkpoint folders in ``root``; none while it is not there. Raises OSError when it cannot be listed."""
    try:
        return [name for name in root.folders() if is_checkpoint(name)]
    except FileNotFoundError:
        return []


def _declared(root: Ref, run: Run) -> list[tuple[str, int]]:
    try:
        found = [match for name in root.files() if (match := _OVER.fullmatch(name)) is not None]
    except FileNotFoundError:
        return []
    return [(match[0], int(match[1])) for match in found if match[2] == run.short]
