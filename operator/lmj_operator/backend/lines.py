"""Lines in bytes that come in parts."""

from collections.abc import Iterator


def whole_lines(rest: bytearray, part: bytes) -> Iterator[bytes]:
    """Lines that have their end with ``part``, without it; the begin of the next is left in ``rest`` when all were taken."""
    begin, seen = 0, len(rest)
    rest += part
    while (end := rest.find(b"\n", max(begin, seen))) >= 0:
        line, begin = bytes(rest[begin:end]), end + 1
        yield line
        del line  # the next may be long in coming
    del rest[:begin]
