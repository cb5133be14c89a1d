"""Half-written checkpoints of views that are over: how they are known, and how they go."""

import contextlib
import os
from pathlib import Path

from lmj_api.names import parse_checkpoint_name
from lmj_trainer.checkpoint.owner import OWNER_FILE, Owner
from lmj_trainer.checkpoint.prune import discard, is_checkpoint
from lmj_trainer.checkpoint.write import MANIFEST

_GOING = ".gone"


def sign(folder: Path, owner: Owner) -> None:
    """Write whose checkpoint is written in ``folder``, one line. Every rank may; nothing depends on it but that the folder may go."""
    with contextlib.suppress(FileExistsError), (folder / OWNER_FILE).open("x") as file:  # another rank was first
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
        discard(aside)
        gone.append(name)
    return gone


def _is_litter(folder: Path, older: bool, owner: Owner) -> bool:
    """``older``: its view's number is lower, if it is of the same run."""
    if folder.is_symlink() or (folder / MANIFEST).exists():
        return False
    try:
        theirs = Owner.parse((folder / OWNER_FILE).read_text())
    except (FileNotFoundError, NotADirectoryError, UnicodeDecodeError):
        return False
    return theirs is not None and (owner.succeeds(theirs) or (older and owner.same_run(theirs)))
