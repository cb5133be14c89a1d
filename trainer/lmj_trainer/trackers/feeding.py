"""Feeding a tracker until the run is over: whatever it does, it is tried again, and what is wrong with it is told once."""

import logging
import threading
import time
from collections.abc import Callable, Iterable

from lmj_trainer.trackers.tracking import Tracking
from lmj_trainer.wording import one_line

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0
"""Between two looks at what was recorded."""
LONGEST_PAUSE_SECONDS = 60.0


class Orders:
    """What the agent wants. Any thread may say so."""

    def __init__(self) -> None:
        self._turn = threading.Condition()
        self.held = False
        """Another pod leads: it feeds the tracker."""
        self.leaves = False
        """The run goes on elsewhere, or later."""
        self.deadline: float | None = None
        """The run is complete: what is left is to be logged until then, by the monotonic clock."""

    def hold(self, held: bool) -> None:
        """Log nothing meanwhile, or go on."""
        with self._turn:
            self.held = held
            self._turn.notify_all()

    def leave(self) -> None:
        """Stop after what is recorded now."""
        with self._turn:
            self.leaves = True
            self._turn.notify_all()

    def end(self, seconds: float) -> None:
        """The run is complete."""
        with self._turn:
            self.deadline = time.monotonic() + seconds
            self._turn.notify_all()

    def wait(self, seconds: float) -> None:
        """Wait so long, or until something is wanted."""
        with self._turn:
            held = self.held
            self._turn.wait_for(lambda: self.leaves or self.deadline is not None or self.held != held, seconds)


def feed(
    tracking: Tracking,
    orders: Orders,
    warn: Callable[[str], None],
    show: Callable[[str], None],
    *,
    name: str,
    secrets: Iterable[str],
    again: str,
    poll: float = POLL_SECONDS,
) -> bool:
    """Feed ``tracking`` until ``orders`` end it; whether all was logged.

    ``warn`` is told once when the tracker fails, until it works again, and at the end of what it did not take; ``show`` where the run is seen.
    ``secrets`` are in no word. ``again``: what sends the rest later.
    """
    hidden = [secret for secret in secrets if secret]
    pause, failing, shown = 0.0, "", False
    while True:
        leaves, deadline = orders.leaves, orders.deadline
        held = orders.held and deadline is None
        if held and not leaves:
            orders.wait(LONGEST_PAUSE_SECONDS)
            continue
        try:
            more = False if held else tracking.turn(last=deadline is not None)
            if tracking.place is not None and not shown:
                shown = True
                show(tracking.place)
            if not more and (leaves or deadline is not None):
                tracking.end(complete=deadline is not None)
                return True
        except Exception as error:  # noqa: BLE001 - whatever a tracker's library raises, training has nothing to do with it
            why = _without(one_line(error) or type(error).__name__, hidden)
            log.warning("%s: %s: %s", name, type(error).__name__, why)
            pause, more = min(2 * pause or poll, LONGEST_PAUSE_SECONDS), False
            if not failing and deadline is None:
                warn(f"{name} fails: {why}; training goes on, and it gets everything when it works again")
            failing = why
        else:
            pause, failing = 0.0, ""
        if leaves:
            return False
        left = deadline - time.monotonic() if deadline is not None else None
        if left is not None and left <= 0:
            warn(
                f"{name} did not take all: {failing or 'it is too slow'}; it has the steps up to {tracking.step}; {again} sends the rest"
            )
            return False
        if more:
            continue
        if deadline is not None:
            _sleep(min(pause or poll, left or 0.0))
        else:
            orders.wait(max(poll, pause))


def _sleep(seconds: float) -> None:
    time.sleep(max(0.01, seconds))


def _without(text: str, secrets: Iterable[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, "***")
    return text
