"""The neighbour's side: keeps the snapshots of the rank before this one, as they come, and gives them back."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lmj_trainer.transport.envelope import Envelope, Kind

if TYPE_CHECKING:
    from torch import Tensor

    from lmj_trainer.state.facts import Facts
    from lmj_trainer.state.shelf import Shelf
    from lmj_trainer.transport.port import Transport

PIECE = 1 << 18
"""Elements of a snapshot in one message, 1 MB: a message of the pipeline that comes behind it waits no longer than that takes."""
_WINDOW = 4
"""Pieces on their way to a rank that lost its memory."""
HAS = "has"
"""Answer to the head of a snapshot that is there already."""
GO_ON = ""
"""Answer to what was taken; any other text says why it was not."""


@dataclass(frozen=True)
class Head:
    """A snapshot, before its values."""

    layout: int
    """Digest of what lies where in it."""
    elements: int
    """float32 of it, all together."""
    facts: Facts


@dataclass(frozen=True)
class Piece:
    """Its values from element ``start`` on, float32."""

    start: int
    values: Tensor


class Keeper:
    """Takes one snapshot at a time, in the transport's threads, and only of the view that was begun last."""

    def __init__(self, shelf: Shelf | None, transport: Transport, rank: int) -> None:
        """``shelf`` None: nothing is kept here."""
        self._shelf, self._transport, self._rank = shelf, transport, rank
        self._turn = threading.Lock()
        self._view = 0
        self._writing: tuple[int, int, Head] | None = None
        """Step, slot and head of the snapshot that is coming; the messages of one come one after the other."""
        transport.inbox.divert(Kind.SNAPSHOT, self._take)

    @property
    def steps(self) -> list[int]:
        """Of what is kept, newest first."""
        with self._turn:
            return self._shelf.steps if self._shelf is not None else []

    def begin(self, view: int) -> None:
        """Before ``view`` is joined: what still comes of an older one is refused."""
        with self._turn:
            self._view, self._writing = view, None

    def forget(self, after: int) -> None:
        """See :meth:`Shelf.forget`."""
        with self._turn:
            if self._shelf is not None:
                self._shelf.forget(after)

    def _take(self, envelope: Envelope) -> None:
        try:
            with self._turn:
                answer = self._put(envelope)
        except OSError as error:
            answer = f"rank {self._rank} has no room for it: {error}"
        if answer is not None:
            reply = Envelope(envelope.view, Kind.KEPT, envelope.step, envelope.index, self._rank, answer)
            self._transport.send(envelope.sender, reply)

    def _put(self, envelope: Envelope) -> str | None:
        """Take what came; the answer to it, None: nobody waits for one any more. Raises OSError when there is no memory for it."""
        if envelope.view != self._view:
            return None
        if self._shelf is None:
            return f"rank {self._rank} keeps no snapshots"
        body, step = envelope.payload, envelope.step
        if isinstance(body, Head):
            self._shelf.prepare(body.layout, body.elements)
            if self._shelf.find(step) is not None:
                return HAS
            self._writing = step, self._shelf.clear(), body
            return GO_ON
        if self._writing is None or self._writing[0] != step:
            return f"rank {self._rank} has not got the beginning of it"
        _, slot, head = self._writing
        end = body.start + len(body.values)
        self._shelf.values(slot)[body.start : end].copy_(body.values)
        if end == head.elements:
            self._shelf.complete(slot, step, head.facts)
            self._writing = None
        return GO_ON

    def give_back(self, step: int, rank: int, view: int, patience: float) -> None:
        """Send the snapshot of ``step`` to ``rank``, whose it is.

        Raises ViewBrokenError, also when ``rank`` takes longer than ``patience`` seconds for a piece.
        """
        with self._turn:
            slot = self._shelf.find(step) if self._shelf is not None else None
            if self._shelf is None or slot is None:
                # The operator was told of it, and it is gone: those who wait for it must hear of that.
                self._send(rank, view, step, 0, None)
                return
            head = Head(self._shelf.layout or 0, self._shelf.elements, self._shelf.facts(slot))
            values = self._shelf.values(slot)
        # Nobody writes there meanwhile: the only one who would is the rank that waits for it.
        self._send(rank, view, step, 0, head)
        for index, start in enumerate(range(0, head.elements, PIECE), 1):
            if index > _WINDOW:
                self._transport.inbox.take(Kind.RESTORED, step, index - _WINDOW, rank, patience, view)
            self._send(rank, view, step, index, Piece(start, values[start : start + PIECE]))
        count = -(-head.elements // PIECE)
        for index in range(max(1, count - _WINDOW + 1), count + 1):
            self._transport.inbox.take(Kind.RESTORED, step, index, rank, patience, view)

    def _send(self, rank: int, view: int, step: int, index: int, payload: Head | Piece | None) -> None:
        self._transport.send(rank, Envelope(view, Kind.RESTORE, step, index, self._rank, payload))
