"""Half-written checkpoints of views that are over: how they are known, and how they go."""

import contextlib

from lmj_api.names import parse_checkpoint_name
from lmj_trainer.checkpoint.owner import OWNER_FILE, Owner
from lmj_trainer.checkpoint.prune import discard, is_checkpoint
from lmj_trainer.checkpoint.write import MANIFEST
from lmj_trainer.store.port import GONE, Ref


def sign(folder: Ref, owner: Owner) -> None:
    """Write whose checkpoint is written in ``folder``, one line. Every rank may, and the first does; nothing depends on it but that the folder
    may go.
    """
    (folder / OWNER_FILE).create(owner.line.encode())


def clear(root: Ref, view: int, owner: Owner) -> list[str]:
    """Remove what views before ``view`` of ``owner``, and its job's earlier runs, left without a manifest in ``root``: names of what went.

    A member of such a view may still be writing there, because nobody could tell it that its view is over. So a folder is withdrawn
    first: whatever is written to its old name after that makes no checkpoint, and goes the next time. Of folders that stay, only what is
    unfinished and old goes.
    Raises OSError when the disk refuses.
    """
    gone: list[str] = []
    try:
        entries = root.folders()
    except FileNotFoundError:
        return gone
    for entry in entries:
        name = entry.removeprefix(".").removesuffix(GONE) if entry.startswith(".") else entry
        if not is_checkpoint(name):
            continue
        older = parse_checkpoint_name(name)[1] < view
        if not _is_litter(root / entry, older, owner):
            if older and _is_hollow(root / entry):
                with contextlib.suppress(OSError):  # somebody writes there after all
                    (root / entry).remove()
            else:
                (root / entry).tidy()
            continue
        aside = (root / entry).withdraw(MANIFEST) if entry == name else root / entry
        if aside is None:
            continue  # it was finished after all, a moment ago
        discard(aside)
        gone.append(name)
    return gone


def _is_hollow(folder: Ref) -> bool:
    """Whether nothing lies in it, as where a crash came between the folder and its first file, or after its last: nothing says whose it is."""
    try:
        return not folder.files() and not folder.folders()
    except FileNotFoundError:
        return False


def _is_litter(folder: Ref, older: bool, owner: Owner) -> bool:
    """``older``: its view's number is lower, if it is of the same run."""
    if (folder / MANIFEST).exists():
        return False
    try:
        theirs = Owner.parse((folder / OWNER_FILE).get().decode())
    except (FileNotFoundError, UnicodeDecodeError):
        return False
    return theirs is not None and (owner.succeeds(theirs) or (older and owner.same_run(theirs)))
