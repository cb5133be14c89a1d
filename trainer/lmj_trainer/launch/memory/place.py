"""Where a process of a script keeps its snapshots, and which it goes on from: what its environment says."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

DIR, EVERY, RESTORE, WAIT = "LMJ_MEMORY_DIR", "LMJ_MEMORY_EVERY", "LMJ_MEMORY_RESTORE", "LMJ_MEMORY_WAIT"
VARIABLES = (DIR, EVERY, RESTORE, WAIT)


@dataclass(frozen=True)
class Place:
    """A process's place among those that take snapshots together."""

    folder: Path
    """Has the snapshots of all processes of this node."""
    every: int
    """Steps from one snapshot to the next."""
    restore: Path | None
    """The snapshot to go on from."""
    view: int
    """Differs each time that the script's processes are started."""
    rank: int
    world: int
    part: int
    """The process's number in its node, from 0. Part 0 has what is the same on all ranks."""
    parts: int
    """Processes of this node."""
    wait: float = 300.0
    """Seconds that it waits for the other ranks at a snapshot: some may write so much longer."""

    @classmethod
    def of(cls, environment: Mapping[str, str] = os.environ) -> Place | None:
        """That which ``environment`` names; None: there is to be no memory. Raises ValueError: it contradicts itself."""
        folder = environment.get(DIR)
        if not folder:
            return None

        def number(name: str, unset: int, least: int) -> int:
            text = environment.get(name, str(unset))
            if not text.isdigit() or int(text) < least:
                raise ValueError(f"{name}={text!r}: it is a whole number of {least} or more")
            return int(text)

        restore = environment.get(RESTORE)
        return cls(
            folder=Path(folder),
            every=number(EVERY, 1, 1),
            restore=Path(restore) if restore else None,
            view=number("LMJ_VIEW", 0, 0),
            rank=number("RANK", 0, 0),
            world=number("WORLD_SIZE", 1, 1),
            part=number("LOCAL_RANK", 0, 0),
            parts=number("LOCAL_WORLD_SIZE", 1, 1),
            wait=float(environment.get(WAIT) or cls.wait),
        )
