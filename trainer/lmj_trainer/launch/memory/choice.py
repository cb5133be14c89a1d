"""The snapshot that all nodes of a view go on from. Pure, but for the look into a node's own folder."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from lmj_trainer.launch.memory.folder import key_of, snapshots
from lmj_trainer.launch.memory.place import DIR, EVERY, RESTORE


def held(folder: str | None) -> tuple[str, ...]:
    """Names of the complete snapshots in ``folder``, newest first, two at most; none where there is no folder."""
    return () if folder is None else tuple(snapshot.path.name for snapshot in snapshots(Path(folder)))[:2]


def newest_of_all(have: Iterable[Sequence[str]]) -> str | None:
    """The newest name that each of ``have`` has; None: there is none. What is no name of a snapshot is none."""
    sets = [set(names) for names in have]
    common = set.intersection(*sets) if sets else set()
    keyed = [(key, name) for name in common if (key := key_of(name)) is not None]
    return max(keyed)[1] if keyed else None


def variables(folder: str, every: int, chosen: str | None) -> dict[str, str]:
    """What a process is told."""
    told = {DIR: folder, EVERY: str(every)}
    return told if chosen is None else {**told, RESTORE: str(Path(folder) / chosen)}
