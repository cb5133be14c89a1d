"""The source's side: sends a rank's state and every later gradient to its followers, beside training."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING

import torch

from lmj_trainer.follow.copy_pace import CopyPace
from lmj_trainer.follow.stream import WINDOW, Stream
from lmj_trainer.state.facts import Facts
from lmj_trainer.state.finals import Finals
from lmj_trainer.state.share import Share
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

Names = Collection[str]
"""Of parameters."""

_PART = 1 << 20
"""Elements of gradients in one part: 4 MB."""
_COPY_PART = 1 << 19
"""Elements of each array of the state in one part: 6 MB."""
_LOOK_SECONDS = 0.25
"""After so long a copy that waits for its pace looks whether that has changed."""
_NO_STATE = "training is over: the weights that are saved as the model have taken the state's place"
_READS = 8
"""Times that the state is read beside training for its digest, before training waits for it."""


class Source:
    """Keeps followers in sync. A step is told as prepared only when each has its gradients, and counts only when the followers know that it
    does: no commit is lost with this process.

    A follower in the rank's own cut takes the whole state; of those in another cut each takes what its stage has of this one.

    Methods are for the compute thread, but for :meth:`follow` and :meth:`recut`. A follower that is lost, or for which training has waited
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
        usual: Callable[[], float | None] = lambda: None,
    ) -> None:
        """``lost`` is told, in any thread, which follower was let go, by its address, and why.
        ``bandwidth_mbps``: most megabits a second of all copies. ``usual``: seconds that a step takes, None while that is not known.
        """
        self._second_per_byte = 0.0 if bandwidth_mbps is None else 8e-6 / bandwidth_mbps
        self._transport, self._state, self._lost, self._patience, self._longest = transport, state, lost, patience, longest
        self._usual = usual
        self._turn = threading.Condition()
        self._wanted: dict[str, Names | None] = {}
        """Who is to follow, and which parameters; None: all."""
        self._gentle: str | None = None
        """Who of them has time."""
        self._streams: dict[str, Stream] = {}
        """By address."""
        self._replaced = False
        """The state is not what came of the one that a follower may have, whatever their steps are,"""
        self._since: set[str] = set()
        """but for these, which were in sync since."""
        self._fixed = False
        """Gradients of the step that is to be committed next are out: nothing may be copied before it is taken, or forgotten."""

    def follow(self, address: str | None, *, gentle: bool = False) -> None:
        """Have the worker at ``address`` follow, from the next boundary on; None: nobody. Any thread may. ``gentle``: see :class:`CopyPace`."""
        with self._turn:
            self._gentle = address if gentle else None
            others = [(known, names) for known, names in self._wanted.items() if names is not None]
            self._wanted = dict([*others, *([] if address is None else [(address, None)])])

    def recut(self, shares: Mapping[str, Names]) -> None:
        """Have workers of another cut follow, from the next boundary on: by address, with the parameters that each takes. Any thread may."""
        with self._turn:
            mine = [(address, names) for address, names in self._wanted.items() if names is None]
            self._wanted = dict([*((address, names) for address, names in shares.items() if names), *mine])

    @property
    def in_sync(self) -> bool:
        """Whether there are followers, and each has all that it is to have."""
        with self._turn:
            streams = self._streams
            return bool(streams) and streams.keys() >= self._wanted.keys() and all(s.in_sync for s in streams.values())

    def hand_over(self) -> None:
        """At a boundary: the followers take over. They have the step already, or have it as soon as they took what is on its way."""
        with self._turn:
            for stream in [stream for stream in self._streams.values() if stream.in_sync]:
                self._wanted.pop(stream.address, None)
                self._end(stream, None, f"it takes over at step {self._state.reached}")
                log.info("handed over: sent %d bytes of state and %d of gradients", stream.copied, stream.forwarded)

    def boundary(self) -> None:
        """Between two steps: begin with followers that are wanted, and let go of those that are not."""
        with self._turn:
            shares = {address: Share(self._state.placed(names)) for address, names in self._wanted.items()}
            for stream in list(self._streams.values()):
                if stream.address not in shares or stream.share.placed != shares[stream.address].placed:
                    self._end(stream, None)
            for address, share in shares.items():
                if address not in self._streams:
                    size = 3 * 4 * max(1, share.size)
                    pace = CopyPace(size, gentle=address == self._gentle, usual=self._usual)
                    stream = self._streams[address] = Stream(address, share, pace)
                    for name, work in (("follow", self._begin), ("follow-gradients", self._forward)):
                        threading.Thread(target=self._work, args=(work, stream), name=name, daemon=True).start()
            for stream in self._streams.values():
                stream.pace.step_begins()

    def stepped(self, seconds: float) -> None:
        """The step that began at the newest boundary is over, and took so long. Nothing trains until the next one."""
        with self._turn:
            for stream in self._streams.values():
                stream.pace.step_ends(seconds)

    def _work(self, work: Callable[[Stream], None], stream: Stream) -> None:
        try:
            work(stream)
        except Exception as error:
            # As of memory that is used up: it is the follower that is given up for it.
            log.exception("cannot serve the follower at %s", stream.address)
            self._fail(stream, f"it could not be served: {type(error).__name__}: {error}")

    def restart(self) -> None:
        """The state was replaced by another: what followers have is worth nothing."""
        with self._turn:
            self._fixed, self._replaced = False, True
            self._since.clear()
            for stream in list(self._streams.values()):
                self._end(stream, None)

    @property
    def follows(self) -> bool:
        """Whether anybody is to be told by :meth:`final`."""
        return bool(self._streams)

    def final(self, parameter: torch.Tensor) -> None:
        """The gradient of ``parameter``, or of a part of one, is what it will be in the next step: it is sent while others are computed."""
        with self._turn:
            for stream in self._streams.values():
                self._put(stream, self._finals(stream).final(int(parameter.storage_offset()), parameter.numel()))

    def prepared(self) -> None:
        """All gradients of the next step are in the block: returns when the followers have them too, and know that they are all."""
        with self._turn:
            step, streams = self._state.step + 1, list(self._streams.values())
            for stream in streams:
                self._put(stream, self._finals(stream).rest())
                if stream.in_sync:
                    stream.due.append((step, None))
                    self._turn.notify_all()
            self._await(streams, lambda stream: not stream.due and stream.under_way == 0, f"the gradients of step {step}")

    def _finals(self, stream: Stream) -> Finals:
        if stream.finals is None:
            self._fixed = True
            stream.finals = Finals(self._state, stream.share.spans(stream.units, _PART))
        return stream.finals

    def _put(self, stream: Stream, spans: list[slice]) -> None:
        if spans:
            stream.due.extend((self._state.step + 1, span) for span in spans)
            self._turn.notify_all()

    def _release(self) -> None:
        """The gradients are no step's any more."""
        self._fixed = False
        for stream in self._streams.values():
            stream.finals = None
            stream.due.clear()
        self._turn.notify_all()

    def committed(self, coefficient: float, rate: float, line: str | None, *, first: bool, last: bool = False) -> None:
        """The next step is to be taken, and ``line`` recorded of it. ``first``: followers are to know before anybody else does.
        ``last``: those in sync take over at that step.
        """
        with self._turn:
            step, journal = self._state.step + 1, self._state.journal
            awaited = [stream for stream in self._streams.values() if first and stream.in_sync]
            for stream in [stream for stream in self._streams.values() if stream.units]:
                backlog = () if stream.told else tuple(journal.lines())
                stream.told = True
                commit = Committed(step, coefficient, rate, self._facts(), line, backlog, journal.recorded, last)
                self._send(stream, commit, 1 if stream in awaited else 0)
            self._await(awaited, lambda stream: stream.under_way == 0, f"the commit of step {step}")
            for stream in awaited:
                if stream.refusal is not None:
                    # Nobody has heard of the commit yet, and who takes over would not know of it.
                    raise ViewBrokenError(stream.refusal)

    def abandoned(self) -> None:
        """The next step is not committed in this view, whatever is prepared of it."""
        with self._turn:
            for stream in list(self._streams.values()):
                stream.pace.step_ends(None)
                if stream.in_sync:
                    self._send(stream, Abandoned(self._state.step + 1))

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """While the committed step is taken. What is on its way is sent from the block itself, and awaited."""
        with self._turn:
            self._fixed = True
            self._await(list(self._streams.values()), lambda stream: stream.under_way == 0, "its part of the state")
        yield
        with self._turn:
            self._release()

    def _await(self, streams: list[Stream], holds: Callable[[Stream], bool], what: str) -> None:
        """Wait until ``holds`` of each; one that takes next to nothing meanwhile is let go, because all ranks wait with this one."""
        end = time.monotonic() + self._longest
        for stream in streams:
            while not (stream.over or holds(stream)):
                enough = stream.taken + WINDOW

                def goes_on(stream: Stream = stream, enough: int = enough) -> bool:
                    return stream.over or holds(stream) or stream.taken >= enough

                left = end - time.monotonic()
                if not self._turn.wait_for(goes_on, min(self._patience, left)):
                    limit = self._patience if left > self._patience else self._longest
                    self._end(stream, f"it did not take {what} within {limit:g} s")

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
            state = self._state
            begin = Begin(self._transport.address, state.identity, stream.share.placed, state.frozen)
            self._transport.tell(stream.address, Part(stream.number, next(stream.parts), begin), answer)
            if not self._turn.wait_for(lambda: stream.over or has is not None, BEGIN_SECONDS):
                self._end(stream, f"it did not answer within {BEGIN_SECONDS:g} s")
        if self._copy(stream, -1 if has is None else has):
            self._finish(stream)

    def _copy(self, stream: Stream, has: int) -> bool:
        """Send its share of the state; True when the follower has all of it, or had it before, at step ``has``."""
        units = stream.share.units
        with self._turn:
            stream.pace.begin()
        while True:
            with self._turn:
                self._turn.wait_for(lambda: stream.over or (not self._fixed and stream.copy_may_go))
                if stream.over:
                    return False
                step = self._state.step
                if step < 0:
                    self._end(stream, None, _NO_STATE)
                    return False
                known = not self._replaced or stream.address in self._since
                if stream.units == 0 and has == step and known:
                    stream.units = len(units)  # it has followed before
                if stream.complete:
                    return True
                first, last = stream.units, stream.units + 1
                start = units[first].start
                while last < len(units) and units[last].start == units[last - 1].stop and units[last].stop - start <= _COPY_PART:
                    last += 1
                span = slice(start, units[last - 1].stop)
                values = [array.cpu() for array in self._state.lent(span, 0, 3)]
                size = sum(value.nbytes for value in values)
                stream.units = last
                send = self._sending(stream, State(first, last, step, values), size)
                stream.copied += size
                copies = sum(not other.complete for other in self._streams.values())
            send()
            stream.stopped.wait(size * self._second_per_byte * max(1, copies))
            self._keep_pace(stream)

    def _keep_pace(self, stream: Stream) -> None:
        """Wait until more of the state may go. The pace changes with training."""
        left = _LOOK_SECONDS
        while left > 0 and not stream.over:
            with self._turn:
                left = stream.pace.wait(stream.copied)
            stream.stopped.wait(min(left, _LOOK_SECONDS))

    def _forward(self, stream: Stream) -> None:
        """In a thread of its own: sends what is due, so that no computation waits for a copy of it."""
        while True:
            with self._turn:
                self._turn.wait_for(lambda: stream.over or stream.due)
                if stream.over:
                    return
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
            if not stands():
                return
            stream.due.popleft()
            sent = body.nbytes if isinstance(body, Gradients) else 0
            send = self._sending(stream, body, max(1, sent))
            stream.forwarded += sent
        send()

    def _finish(self, stream: Stream) -> None:
        """Have the follower compare what it has. The state is read beside training, and again when a step was taken meanwhile."""
        runs = stream.share.runs
        for attempt in range(_READS + 1):
            with self._turn:
                self._turn.wait_for(lambda: stream.over or not self._fixed)
                if stream.over:
                    return
                step = self._state.step
                if attempt == _READS:
                    self._level(stream, self._state.digest(runs))
                    return
            digest = self._state.digest(runs)
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
        stream.in_sync = True
        self._since.add(stream.address)
        self._send(stream, InSync(self._state.step, self._facts(), digest, self._state.committed))

    def _facts(self) -> Facts:
        return self._state.facts

    def _send(self, stream: Stream, body: Body, size: int = 0) -> None:
        self._sending(stream, body, size)()

    def _sending(self, stream: Stream, body: Body, size: int) -> Callable[[], None]:
        """With the turn: ``body`` is the stream's next part, and on its way. Returns what sends it, which needs no turn and takes some time:
        the compute thread wants the turn for each gradient that is final.
        """

        def done(problem: str | None, answer: int) -> None:
            with self._turn:
                stream.under_way -= size
                stream.taken += size
                stream.took(ahead, time.monotonic() - begun)
                stream.waiting = max(0, answer)  # below 0 it is none of a part that was taken
                if answer == LEFT and not stream.over:
                    # It takes over, or is needed for the next view: what is committed here would be lost.
                    inbox, stream.refusal = self._transport.inbox, f"this rank's follower was told to leave: {problem}"
                    inbox.fail(inbox.view, stream.refusal)
                if problem is not None:
                    self._end(stream, problem)
                self._turn.notify_all()

        stream.under_way += size
        ahead, begun = stream.under_way, time.monotonic()
        part = Part(stream.number, next(stream.parts), body)
        return lambda: self._transport.tell(stream.address, part, done)

    def _fail(self, stream: Stream, reason: str) -> None:
        with self._turn:
            self._end(stream, reason)

    def _end(self, stream: Stream, reason: str | None, told: str = "it is not to follow any more") -> None:
        """Let go of ``stream``; ``reason``: why it failed, None: it was to end, for the reason that is ``told``."""
        if stream.over:
            return
        stream.over = True
        stream.stopped.set()
        if self._streams.get(stream.address) is stream:
            del self._streams[stream.address]
            if reason is not None:
                # The operator decides whether there is to be another.
                self._wanted.pop(stream.address, None)
        self._turn.notify_all()
        # One that lives must not take what it has for one in sync: it gets older with every step.
        self._send(stream, Over(reason or told))
        self._transport.drop(stream.address)
        if reason is not None:
            log.warning("the follower at %s is let go: %s", stream.address, reason)
            self._lost(stream.address, reason)
