"""How a benchmark ends when it is told to."""

from __future__ import annotations

import signal
import sys


def clean_up_when_told() -> None:
    """Leave by the clean-up: what a benchmark starts has sessions of its own, and nobody else ends it.

    SIGINT too: it is ignored in what a shell has started in the background.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(130))
