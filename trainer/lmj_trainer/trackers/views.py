"""The file of views: which there were, and why. Written by the agent of rank 0, for what shows the run elsewhere."""

import os
from pathlib import Path
from typing import Annotated

from pydantic import Field

from lmj_api.base import Message
from lmj_api.bounds import Count, LongLine, Time
from lmj_api.run import UUID
from lmj_api.view import View


class ViewLine(Message):
    """One view."""

    run: Annotated[str, Field(pattern=UUID)]
    """Id of the run."""
    view: Count
    """Its number."""
    step: Count
    """Committed steps from which it went on."""
    reason: LongLine
    """Why it was formed."""
    time: Time
    """When its rank 0 had joined it, seconds since the epoch."""


def add_view(path: Path, run: str, view: View, now: float) -> None:
    """Add ``view`` to the file at ``path``. One that is added twice is one. Raises OSError."""
    line = ViewLine(run=run, view=view.number, step=view.resume.step, reason=view.reason, time=now)
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        size = os.fstat(file).st_size
        # One that was torn ends here, and takes no other with it.
        torn = size > 0 and os.pread(file, 1, size - 1) != b"\n"
        os.write(file, (b"\n" if torn else b"") + line.to_json().encode() + b"\n")
    finally:
        os.close(file)
