"""A text of which one is kept for each of many jobs or agents: compressed where it is long, because it is seldom read."""

import zlib
from base64 import b64decode, b64encode

LONG = 16 << 10
"""Characters; a text that has no more is left as it is."""
_MARK = "zlib:"
"""No JSON begins so."""


def packed(text: str, long: int = LONG) -> str:
    """``text``, which is JSON, or what :func:`unpacked` makes ``text`` of. ``long``: the characters of one that is left as it is, at most."""
    return text if len(text) <= long else _MARK + b64encode(zlib.compress(text.encode(), 1)).decode()


def unpacked(text: str) -> str:
    """What was packed."""
    return zlib.decompress(b64decode(text[len(_MARK) :])).decode() if is_packed(text) else text


def is_packed(text: str) -> bool:
    """Whether it was long."""
    return text.startswith(_MARK)
