"""The follower's side: takes a source's state into its own memory, and every later step with it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from lmj_api.protocol import EventKind
from lmj_trainer import linux
from lmj_trainer.follow.tally import Tally
from lmj_trainer.state.facts import Facts
from lmj_trainer.state.journal import Line
from lmj_trainer.state.stage_state import Best
from lmj_trainer.transport.feed import FeedOverError
from lmj_trainer.transport.parts import Abandoned, Body, Committed, Gradients, InSync, Over, Prepared, State

if TYPE_CHECKING:
    from lmj_trainer.follow.port import Control
    from lmj_trainer.state.optimizer import AdamW
    from lmj_trainer.state.stage_state import StageState
    from lmj_trainer.transport.feed import Feed, Offer
    from lmj_trainer.transport.port import Transport

log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.25
"""How long an order from the agent may wait for the follower to look."""
_TELL_SECONDS = 10.0
"""Signs of life: what it has at the end is told at the end."""
_COPY_TELL_SECONDS = 1.0
"""While it copies."""
_COPIES = "copies its source's state"


class Follower:
    """Follows one stream at a time, in the compute thread.

    While the copy is under way the block is no step's. Each part of it is of the step that the parts before it have been brought to, for
    the gradients of every step between were sent for them; so once it is complete it is the source's state, to the bit.
    """

    def __init__(
        self,
        feed: Feed,
        state: StageState,
        optimizer: AdamW,
        transport: Transport,
        control: Control,
        rehearse: Callable[[], None] = lambda: None,
    ) -> None:
        """``rehearse`` does once what a step does, so that the first one that counts is not slower than others."""
        self._feed, self._state, self._optimizer = feed, state, optimizer
        self._transport, self._control = transport, control
        self._rehearse, self._rehearsed = rehearse, False
        # Of the stream that is followed:
        self._groups: int
        """Of a copy that is under way: groups that are there."""
        self._promised: bool
        """Its source may take the step that is prepared, on this worker's word."""
        self._told: float
        self._tally: Tally

    def run(self, offer: Offer) -> None:
        """Follow until the stream ends: its source is gone, or this worker is told something else. What is in memory then is told."""
        state, sender = self._state, offer.begin.sender
        if self._feed.is_over(offer.stream):
            return
        if offer.begin.layout != state.layout:
            offer.done("the follower's memory has another layout: it is not of the same job, stage or version", -1)
            return
        self._groups, self._promised = 0, False
        self._tally = Tally(state.saved.nbytes)
        self._transport.keep(sender, lambda reason: self._feed.lose(f"its source is gone: {reason}"))
        self._told = time.monotonic()
        self._control.emit(EventKind.FOLLOWING, _COPIES, holding=None, copied=self._tally.told)
        if not self._rehearsed:
            # Half of what a copy would cost here: beside a source that trains on the machine's other core.
            state.populate()
            self._rehearse()
            self._rehearsed = True
        # On one machine who trains comes first, from here on: who gets nothing of the processor is waited for now.
        with linux.behind_others():
            offer.done(None, state.step)
            try:
                self._follow(offer)
                reason = "the agent has other work for it"
            except FeedOverError as error:
                reason = str(error)
        self._feed.close(offer.stream, reason)
        self._transport.drop(sender)
        log.info("follows no more: %s", reason)
        self._control.emit(
            EventKind.LOST_PEER, reason, view=self._transport.inbox.view, holding=state.holding, copied=self._tally.told
        )

    def _follow(self, offer: Offer) -> None:
        """Take what comes until there is an order. Raises FeedOverError."""
        while not self._control.ordered:
            taken = self._feed.take(offer.stream, _LOOK_SECONDS, promised=self._promised)
            if taken is None:
                continue
            part, done = taken
            try:
                self._take(part.body)
            except FeedOverError as error:
                done(str(error), -1)
                raise
            done(None, self._feed.waiting)
            if isinstance(part.body, Committed):
                self._apply()  # nobody need wait for this

    def _take(self, body: Body) -> None:
        state = self._state
        match body:
            case State(first, last, step, values):
                if first != self._groups:
                    raise RuntimeError(f"groups from {first} on came after group {self._groups}")
                if first == 0:
                    state.fill(-1)
                    state.forget_gradients()
                span = slice(state.groups[first].span.start, state.groups[last - 1].span.stop)
                for own, value in zip(state.arrays(span, 0, 3), values, strict=True):
                    own.copy_(value)
                self._groups = last
                self._tally.state(sum(value.nbytes for value in values), step)
                if time.monotonic() - self._told > _COPY_TELL_SECONDS:
                    self._tell(_COPIES)
            case Gradients():
                # They may be of a step that is done again, and are not all until it is told.
                state.unprepare()
                self._promised = False
                state.dirty = True
                body.write(state.arrays(slice(0, state.size), 3)[0])
                self._tally.gradients(body.nbytes)
            case InSync(step, facts, digest, committed):
                if state.step != step and self._groups != len(state.groups):
                    raise RuntimeError(f"only {self._groups} of {len(state.groups)} groups came")
                mine = state.digest()
                if mine != digest:
                    state.fill(-1)
                    raise FeedOverError(f"its state of step {step} is not that of its source: digest {mine}, not {digest}")
                # Now it counts, also for a worker after this one.
                self._remember(facts)
                if state.step == step:
                    state.forget_gradients()  # of a step that the source may do again
                else:
                    state.fill(step, committed)
                self._tally.in_sync(step, mine)
                self._tell(f"is in sync at step {step}: its state has digest {digest}, as its source's")
            case Over(reason):
                raise FeedOverError(reason)
            case Prepared():
                state.prepare()
                self._promised = True
            case Abandoned():
                self._promised = False
            case Committed(step, coefficient, rate, facts, line, backlog, recorded):
                self._promised = False
                state.journal.settle(recorded)
                state.journal.merge(backlog, ())
                if line is not None:
                    state.journal.add(Line(step, line, time.time()))
                self._tally.committed(step)
                if state.step >= 0:
                    if state.step + 1 != step:
                        raise RuntimeError(f"step {step} was committed, and here is step {state.step}")
                    self._remember(facts)
                    state.line = line
                    state.commit(coefficient, rate)
                else:
                    self._optimizer.apply_to(self._groups, step, coefficient, rate)

    def _apply(self) -> None:
        """Take the step that is committed."""
        self._optimizer.apply()
        if self._state.step >= 0 and time.monotonic() - self._told > _TELL_SECONDS:
            self._tell(f"is at step {self._state.step}")

    def _remember(self, facts: Facts) -> None:
        self._state.seconds, self._state.evaluated = facts.seconds, facts.evaluated
        self._state.best = Best(facts.best_step, facts.best_accuracy)

    def _tell(self, message: str) -> None:
        self._told = time.monotonic()
        self._control.emit(EventKind.FOLLOWING, message, holding=self._state.holding, copied=self._tally.told)
