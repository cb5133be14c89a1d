"""The pod's side: answers what is asked on its standard input, in order, on its standard output."""

import errno
import os
import sys
import time
from collections.abc import Iterator
from typing import BinaryIO

from lmj_operator.client.volume.far.frames import Frames, Header, packed
from lmj_operator.client.volume.far.tree import BLOCK, LeftOut, Tree, TreeError

BEAT_SECONDS = 5.0
"""Who works for longer says so: a connection on which nothing comes is cut on its way."""
LISTED = 500
"""Files of one message of a walk."""


class Server:
    """Of the files below ``root``."""

    def __init__(self, root: str, source: BinaryIO, sink: BinaryIO) -> None:
        self._tree = Tree(root, self._beat)
        self._source, self._sink = source, sink
        self._told = time.monotonic()
        self._messages = self._received()

    def run(self) -> None:
        """Until the input ends. What fails is told, and what comes after it is read and passed over: who sends is not to get stuck."""
        try:
            self._say({"op": "ready"})
            for header, _ in self._messages:
                if header["op"] in ("kind", "walk", "look", "put", "get"):
                    getattr(self, f"_{header['op']}")(header)
        except TreeError as error:
            self._say({"op": "error", "text": str(error)})
        except OSError as error:
            name = errno.errorcode.get(error.errno or 0, "")
            self._say({"op": "error", "text": f"{error.filename or '.'}: {error.strerror}", "code": name, "path": error.filename})
        for _ in self._messages:
            pass

    def _kind(self, asked: Header) -> None:
        path = asked["path"]
        kind = self._tree.kind(path)
        self._say({"op": "kind", "kind": kind, "size": self._tree.size(path) if kind == "file" else None})

    def _walk(self, asked: Header) -> None:
        left_out, found = LeftOut(), []
        for file in self._tree.walk(asked["path"], left_out):
            found.append([file.path, file.size, file.executable])
            if len(found) == LISTED:
                self._say({"op": "files", "files": found})
                found = []
        self._say({"op": "files", "files": found})
        self._say({"op": "walked", "links": left_out.links, "special": left_out.special})

    def _look(self, asked: Header) -> None:
        """What is there of a file that is to come: the whole one, where it has its size, or a part."""
        path, size = asked["path"], asked["size"]
        told: Header = {"op": "look", "path": path}
        if self._tree.size(path) == size:
            told["sha256"] = self._tree.digest(path, size)
        part = self._tree.size(path, part=True)
        if part is not None and 0 < part <= size:
            told.update(part=part, part_sha256=self._tree.digest(path, part, part=True))
        self._say(told)

    def _put(self, asked: Header) -> None:
        with self._tree.writing(asked["path"], asked["start"], asked["executable"]) as part:
            for header, data in self._messages:
                if header["op"] == "data":
                    part.write(data)
                    self._beat()
                elif header["op"] == "end":
                    part.finish(header["sha256"])
                    self._say({"op": "put", "path": asked["path"]})
                    return

    def _get(self, asked: Header) -> None:
        """A file, behind the bytes that whoever asks has already, where these are the same."""
        have = asked["have"]
        with self._tree.reading(asked["path"]) as file:
            size = os.fstat(file).st_size
            hashed = self._tree.hashed(file, have) if have <= size else None
            if hashed is None or (have and hashed.hexdigest() != asked["sha256"]):
                have, hashed = 0, self._tree.hashed(file, 0)
            self._say({"op": "begin", "path": asked["path"], "start": have, "size": size})
            while have < size and (block := os.pread(file, min(BLOCK, size - have), have)):
                hashed.update(block)
                have += len(block)
                self._say({"op": "data"}, block)
            if have < size:
                raise TreeError(f"{asked['path']}: it became shorter while it was read; run the same command again")
        self._say({"op": "end", "sha256": hashed.hexdigest()})

    def _received(self) -> Iterator[tuple[Header, bytes]]:
        frames = Frames()
        while data := os.read(self._source.fileno(), BLOCK):
            yield from frames.fed(data)

    def _say(self, header: Header, data: bytes = b"") -> None:
        self._sink.write(packed(header, data))
        self._sink.flush()
        self._told = time.monotonic()

    def _beat(self) -> None:
        if time.monotonic() - self._told > BEAT_SECONDS:
            self._say({"op": "busy"})


def main() -> None:
    """Serve the folder that the first argument names."""
    Server(sys.argv[1], sys.stdin.buffer, sys.stdout.buffer).run()
