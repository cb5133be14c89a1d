"""Who may write into a folder that several machines share: whoever came last."""

from __future__ import annotations

import logging
import os
from pathlib import Path

log = logging.getLogger(__name__)


class Fence:
    """A small file that is another one as soon as somebody else comes.

    Pods that nobody can reach, with storage that they can, go on in the view that they are in. What they did would be written among what
    is done in their place. Where the file cannot be written there is no fence, as there is no storage to be kept clean.
    Checkpoints, which may lie elsewhere, are kept apart by their manifests (:mod:`lmj_trainer.checkpoint.fence`).
    """

    def __init__(self, path: Path) -> None:
        """From now on this is who came last. The folder is there."""
        self._path = path
        self._mine: tuple[int, int] | None = None
        partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        try:
            # Not synced: after a power cut there is nobody left to be kept out.
            partial.write_bytes(os.urandom(16))
            os.replace(partial, path)
            self._mine = self._now()
        except OSError as error:
            log.warning("%s cannot be written, so a group that nobody can reach is not kept out: %s", path, error)

    def holds(self) -> bool:
        """Whether nobody came since; True too when that cannot be told."""
        try:
            return self._mine is None or self._now() == self._mine
        except OSError:
            return True

    def _now(self) -> tuple[int, int]:
        found = os.stat(self._path)
        # A number of a file that is gone is given to another.
        return found.st_ino, found.st_mtime_ns
