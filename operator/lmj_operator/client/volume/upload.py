"""Files of this machine to a volume: only what is not there yet."""

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from lmj_operator.client.volume.far.frames import Header
from lmj_operator.client.volume.far.tree import BLOCK, Found, Tree, shown
from lmj_operator.client.volume.hashing import hashed_file
from lmj_operator.client.volume.talk import Talk, both
from lmj_operator.client.volume.transfer import BATCH, Tally, Watcher
from lmj_operator.client.volume.trouble import VolumeError


@dataclass(frozen=True)
class Sending:
    """A file that is to go, from byte ``start`` on."""

    file: Found
    start: int
    hashed: "hashlib._Hash"
    """Of what is before that."""


class Upload:
    """The ``files`` of ``source`` to a volume, each to the path there that ``far`` says."""

    def __init__(self, source: Tree, files: Sequence[Found], far: Callable[[str], str], watcher: Watcher, tally: Tally) -> None:
        self._source, self._files, self._far = source, files, far
        self._watcher, self._tally = watcher, tally

    async def run(self, talk: Talk) -> None:
        """Until all are there. Raises VolumeError; after Broken the same goes on with another conversation."""
        for batch in _batches(file for file in self._files if file.path not in self._tally.done):
            wanted = await self._looked(talk, batch)
            sending = [item for file in batch if (item := await self._planned(file, wanted[self._far(file.path)])) is not None]
            await both(self._send(talk, sending), self._confirmed(talk, sending))

    async def _looked(self, talk: Talk, batch: Sequence[Found]) -> dict[str, Header]:
        """What is there of each, by its path on the volume."""
        told: dict[str, Header] = {}

        async def ask() -> None:
            for file in batch:
                await talk.send({"op": "look", "path": self._far(file.path), "size": file.size})

        async def hear() -> None:
            for _ in batch:
                header, _ = await talk.receive()
                told[header["path"]] = header

        await both(ask(), hear())
        return told

    async def _planned(self, file: Found, there: Header) -> Sending | None:
        """What is to be sent of ``file``; None: it is there."""
        with self._source.reading(file.path) as opened:
            if "sha256" in there and (await hashed_file(opened, file.size)).hexdigest() == there["sha256"]:
                self._tally.there += 1
                self._settled(file, file.size)
                return None
            start = int(there.get("part", 0))
            hashed = await hashed_file(opened, start)
        if start and hashed.hexdigest() == there["part_sha256"]:
            return Sending(file, start, hashed)
        return Sending(file, 0, hashlib.sha256())

    async def _send(self, talk: Talk, sending: Sequence[Sending]) -> None:
        for item in sending:
            path = self._far(item.file.path)
            await talk.send({"op": "put", "path": path, "start": item.start, "executable": item.file.executable})
            self._watcher.moved(item.start)
            at, hashed = item.start, item.hashed
            with self._source.reading(item.file.path) as opened:
                while at < item.file.size and (block := os.pread(opened, min(BLOCK, item.file.size - at), at)):
                    await talk.send({"op": "data"}, block)
                    hashed.update(block)
                    at += len(block)
                    self._tally.bytes_sent += len(block)
                    self._watcher.moved(len(block))
                changed = at != item.file.size or os.fstat(opened).st_size != item.file.size
            if changed:
                raise VolumeError(f"{shown(item.file.path)}: it changed while it was sent; run the same command again")
            await talk.send({"op": "end", "sha256": hashed.hexdigest()})

    async def _confirmed(self, talk: Talk, sending: Sequence[Sending]) -> None:
        for item in sending:
            await talk.receive()
            self._tally.sent += 1
            self._settled(item.file, 0)

    def _settled(self, file: Found, size: int) -> None:
        self._tally.done.add(file.path)
        self._watcher.moved(size)
        self._watcher.file()


def _batches(files: Iterator[Found]) -> Iterator[list[Found]]:
    while batch := list(islice(files, BATCH)):
        yield batch
