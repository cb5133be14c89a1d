"""How deep what the API server delivers may be nested, before anybody parses it.

A user who may make a job writes its template, of which the server bounds only the size. A parser, and code that walks through a value,
gives up at a depth of its own, and that would end more than the one job.
"""

import json
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from pydantic_core import from_json

DEEPEST = 128
"""Levels that are read. It is more than any object needs, and more than a job's spec may have: one that is cut is refused anyway."""

_STEPS = (0, 1, -1)
_BRACKETS = bytes(1 if code in b"[{" else 2 if code in b"]}" else 0 for code in range(256))
"""What each byte does to the depth, as an index of _STEPS."""
_OTHERS = bytes(code for code in range(256) if not _BRACKETS[code])


def parsed(data: bytes) -> Any:
    """What ``data`` says, as :func:`shallow` leaves it. Raises ValueError when it is no JSON.

    For what comes by the dozen for each job: pydantic's parser takes a third of the time of counting levels and parsing. It gives up at 200.
    """
    try:
        return from_json(data)
    except ValueError:
        return json.loads(shallow(data))


def shallow(data: bytes, deepest: int = DEEPEST) -> bytes:
    """JSON as it is, with null in the place of what is nested deeper than ``deepest`` levels."""
    if data.count(b"[") + data.count(b"{") <= deepest:
        return data
    # A pod's start brings a dozen of its objects: what is done with each of them must cost less than to parse it.
    parts = data.replace(b"\\\\", b"__").replace(b'\\"', b"__").split(b'"')
    if max(_depths(b"".join(parts[::2]).translate(_BRACKETS, _OTHERS)), default=0) <= deepest:
        return data
    parts[1::2] = [b" " * len(text) for text in parts[1::2]]
    deep = bytes(map(deepest.__lt__, _depths(b" ".join(parts).translate(_BRACKETS))))
    kept, begin = [], 0
    while (cut := deep.find(1, begin)) >= 0:
        end = deep.find(0, cut)
        kept += [data[begin:cut], b"null"]
        begin = end + 1 if end >= 0 else len(data)
    return b"".join([*kept, data[begin:]])


def _depths(brackets: bytes) -> Iterator[int]:
    return accumulate(map(_STEPS.__getitem__, brackets))
