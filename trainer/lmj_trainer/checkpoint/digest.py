"""The digest of a checkpoint's file."""

import xxhash

from lmj_trainer.store.port import Ref

CHUNK = 4 << 20
"""Bytes read at a time: large enough that hashing runs at the speed of the disk, small beside any model."""


def file_digest(file: Ref) -> str:
    """XXH3-128 of the whole file, 32 hex digits. Raises OSError when it cannot be read."""
    digest = xxhash.xxh3_128()
    start = 0
    while piece := file.get(start, CHUNK):
        digest.update(piece)
        start += len(piece)
    return digest.hexdigest()
