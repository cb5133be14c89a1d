"""How a benchmark ends when it is told to."""

from __future__ import annotations

import signal
import sys

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def clean_up_when_told() -> None:
    """Leave by the clean-up: what a benchmark starts has sessions of its own, and nobody else ends it.

    SIGINT too: it is ignored in what a shell has started in the background. Told again, by make and by who ended make, it goes on with the
    clean-up.
    """
    for number in _SIGNALS:
        signal.signal(number, _leave)


def _leave(*_: object) -> None:
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    sys.exit(130)
