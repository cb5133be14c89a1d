"""What all machines of a job have to have alike, where they share no volume: the first that says so in object storage decides."""

from __future__ import annotations

from xxhash import xxh3_128

from lmj_trainer.errors import OutageError
from lmj_trainer.store.registry import open_place
from lmj_trainer.wording import one_line

_FOLDER = ".agreed"
_LONGEST = 4 << 20


def agreed(results: str | None, what: str, content: str) -> str:
    """What all have as ``what``: ``content``, or that of who came first. ``results``: the job's, in object storage; None: all share a volume,
    where the first is found. Raises OutageError where storage does not answer.
    """
    if results is None:
        return content
    ref = open_place(results) / _FOLDER / xxh3_128(what.encode()).hexdigest()
    try:
        return content if ref.create(content.encode()) else ref.get(0, _LONGEST).decode(errors="replace")
    except OSError as error:
        raise OutageError(f"what the job's machines have as {what} cannot be told: {one_line(error)}") from error
