"""The source's side: sends a rank's state and every later gradient to the follower, beside training."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch

from lmj_trainer.follow.stream import WINDOW, Stream
from lmj_trainer.state.facts import Facts
from lmj_trainer.state.finals import Finals
from lmj_trainer.transport.feed import LEFT
from lmj_trainer.transport.inbox import ViewBrokenError
from lmj_trainer.transport.parts import (
    BEGIN_SECONDS,
    Abandoned,
    Begin,
    Body,
    Committed,
    Gradients,
    InSync,
    Over,
    Part,
    Prepared,
    State,
)

if TYPE_CHECKING:
    from lmj_trainer.state.stage_state import StageState
    from lmj_trainer.transport.port import Transport

log = logging.getLogger(__name__)

_PART = 1 << 20
"""Elements of gradients in one part: 4 MB."""
_COPY_PART = 1 << 19
"""Elements of each array of the state in one part: 6 MB."""
_COPY_WINDOW = 6 << 20
"""Bytes on their way before which no more of the state is sent: a step's gradients, for which training waits, come behind them."""
_ROOM_SECONDS = 0.01
"""A part that has no room for so long has time to be packed, which takes about as long: so it is on a network of 1 Gbit/s, and on none of 10."""
_NO_STATE = "training is over: the weights that are saved as the model have taken the state's place"
_READS = 8
"""Times that the state is read beside training for its digest, before training waits for it."""


class Source:
    """Keeps one follower in sync. A step is told as prepared only when the follower has its gradients, and counts only when the follower knows
    that it does: no commit is lost with this process.

    Methods are for the compute thread, but for :meth:`follow`. A follower that is lost, or for which training has waited
    ``patience`` seconds while it took next to nothing, or ``longest`` seconds at once, is let go, and training goes on without it.
    """

    def __init__(
        self,
        transport: Transport,
        state: StageState,
        lost: Callable[[str, str], None],
        patience: float,
        longest: float,
        bandwidth_mbps: float | None = None,
    ) -> None:
        """``lost`` is told, in any thread, which follower was let go, by its address, and why.
        ``bandwidth_mbps``: most megabits a second of the copy.
        """
        self._second_per_byte = 0.0 if bandwidth_mbps is None else 8e-6 / bandwidth_mbps
        self._transport, self._state, self._lost, self._patience, self._longest = transport, state, lost, patience, longest
        self._turn = threading.Condition()
        self._wanted: str | None = None
        self._stream: Stream | None = None
        self._replaced = False
        """The state is not what came of the one that a follower may have, whatever their steps are."""
        self._fixed = False
        """Gradients of the step that is to be committed next are out: nothing may be copied before it is taken, or forgotten."""

    def follow(self, address: str | None) -> None:
        """Have the worker at ``address`` follow, from the next boundary on; None: nobody. Any thread may."""
        with self._turn:
            self._wanted = address

    @property
    def in_sync(self) -> bool:
        """Whether there is a follower that has all."""
        stream = self._stream
        return stream is not None and stream.in_sync

    def hand_over(self) -> None:
        """At a boundary: the follower takes this rank's place. It has the step already, or has it as soon as it took what is on its way."""
        with self._turn:
            stream = self._stream
            if stream is not None and stream.in_sync:
                self._wanted = None
                self._end(stream, None, f"it takes over at step {self._state.step}")
                log.info("handed over: sent %d bytes of state and %d of gradients", stream.copied, stream.forwarded)

    def boundary(self) -> None:
        """Between two steps: begin with a follower that is wanted, and let go of one that is not."""
        with self._turn:
            stream = self._stream
            if stream is not None and stream.address != self._wanted:
                self._end(stream, None)
            if self._stream is None and self._wanted is not None:
                self._stream = Stream(self._wanted)
                for name, work in (("follow", self._begin), ("follow-gradients", self._forward)):
                    threading.Thread(target=self._work, args=(work, self._stream), name=name, daemon=True).start()

    def _work(self, work: Callable[[Stream], None], stream: Stream) -> None:
        try:
            work(stream)
        except Exception as error:
            # As of memory that is used up: it is the follower that is given up for it.
            log.exception("cannot serve the follower at %s", stream.address)
            self._fail(stream, f"it could not be served: {type(error).__name__}: {error}")

    def restart(self) -> None:
        """The state was replaced by another: what the follower has is worth nothing."""
        with self._turn:
            self._fixed, self._replaced = False, True
            if self._stream is not None:
                self._end(self._stream, None)

    @property
    def follows(self) -> bool:
        """Whether anybody is to be told by :meth:`final`."""
        return self._stream is not None

    def final(self, parameter: torch.Tensor) -> None:
        """The gradient of ``parameter`` is what it will be in the next step: it is sent while others are computed."""
        with self._turn:
            stream = self._stream
            if stream is not None:
                self._put(stream, self._finals(stream).final(int(parameter.storage_offset()), parameter.numel()))

    def prepared(self) -> None:
        """All gradients of the next step are in the block: returns when the follower has them too, and knows that they are all."""
        with self._turn:
            stream = self._stream
            if stream is None:
                return
            step = self._state.step + 1
            self._put(stream, self._finals(stream).rest())
            if stream.in_sync:
                stream.due.append((step, None))
                self._turn.notify_all()
            self._await(stream, lambda: not stream.due and stream.under_way == 0, f"the gradients of step {step}")

    def _finals(self, stream: Stream) -> Finals:
        if stream.finals is None:
            self._fixed = True
            end = self._state.groups[stream.groups - 1].span.stop if stream.groups else 0
            stream.finals = Finals(self._state, end, _PART)
        return stream.finals

    def _put(self, stream: Stream, spans: list[slice]) -> None:
        if spans:
            stream.due.extend((self._state.step + 1, span) for span in spans)
            self._turn.notify_all()

    def _release(self) -> None:
        """The gradients are no step's any more."""
        self._fixed = False
        if self._stream is not None:
            self._stream.finals = None
            self._stream.due.clear()
        self._turn.notify_all()

    def committed(self, coefficient: float, rate: float, line: str | None, *, first: bool) -> None:
        """The next step is to be taken, and ``line`` recorded of it. ``first``: the follower is to know before anybody else does."""
        with self._turn:
            stream = self._stream
            if stream is None or not stream.groups:
                return
            step = self._state.step + 1
            awaited = first and stream.in_sync
            journal = self._state.journal
            backlog = () if stream.told else tuple(journal.lines())
            stream.told = True
            commit = Committed(step, coefficient, rate, self._facts(), line, backlog, journal.recorded)
            self._send(stream, commit, 1 if awaited else 0)
            if awaited:
                self._await(stream, lambda: stream.under_way == 0, f"the commit of step {step}")
                if stream.refusal is not None:
                    # Nobody has heard of the commit yet, and who takes this rank's place would not know of it.
                    raise ViewBrokenError(stream.refusal)

    def abandoned(self) -> None:
        """The next step is not committed in this view, whatever is prepared of it."""
        with self._turn:
            stream = self._stream
            if stream is not None and stream.in_sync:
                self._send(stream, Abandoned(self._state.step + 1))

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """While the committed step is taken. What is on its way is sent from the block itself, and awaited."""
        with self._turn:
            self._fixed, stream = True, self._stream
            if stream is not None:
                self._await(stream, lambda: stream.under_way == 0, "its part of the state")
        yield
        with self._turn:
            self._release()

    def _await(self, stream: Stream, holds: Callable[[], bool], what: str) -> None:
        """Wait until ``holds``; a follower that takes next to nothing meanwhile is let go, because all ranks wait with it."""
        end = time.monotonic() + self._longest
        while not (stream.over or holds()):
            enough = stream.taken + WINDOW

            def goes_on(enough: int = enough) -> bool:
                return stream.over or holds() or stream.taken >= enough

            left = end - time.monotonic()
            if not self._turn.wait_for(goes_on, min(self._patience, left)):
                self._end(
                    stream, f"it did not take {what} within {self._patience if left > self._patience else self._longest:g} s"
                )

    def forgotten(self) -> None:
        """The gradients were dropped: their step was not committed."""
        with self._turn:
            self._release()

    def _begin(self, stream: Stream) -> None:
        """In a thread of its own: has the follower begin, and copies."""
        has: int | None = None

        def answer(problem: str | None, step: int) -> None:
            nonlocal has
            with self._turn:
                has = step
                if problem is not None:
                    self._end(stream, problem)
                self._turn.notify_all()

        with self._turn:
            if stream.over:
                return
            self._transport.keep(stream.address, lambda reason: self._fail(stream, reason))
            part = Part(stream.number, next(stream.parts), Begin(self._transport.address, self._state.layout))
            self._transport.tell(stream.address, part, answer)
            if not self._turn.wait_for(lambda: stream.over or has is not None, BEGIN_SECONDS):
                self._end(stream, f"it did not answer within {BEGIN_SECONDS:g} s")
        if self._copy(stream, -1 if has is None else has):
            self._finish(stream)

    def _copy(self, stream: Stream, has: int) -> bool:
        """Send the state; True when the follower has all of it, or had it before, at step ``has``."""
        groups = self._state.groups
        while True:
            with self._turn:
                self._turn.wait_for(lambda: stream.over or (not self._fixed and stream.under_way < _COPY_WINDOW))
                if stream.over:
                    return False
                step = self._state.step
                if step < 0:
                    self._end(stream, None, _NO_STATE)
                    return False
                if stream.groups == 0 and has == step and not self._replaced:
                    stream.groups = len(groups)  # it has followed before
                if stream.groups == len(groups):
                    return True
                first, last = stream.groups, stream.groups + 1
                start = groups[first].span.start
                while last < len(groups) and groups[last].span.stop - start <= _COPY_PART:
                    last += 1
                span = slice(start, groups[last - 1].span.stop)
                values = [array.cpu() for array in self._state.lent(span, 0, 3)]
                size = sum(value.nbytes for value in values)
                stream.groups = last
                self._send(stream, State(first, last, step, values), size)
                stream.copied += size
            if self._second_per_byte:
                stream.stopped.wait(size * self._second_per_byte)

    def _forward(self, stream: Stream) -> None:
        """In a thread of its own: sends what is due, so that no computation waits for a copy of it."""
        while True:
            with self._turn:
                self._turn.wait_for(lambda: stream.over or stream.due)
                self._turn.wait_for(lambda: stream.over or not stream.due or stream.may_go, _ROOM_SECONDS)
                if stream.over:
                    return
                if not stream.due:
                    continue
                due, pack = stream.due[0], stream.waits_for_network
            step, span = due
            body: Prepared | Gradients = Prepared(step)
            if span is not None:
                body = Gradients.of(step, span.start, self._state.lent(span, 3)[0])
                if pack:
                    body = body.packed()  # it has to wait anyway, and at the end of the step training waits for it
            self._forward_one(stream, due, body)

    def _forward_one(self, stream: Stream, due: tuple[int, slice | None], body: Prepared | Gradients) -> None:
        """Send ``body``, which is ``due``, when it may go. Forgotten meanwhile, what was read is nothing."""

        def stands() -> bool:
            return not stream.over and bool(stream.due) and stream.due[0] is due

        with self._turn:
            self._turn.wait_for(lambda: not stands() or stream.may_go)
            if stands():
                stream.due.popleft()
                sent = body.nbytes if isinstance(body, Gradients) else 0
                self._send(stream, body, max(1, sent))
                stream.forwarded += sent

    def _finish(self, stream: Stream) -> None:
        """Have the follower compare what it has. The state is read beside training, and again when a step was taken meanwhile."""
        for attempt in range(_READS + 1):
            with self._turn:
                self._turn.wait_for(lambda: stream.over or not self._fixed)
                if stream.over:
                    return
                step = self._state.step
                if attempt == _READS:
                    self._level(stream, self._state.digest())
                    return
            digest = self._state.digest()
            with self._turn:
                if stream.over:
                    return
                # Gradients that are out already would be forgotten with InSync, and the step that they are of taken without them.
                if self._state.step == step and not self._fixed:
                    self._level(stream, digest)
                    return

    def _level(self, stream: Stream, digest: str) -> None:
        if self._state.step < 0:
            self._end(stream, None, _NO_STATE)
            return
        stream.in_sync, self._replaced = True, False
        self._send(stream, InSync(self._state.step, self._facts(), digest, self._state.committed))

    def _facts(self) -> Facts:
        state = self._state
        return Facts(state.seconds, state.evaluated, state.best.step, state.best.accuracy)

    def _send(self, stream: Stream, body: Body, size: int = 0) -> None:
        def done(problem: str | None, answer: int) -> None:
            with self._turn:
                stream.under_way -= size
                stream.taken += size
                stream.waiting = max(0, answer)  # below 0 it is none of a part that was taken
                if answer == LEFT and not stream.over:
                    # It takes this rank's place, or is needed for the next view: what is committed here would be lost.
                    inbox, stream.refusal = self._transport.inbox, f"this rank's follower was told to leave: {problem}"
                    inbox.fail(inbox.view, stream.refusal)
                if problem is not None:
                    self._end(stream, problem)
                self._turn.notify_all()

        stream.under_way += size
        self._transport.tell(stream.address, Part(stream.number, next(stream.parts), body), done)

    def _fail(self, stream: Stream, reason: str) -> None:
        with self._turn:
            self._end(stream, reason)

    def _end(self, stream: Stream, reason: str | None, told: str = "it is not to follow any more") -> None:
        """Let go of ``stream``; ``reason``: why it failed, None: it was to end, for the reason that is ``told``."""
        if stream.over:
            return
        stream.over = True
        stream.stopped.set()
        if self._stream is stream:
            self._stream = None
            if reason is not None and self._wanted == stream.address:
                # The operator decides whether there is to be another.
                self._wanted = None
        self._turn.notify_all()
        # One that lives must not take what it has for one in sync: it gets older with every step.
        self._send(stream, Over(reason or told))
        self._transport.drop(stream.address)
        if reason is not None:
            log.warning("the follower at %s is let go: %s", stream.address, reason)
            self._lost(stream.address, reason)
