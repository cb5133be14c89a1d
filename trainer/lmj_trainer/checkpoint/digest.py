"""The digest of a checkpoint's file."""

from pathlib import Path

import xxhash

CHUNK = 4 << 20
"""Bytes read at a time: large enough that hashing runs at the speed of the disk, small beside any model."""


def file_digest(path: Path) -> str:
    """XXH3-128 of the whole file at ``path``, 32 hex digits. Raises OSError when it cannot be read."""
    digest = xxhash.xxh3_128()
    buffer = memoryview(bytearray(CHUNK))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
    return digest.hexdigest()
