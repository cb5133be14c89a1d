"""Half-written checkpoints of views that are over: how they are known, and how they go."""

import contextlib
import os
from pathlib import Path

from lmj_api.names import parse_checkpoint_name
from lmj_trainer.checkpoint.owner import Owner
from lmj_trainer.checkpoint.prune import is_checkpoint
from lmj_trainer.checkpoint.write import MANIFEST, sync_folder

_OWNER = ".owner"
"""File name of whose checkpoint it is to be, before there is a manifest that says so."""
_GOING = ".gone"


def sign(folder: Path, owner: Owner) -> None:
    """Write whose checkpoint is written in ``folder``, one line. Every rank may; nothing depends on it but that the folder may go."""
    with contextlib.suppress(FileExistsError), (folder / _OWNER).open("x") as file:  # another rank was first
        file.write(owner.line)


def clear(root: Path, view: int, owner: Owner) -> list[str]:
    """Remove what views before ``view`` of ``owner``, and its job's earlier runs, left without a manifest in ``root``: names of what went.

    A member of such a view may still be writing there, for nobody could tell it that its view is over. So a folder is moved aside
    first: whatever is written to its old name after that makes no checkpoint, for the parts are not there, and goes the next time.
    Raises OSError when the disk refuses.
    """
    gone: list[str] = []
    try:
        entries = sorted(os.listdir(root))
    except FileNotFoundError:
        return gone
    for entry in entries:
        name = entry.removeprefix(".").removesuffix(_GOING) if entry.startswith(".") else entry
        if not is_checkpoint(name) or not _is_litter(root / entry, parse_checkpoint_name(name)[1] < view, owner):
            continue
        aside = root / f".{name}{_GOING}"
        if entry == name:
            os.rename(root / name, aside)
            if (aside / MANIFEST).exists():
                # It was finished after all, a moment ago.
                os.rename(aside, root / name)
                continue
        _remove(aside)
        gone.append(name)
    return gone


def _is_litter(folder: Path, older: bool, owner: Owner) -> bool:
    """``older``: its view's number is lower, if it is of the same run."""
    if folder.is_symlink() or (folder / MANIFEST).exists():
        return False
    try:
        theirs = Owner.parse((folder / _OWNER).read_text())
    except (FileNotFoundError, NotADirectoryError, UnicodeDecodeError):
        return False
    return theirs is not None and (owner.succeeds(theirs) or (older and owner.same_run(theirs)))


def _remove(folder: Path) -> None:
    for entry in sorted(os.listdir(folder), key=lambda name: name == _OWNER):
        os.unlink(folder / entry)
    os.rmdir(folder)
    sync_folder(folder.parent)
