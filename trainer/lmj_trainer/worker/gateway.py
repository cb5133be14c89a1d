"""A worker behind its pod's relay."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from lmj_api.protocol import CUT_OFF
from lmj_trainer.errors import CutOffError
from lmj_trainer.relay.line import RelayError, RelayLine

PATIENCE_SECONDS = 30.0
"""For a relay that starts when the worker does."""


def gateway_of(relay: Path | None) -> RelayLine | None:
    """The line to the relay at ``relay``; None: there is none. The worker ends when the relay does. Raises CutOffError: it is not there."""
    if relay is None:
        return None
    try:
        line = RelayLine(relay, PATIENCE_SECONDS)
        line.on_end(_leave)
    except RelayError as error:
        raise CutOffError(str(error)) from error
    return line


def _leave() -> None:
    """The next worker maps the same memory, and publishes itself to the next relay."""
    sys.stderr.write("nobody can connect to this worker any more: its pod's relay has ended\n")
    sys.stderr.flush()
    # From a thread, and with RPC threads running: nothing that Python does at exit is wanted.
    os._exit(CUT_OFF)
