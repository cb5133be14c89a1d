"""Who may write a checkpoint: no member of a view that another has followed, though nobody could tell it so."""

import os
from collections.abc import Collection
from pathlib import Path

from lmj_api.manifest import Manifest
from lmj_trainer.checkpoint.prune import is_checkpoint
from lmj_trainer.checkpoint.scan import survey_one


def folders(root: Path) -> list[str]:
    """Names of all checkpoint folders in ``root``; none while it is not there. Raises OSError when it cannot be listed."""
    try:
        return [name for name in os.listdir(root) if is_checkpoint(name)]
    except FileNotFoundError:
        return []


def successor(root: Path, mine: Manifest, foreign: Collection[str]) -> str | None:
    """The name of a checkpoint in ``root`` that a view newer than that of ``mine`` has written for the same job; None: there is none.

    ``foreign``: names that were there when the view began. They are of earlier runs, whose views were counted anew.
    Between this look and a manifest's rename a newer view may write its first; then an older view's checkpoint stands beside it, in a
    folder of its own: a true state of the same run. The plan does not go back to one of a step that the newer view has done itself.
    """
    for name in folders(root):
        if name in foreign:
            continue
        manifest = survey_one(root / name)
        if manifest is None or manifest.view <= mine.view:
            continue
        if (manifest.job, manifest.state_digest) == (mine.job, mine.state_digest):
            return name
    return None
