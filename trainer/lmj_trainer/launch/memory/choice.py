"""The snapshot that all nodes of a view go on from. Pure, but for the look into a node's own folder."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lmj_trainer.launch.memory.folder import key_of, snapshots
from lmj_trainer.launch.memory.place import DIR, EVERY, RESTORE, WAIT


@dataclass(frozen=True)
class Held:
    """What a node has in memory."""

    names: tuple[str, ...] = ()
    """Of its complete snapshots, newest first, two at most."""
    whole: tuple[str, ...] = ()
    """Of those of them that other nodes can go on from, too."""
    fetches: bool = False
    """It can take one over from another node."""


@dataclass(frozen=True)
class Choice:
    """What all go on from."""

    name: str | None = None
    """None: there is no snapshot that all can have."""
    givers: Mapping[int, int] = field(default_factory=dict)
    """The rank that has it, from each that does not have it yet."""


def held(folder: Path | None, ranks: Collection[int], world: int, fetches: bool = False) -> Held:
    """What is in ``folder``, for a node with ``ranks`` of ``world``; nothing where there is no folder.

    A snapshot that is not whole is nothing to a node that has another place than when it was taken.
    """
    complete = [] if folder is None else snapshots(folder)[:2]
    found = [snapshot for snapshot in complete if snapshot.whole or (snapshot.world == world and snapshot.ranks >= set(ranks))]
    return Held(
        tuple(snapshot.path.name for snapshot in found),
        tuple(snapshot.path.name for snapshot in found if snapshot.whole),
        fetches and folder is not None,
    )


def choose(held: Mapping[int, Held], view: int = 0) -> Choice:
    """The newest snapshot that each of the ranks has or can fetch. What is no name of a snapshot is none.

    A snapshot that is not whole counts where all have it: what belongs to each rank is on its own node then. ``view``: its number. In
    each view another one gives, so that one that cannot does not stand in the way of those that can.
    """
    named = {name: key for one in held.values() for name in one.names if (key := key_of(name)) is not None}
    for name in sorted(named, key=lambda name: named[name], reverse=True):
        lacking = [rank for rank in sorted(held) if name not in held[rank].names]
        having = [rank for rank in sorted(held) if name in held[rank].whole]
        if not lacking or (having and all(held[rank].fetches for rank in lacking)):
            return Choice(name, {rank: having[(view + number) % len(having)] for number, rank in enumerate(lacking)})
    return Choice()


def step_in_memory(chosen: str | None) -> int:
    """The step of a snapshot by its name; 0: there is none."""
    key = None if chosen is None else key_of(chosen)
    return 0 if key is None else key[1]


def variables(folder: Path, every: int, wait: float, chosen: str | None) -> dict[str, str]:
    """What a process is told. ``wait``: seconds that it waits for the others at a snapshot."""
    told = {DIR: str(folder), EVERY: str(every), WAIT: f"{wait:g}"}
    return told if chosen is None else {**told, RESTORE: str(folder / chosen)}
