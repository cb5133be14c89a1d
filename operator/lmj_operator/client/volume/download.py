"""Files of a volume to a folder of this machine: only what is not there yet."""

from collections.abc import Sequence
from contextlib import ExitStack
from itertools import islice

from lmj_operator.client.volume.far.tree import Found, Part, Tree, TreeError, names_of
from lmj_operator.client.volume.hashing import hashed_file
from lmj_operator.client.volume.talk import Talk, both
from lmj_operator.client.volume.transfer import BATCH, Tally, Watcher
from lmj_operator.client.volume.trouble import VolumeError


async def listed(talk: Talk, path: str, tally: Tally) -> list[Found]:
    """The files below the folder ``path`` of the volume. Raises VolumeError for one whose name leads out of a folder."""
    await talk.send({"op": "walk", "path": path})
    found: list[Found] = []
    while True:
        header, _ = await talk.receive()
        if header["op"] == "walked":
            tally.links, tally.special = int(header["links"]), int(header["special"])
            return found
        for name, size, executable in header["files"]:
            _checked(str(name))
            found.append(Found(str(name), int(size), bool(executable)))


def _checked(path: str) -> None:
    """The pod's side is on a machine that others have: what it says is checked here."""
    try:
        if not names_of(path):
            raise TreeError("a file without a name")
    except TreeError as error:
        raise VolumeError(f"the volume has {error}; nothing was written") from error


class Download:
    """The ``files`` below the folder ``prefix`` of a volume to the folder of ``target``."""

    def __init__(self, target: Tree, files: Sequence[Found], prefix: str, watcher: Watcher, tally: Tally) -> None:
        self._target, self._files, self._prefix = target, files, prefix
        self._watcher, self._tally = watcher, tally
        self._whole: set[str] = set()
        """Files of which all bytes are here under their own name, if they are the same."""

    async def run(self, talk: Talk) -> None:
        """Until all are here. Raises VolumeError and OSError; after Broken the same goes on with another conversation."""
        waiting = iter([file for file in self._files if file.path not in self._tally.done])
        while batch := list(islice(waiting, BATCH)):
            await both(self._ask(talk, batch), self._receive(talk, batch))

    async def _ask(self, talk: Talk, batch: Sequence[Found]) -> None:
        for file in batch:
            path = f"{self._prefix}/{file.path}" if self._prefix else file.path
            have, part = self._here(file)
            digest = ""
            if not part and self._target.size(file.path) == have == file.size:
                self._whole.add(file.path)
            if have:
                with self._target.reading(file.path, part=part) as opened:
                    digest = (await hashed_file(opened, have)).hexdigest()
            await talk.send({"op": "get", "path": path, "have": have, "sha256": digest})

    def _here(self, file: Found) -> tuple[int, bool]:
        """How many bytes of it are here, and whether as a part."""
        if 0 < (part := self._target.size(file.path, part=True) or 0) <= file.size:
            return part, True
        return (file.size, False) if self._target.size(file.path) == file.size else (0, False)

    async def _receive(self, talk: Talk, batch: Sequence[Found]) -> None:
        for file in batch:
            begin, _ = await talk.receive()
            start, size = int(begin["start"]), int(begin["size"])
            self._watcher.moved(min(start, file.size))
            if start == size == file.size and file.path in self._whole:
                if (await talk.receive())[0]["op"] != "end":
                    raise VolumeError("the pod's side does not speak this version")
                self._tally.there += 1
            else:
                await self._written(talk, file, start)
                self._tally.sent += 1
            self._tally.done.add(file.path)
            self._watcher.file()

    async def _written(self, talk: Talk, file: Found, start: int) -> None:
        with ExitStack() as stack:
            part: Part = stack.enter_context(self._target.writing(file.path, start, file.executable))
            while True:
                header, data = await talk.receive()
                if header["op"] == "end":
                    part.finish(str(header["sha256"]))
                    return
                part.write(data)
                self._tally.bytes_sent += len(data)
                self._watcher.moved(len(data))
