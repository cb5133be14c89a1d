"""How deep what the API server delivers may be nested, before anybody parses it.

A user who may make a job writes its template, of which the server bounds only the size. A parser, and code that walks through a value,
gives up at a depth of its own, and that would end more than the one job.
"""

import json
import re
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
# Possessive, for else it remembers a way back for each of a million escapes.
TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[\]{}]', re.DOTALL)
"""A text, or a bracket that is in none."""
_QUOTE, _OPEN = ord('"'), b"[{"


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
    kept, begin, depth = list[bytes](), 0, 0
    for token in TOKEN.finditer(data):
        code = data[token.start()]
        if code == _QUOTE:
            continue
        if code in _OPEN:
            depth += 1
            if depth == deepest + 1:
                kept.append(data[begin : token.start()])
        else:
            if depth == deepest + 1:
                kept.append(b"null")
                begin = token.end()
            depth -= 1
    return b"".join([*kept, b"null"] if depth > deepest else [*kept, data[begin:]])


def _depths(brackets: bytes) -> Iterator[int]:
    return accumulate(map(_STEPS.__getitem__, brackets))
