"""The good checkpoints that rank 0 knows, and which of them go when there is another."""

import threading
from collections.abc import Collection

from lmj_api.manifest import Manifest
from lmj_api.names import parse_checkpoint_name
from lmj_api.protocol import CheckpointInfo
from lmj_trainer.checkpoint.fence import newest_over, successor
from lmj_trainer.checkpoint.owner import Owner
from lmj_trainer.checkpoint.prune import remove, surplus
from lmj_trainer.store.port import Ref


class Retention:
    """Of one worker, from view to view. A checkpoint of a view that is over may still be under way in the next one."""

    def __init__(self, root: Ref, keep: int, owner: Owner, every: int | None = None) -> None:
        """``keep``, ``every``: as of ``spec.checkpoint``."""
        self._root, self._keep, self._every, self._owner = root, keep, every, owner
        self._lock = threading.Lock()
        self._known: list[CheckpointInfo] = []
        self._others: frozenset[str] = frozenset()

    @property
    def known(self) -> list[CheckpointInfo]:
        """Those that the view builds on, and those that were made in it. Each view has a list of its own: it tells views apart."""
        return self._known

    def begin(self, known: list[CheckpointInfo], others: Collection[str]) -> None:
        """A view begins that builds on ``known``. ``others``: names of those that are not this run's to remove."""
        with self._lock:
            self._known, self._others = list(known), frozenset(others)

    def over(self, mine: Manifest) -> tuple[int, str] | None:
        """The first view that can follow that of ``mine``, which is over, and how that is known; None: it is not known. Raises OSError."""
        newer = successor(self._root, mine)
        if newer is not None:
            return parse_checkpoint_name(newer)[1], f"{newer} is of a newer view, so view {mine.view} is over"
        declared = newest_over(self._root, self._owner.run)
        return (declared + 1, f"view {declared} was declared over") if declared >= mine.view else None

    def add(self, mine: Manifest, info: CheckpointInfo, before: list[CheckpointInfo]) -> list[str]:
        """Know ``mine``, which is in place, and remove what is too much: names of those that went. Raises OSError.

        ``before``: :attr:`known` when it was begun. None goes when its view is over: a reader that looked for the newest checkpoint before
        ``mine`` was there has declared that first, and goes on from one of those. Who looks later sees ``mine``.
        """
        older = [c.model_copy(update={"best": False}) if info.best else c for c in before if c.name != info.name]
        now = [*older, info]
        with self._lock:
            if self._known is not before:
                return []  # the next view has begun here
            self._known = now
        if self.over(mine) is not None:
            return []
        removed = surplus(now, self._keep, mine.run, self._others, self._every)
        remove(self._root, removed)
        with self._lock:
            if self._known is now:
                self._known = [c for c in now if c.name not in removed]
        return removed
