"""What belongs to one rank alone, on every node: all ranks give theirs to all others, beside the script's own collectives."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from lmj_trainer.launch.memory.place import Place

log = logging.getLogger("lmj.memory")

MOST_BYTES = 64 << 20
"""Of all ranks together, as if each had as many as the one with most. What is more stays on its own node."""
_HEAD = 8
"""Bytes of the length that comes first."""

Files = dict[str, bytes]
"""Contents by name."""


class Exchange:
    """Of one process. Its collectives have a group of their own, so that they cannot be taken for the script's."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._group: Any = None
        # Where there is one node, its memory goes with the ranks'.
        self._off = place.world == place.parts

    def swap(self, own: Mapping[str, bytes]) -> dict[int, Files]:
        """Give ``own`` to all ranks; what each of the others gave. All ranks call it equally often, whatever happened to them: it waits for
        those that do not, at most ``place.wait`` seconds, once. Whose process dies meanwhile is noticed by the launchers, at once.

        Raises nothing: what goes wrong is said once, and then snapshots are each node's own. Source of the bytes: one all-gather of
        their lengths and one of themselves, filled up to the longest.
        """
        if self._off or not (dist.is_available() and dist.is_initialized()):
            return {}
        try:
            return self._swapped(_packed(own))
        except Exception as error:  # noqa: BLE001 - whatever it is, training must not end by it
            self._off = True
            text = " ".join(str(error).split())
            log.warning("ranks no longer exchange what each has alone: %s; a lost pod's is lost with it", text)
            return {}

    def _swapped(self, own: bytes) -> dict[int, Files]:
        if self._group is None:
            self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=self._place.wait))
        place, world = self._place, dist.get_world_size(self._group)
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(world)]
        dist.all_gather(lengths, torch.tensor([len(own)]), group=self._group)
        longest = max(int(length) for length in lengths)
        if longest * world > MOST_BYTES:  # so it is for all of them
            raise ValueError(f"what one rank has alone takes {longest >> 20} MiB, which {world} ranks do not give to each other")
        given = [torch.zeros(longest, dtype=torch.uint8) for _ in range(world)]
        dist.all_gather(given, torch.frombuffer(bytearray(own.ljust(longest, b"\0")), dtype=torch.uint8), group=self._group)
        return {rank: _unpacked(bytes(given[rank].numpy())) for rank in range(world) if rank != place.rank}


def _packed(files: Mapping[str, bytes]) -> bytes:
    head = json.dumps([[name, len(content)] for name, content in files.items()]).encode()
    return len(head).to_bytes(_HEAD) + head + b"".join(files.values())


def _unpacked(packed: bytes) -> Files:
    at = _HEAD + int.from_bytes(packed[:_HEAD])
    files: Files = {}
    for name, size in json.loads(packed[_HEAD:at]):
        files[name], at = packed[at : at + size], at + size
    return files
