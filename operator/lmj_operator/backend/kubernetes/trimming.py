"""How many parts a field of what the API server delivers may have, before anybody parses it.

Three bytes are enough for a list of its own: a job of a megabyte and a half may be half a million of them, and to parse it as a whole
stops the loop for a tenth of a second, whenever somebody touches it. A job that large is refused, so the rest of such a field is left out.
"""

import re

from lmj_api.size import MOST_VALUES
from lmj_operator.backend.rounds import turn

FEW = 30_000
"""Parts of an object that is parsed as it is, in some milliseconds."""
MOST = 2 * MOST_VALUES + 10
"""Parts of a field that is kept whole. A value has a bracket and a comma at most, so one that is cut has more than a job may have."""
OBJECT, EVENT = 2, 3
"""Levels at which fields begin, such as ``spec.template``: in an object, and in an event of a watch, which has one."""
LONG = 32 << 10
"""Bytes of what waits for a slice of the loop before it is parsed: a dozen watches may bring something large at the same time."""
TURN = 10_000
"""Tokens after which others have their turn."""
# Possessive, for else it remembers a way back for each of a million escapes.
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[\]{},]', re.DOTALL)
_QUOTE, _COMMA = b'",'
_OPEN = b"[{"
_CLOSERS = bytes.maketrans(b"[{", b"]}")
_STATUS = b'"status"'
"""It is the operator's own, and of bounded size: half of it would be another."""


def few(data: bytes) -> bool:
    """Whether ``data``, JSON, has few parts for sure."""
    return len(data) <= FEW or data.count(b",") + data.count(b"[") + data.count(b"{") <= FEW


async def trimmed(data: bytes, level: int) -> bytes:
    """``data``, which is JSON, where fields at ``level`` end early that have too many parts; not those of a status. It is to be parsed next: one
    that is long has waited for a slice of the loop.
    """
    kept = data if few(data) else await _shortened(data, level)
    if len(kept) > LONG:
        await turn()
    return kept


async def _shortened(data: bytes, level: int) -> bytes:
    kept, begin = list[bytes](), 0
    opened, parts, parent, key, cut = bytearray(), 0, b"", b"", -1
    for number, token in enumerate(_TOKEN.finditer(data)):
        if number % TURN == TURN - 1:
            await turn()
        code = data[token.start()]
        if code == _QUOTE:
            if len(opened) == level - 1:
                key = token[0]
        elif code in _OPEN:
            if len(opened) == level - 1:
                parent = key
            opened.append(code)
            parts += 1
        elif code == _COMMA:
            parts += 1
            if len(opened) <= level:
                parts = 0
            elif parts > MOST and cut < 0 and parent != _STATUS:
                # What is before a comma is whole, but for what is open.
                cut = token.start()
                kept += [data[begin:cut], bytes(opened[level:]).translate(_CLOSERS)[::-1]]
        elif opened:
            opened.pop()
            if len(opened) == level and cut >= 0:
                begin, cut = token.end(), -1
    return b"".join([*kept, data[begin:]]) if cut < 0 else b"".join(kept)
