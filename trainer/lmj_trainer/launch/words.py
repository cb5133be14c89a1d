"""What the launchers of a view say to each other, and what the leader makes of it. Pure."""

import hashlib
from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from lmj_api.base import Message
from lmj_api.bounds import Line
from lmj_api.view import View

LONGEST_WORD = 32_768
"""Bytes of a word, as a line of JSON."""


SnapshotName = Annotated[str, Field(pattern=r"^step-[0-9]{1,15}-view-[0-9]{1,15}$")]
"""Of a folder of memory; no path."""
FileName = Annotated[str, Field(max_length=1024, pattern=r"^(|[^/.\x00-\x1f][^/\x00-\x1f]*(/[^/.\x00-\x1f][^/\x00-\x1f]*)*)$")]
"""Of a file in it: relative, and nothing in it begins with a dot."""
Hex = Annotated[str, Field(max_length=128, pattern=r"^[0-9a-f]*$")]


class WordKind(StrEnum):
    """What is said."""

    CHALLENGE = "challenge"
    """Leader: whoever connects is to prove with ``nonce`` which member of a view it is."""
    HELLO = "hello"
    """Member: it is ``rank`` of ``view``, and wants the same proof of the leader, with its own ``nonce``."""
    REFUSED = "refused"
    """Leader: it is not of the view; ``message`` says why."""
    START = "start"
    """Leader: all are there: the processes are to be started."""
    BEAT = "beat"
    """Both, every now and then."""
    DONE = "done"
    """Member: all of its processes have ended with 0."""
    FAILED = "failed"
    """Member: a process of its has failed."""
    LEFT = "left"
    """Member: it leaves at once, because it was told to; nobody is to blame."""
    STOP = "stop"
    """Member: the view is to be left in order. Leader: all leave it."""
    LOST = "lost"
    """Leader: the view is broken, by ``rank``; -1: by nobody in it."""
    COMPLETED = "completed"
    """Leader: the script has ended well everywhere."""
    FETCH = "fetch"
    """Member, to any other of ``view`` instead of ``HELLO``: it wants the snapshot ``memory``."""
    GIVEN = "given"
    """The other: it has it, as ``files`` files of ``size`` bytes."""
    FILE = "file"
    """The other: a file ``name`` of ``size`` bytes, which follow. ``DONE`` comes after the last one."""


class Word(Message):
    """One line between two launchers."""

    kind: WordKind
    nonce: Hex = ""
    """``challenge``, ``hello``, ``fetch``."""
    proof: Hex = ""
    """``hello``, ``start``, ``fetch``, ``given``: a signature of :func:`statement`."""
    view: int = 0
    """``hello``, ``fetch``."""
    rank: int = -1
    """``hello``, ``fetch``: who says it. ``lost``: who is. ``file``: whose process's it is alone, or -1."""
    port: Annotated[int, Field(ge=0, le=65535)] = 0
    """``start``: where the script's processes meet, on the leader's host."""
    resume: Annotated[str, Field(max_length=4096)] | None = None
    """``start``: the checkpoint that they go on from."""
    have: Annotated[tuple[SnapshotName, ...], Field(max_length=4)] = ()
    """``hello``: the complete snapshots that the member has in memory."""
    whole: Annotated[tuple[SnapshotName, ...], Field(max_length=4)] = ()
    """``hello``: those of them that it can give to others."""
    fetches: bool = False
    """``hello``: it can take one over."""
    memory: SnapshotName | None = None
    """``start``, ``fetch``: the snapshot in memory that all go on from."""
    giver: int = -1
    """``start``: the rank to fetch it from; -1: the member has it."""
    name: FileName = ""
    """``file``."""
    size: Annotated[int, Field(ge=0)] = 0
    """``given``, ``file``: bytes."""
    files: Annotated[int, Field(ge=0)] = 0
    """``given``."""
    world: Annotated[int, Field(ge=0)] = 0
    """``given``: processes that took the snapshot."""
    lively: bool = False
    """``beat``: there were signs of life since the last one, on that node; from the leader: on any."""
    message: Line = ""
    """``failed``, ``stop``, ``lost``, ``refused``: why."""


def told(run: str, view: View) -> bytes:
    """All that the members of a view were told alike: who was told something else is of another view."""
    return hashlib.sha256(f"{run}\0{view.to_json()}".encode()).digest()


def statement(of: bytes, role: str, nonce: str, rank: int) -> bytes:
    """What is signed to prove, in the view :func:`told` of, to be ``role`` towards or of ``rank``, to who sent ``nonce``."""
    return b"lmj view line 1\0" + of + f"\0{role}\0{nonce}\0{rank}".encode()


class Verdict:
    """What is decided of a view, by its leader: the first thing that ends it counts, and what follows from it is no cause."""

    def __init__(self, ranks: Iterable[int]) -> None:
        """``ranks``: all members."""
        self._ranks = frozenset(ranks)
        self._done: set[int] = set()
        self.over = False
        """It was decided."""

    def hear(self, rank: int, word: Word) -> Word | None:
        """What all are to be told because ``rank`` says ``word``; None: nothing."""
        if self.over:
            return None
        match word.kind:
            case WordKind.DONE:
                self._done.add(rank)
                return self._decided(Word(kind=WordKind.COMPLETED)) if self._done == self._ranks else None
            case WordKind.STOP:
                return self._decided(Word(kind=WordKind.STOP, rank=rank, message=word.message))
            case WordKind.FAILED:
                return self._decided(Word(kind=WordKind.LOST, rank=rank, message=word.message))
            case WordKind.LEFT:
                return self._decided(Word(kind=WordKind.LOST, message=word.message))
        return None

    def gone(self, rank: int, why: str) -> Word | None:
        """The same because the connection to ``rank`` has ended."""
        return self.hear(rank, Word(kind=WordKind.FAILED, message=f"the launcher of rank {rank} is lost: {why}"))

    def _decided(self, word: Word) -> Word:
        self.over = True
        return word
