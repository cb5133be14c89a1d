"""Digests of large files by a task: a thread could not be told to end, and other tasks have their turn meanwhile."""

import asyncio
import hashlib
import os

from lmj_operator.client.volume.far.tree import BLOCK

_OFTEN = 16
"""Blocks between turns of others."""


async def hashed_file(opened: int, length: int) -> "hashlib._Hash":
    """SHA-256 of the first ``length`` bytes of an opened file, to go on with."""
    hashed, at, blocks = hashlib.sha256(), 0, 0
    while at < length and (block := os.pread(opened, min(BLOCK, length - at), at)):
        hashed.update(block)
        at += len(block)
        blocks += 1
        if blocks % _OFTEN == 0:
            await asyncio.sleep(0)
    return hashed
