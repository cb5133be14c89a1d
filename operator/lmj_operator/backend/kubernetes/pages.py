"""A page of a list of objects, each parsed by itself: all of it at once may be a hundred times as much, and would stop the loop for seconds."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from lmj_operator.backend.kubernetes.nesting import TOKEN, parsed
from lmj_operator.backend.kubernetes.trimming import OBJECT, few, trimmed
from lmj_operator.backend.rounds import turn

LARGE_PAGE = 1 << 20
"""Bytes: a page that is smaller, and of few parts, is parsed as a whole."""
TURN = 10_000
"""Brackets and texts after which others have their turn."""
_QUOTE, _LIST = b'"['
_OPEN = b"[{"


async def page(data: bytes, kept: Callable[[bytes], Any]) -> Any:
    """A list as JSON, parsed; ``kept``: of the JSON of an item what is kept of it. Raises ValueError: it is no JSON."""
    if len(data) <= LARGE_PAGE and few(data):
        return parsed(data)
    found, first, last = [], 0, 0
    async for begin, end in items(data):
        found.append(kept(await trimmed(data[begin:end], OBJECT)))
        first, last = first or begin, end
    value = parsed(data[:first] + data[last:])
    if found and isinstance(value, dict):
        value["items"] = found
    return value


async def items(data: bytes) -> AsyncIterator[tuple[int, int]]:
    """Where each object of the list in ``data`` begins and ends."""
    depth, begin, listed = 0, 0, False
    for number, token in enumerate(TOKEN.finditer(data)):
        if number % TURN == TURN - 1:
            await turn()
        code = data[token.start()]
        if code == _QUOTE:
            continue
        if code in _OPEN:
            if depth == 1:
                listed = code == _LIST
            elif depth == 2 and listed:
                begin = token.start()
            depth += 1
            continue
        depth -= 1
        if depth == 2 and listed:
            yield begin, token.end()
            await asyncio.sleep(0)
