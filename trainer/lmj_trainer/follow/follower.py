"""The follower's side: takes what its sources have of its state into its own memory, and every later step with it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from lmj_api.protocol import EventKind
from lmj_trainer import linux
from lmj_trainer.follow.sourced import Sourced, problem_of
from lmj_trainer.follow.tally import Tally
from lmj_trainer.state.facts import Facts
from lmj_trainer.state.journal import Line
from lmj_trainer.transport.feed import FeedOverError, Offer
from lmj_trainer.transport.parts import Abandoned, Body, Committed, Gradients, InSync, Over, Prepared, State

if TYPE_CHECKING:
    from lmj_trainer.follow.port import Control
    from lmj_trainer.state.optimizer import Optimizer
    from lmj_trainer.state.stage_state import StageState
    from lmj_trainer.transport.feed import Feed
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
    """Follows one source of its whole state, or several that have parts of it, in the compute thread.

    While a copy is under way the block is no step's. Each part of it is of the step that the parts before it have been brought to, for
    the gradients of every step between were sent for them; so once it is complete it is the source's state, to the bit. What different
    sources bring is of different steps until all are complete and at one step: from then on it is one state. A step is committed only when
    all ranks have its gradients, and a source says that it has them when they are here, so the first word of a commit is enough for all.
    """

    def __init__(
        self,
        feed: Feed,
        state: StageState,
        optimizer: Optimizer,
        transport: Transport,
        control: Control,
        rehearse: Callable[[], None] = lambda: None,
        expect: Callable[[int], None] = lambda step: None,
    ) -> None:
        """``rehearse`` does once what a step does, so that the first one that counts is not slower than others. ``expect`` is told of the
        0-based step that would be this worker's next, so that its rows may be read.
        """
        self._feed, self._state, self._optimizer = feed, state, optimizer
        self._transport, self._control = transport, control
        self._rehearse, self._rehearsed, self._expect = rehearse, False, expect
        # Of what is followed:
        self._sources: dict[int, Sourced] = {}
        """By stream."""
        self._whole: bool
        """All sources are in sync at one step: the block is that step's."""
        self._told: float
        self._tally: Tally

    def run(self, offer: Offer) -> None:
        """Follow until a stream ends: a source is gone, or this worker is told something else. What is in memory then is told, and its newest
        step may lack its update.
        """
        state = self._state
        if self._feed.is_over(offer.stream):
            return
        problem = problem_of(offer.begin, state)
        if problem is not None:
            offer.done(problem, -1)
            return
        self._sources, self._whole = {}, False
        self._tally = Tally(state.saved.nbytes)
        self._told = time.monotonic()
        self._control.emit(EventKind.FOLLOWING, _COPIES, holding=None, copied=self._tally.told)
        if not self._rehearsed:
            # Half of what a copy would cost here: beside a source that trains on the machine's other core.
            state.populate()
            self._rehearse()
            self._rehearsed = True
        # On one machine who trains comes first, from here on: who gets nothing of the processor is waited for now.
        with linux.behind_others():
            try:
                self._admit(offer)
                self._follow(offer.stream)
                reason = "the agent has other work for it"
            except FeedOverError as error:
                reason = str(error)
        self._feed.close(offer.stream, reason)
        for source in self._sources.values():
            self._transport.drop(source.sender)
        log.info("follows no more: %s", reason)
        self._control.emit(
            EventKind.LOST_PEER, reason, view=self._transport.inbox.view, holding=state.holding, copied=self._tally.told
        )

    def _admit(self, offer: Offer) -> None:
        """A source begins. Raises FeedOverError: it is another job's."""
        problem = problem_of(offer.begin, self._state)
        if problem is not None:
            offer.done(problem, -1)
            raise FeedOverError(problem)
        source = Sourced(offer, self._state, self._optimizer)
        self._sources[offer.stream] = source
        self._transport.keep(source.sender, lambda reason: self._feed.lose(f"its source is gone: {reason}"))
        self._whole = False
        offer.done(None, source.step)

    def _follow(self, stream: int) -> None:
        """Take what comes until there is an order. Raises FeedOverError."""
        while not self._control.ordered:
            taken = self._feed.take(stream, _LOOK_SECONDS, promised=self._promised)
            if taken is None:
                continue
            if isinstance(taken, Offer):
                self._admit(taken)
                continue
            part, done = taken
            try:
                self._take(self._sources[part.stream], part.body)
            except FeedOverError as error:
                done(str(error), -1)
                raise
            done(None, self._feed.waiting)
            if isinstance(part.body, Committed) and not part.body.last:
                self._apply()  # nobody need wait for this

    @property
    def _promised(self) -> bool:
        """Whether the sources may take the step that is prepared, on this worker's word."""
        return self._whole and all(source.promised for source in self._sources.values())

    @property
    def _prepared(self) -> bool:
        """Whether all gradients of the next step are here."""
        return self._whole and all(source.prepared for source in self._sources.values())

    def _take(self, source: Sourced, body: Body) -> None:
        state = self._state
        again = isinstance(body, Committed) and body.step == state.reached
        if state.lacks_update and not (again or isinstance(body, Over)):
            self._optimizer.apply()  # the source was to leave after that commit, and did not
        match body:
            case State(first, last, step, values):
                state.fill(-1)
                self._whole = False
                source.take(first, last, step, values)
                self._tally.state(sum(value.nbytes for value in values), step)
                if time.monotonic() - self._told > _COPY_TELL_SECONDS:
                    self._tell(_COPIES)
            case Gradients():
                # They may be of a step that is done again, and are not all until it is told.
                state.unprepare()
                state.dirty = True
                source.take_gradients(body)
                self._tally.gradients(body.nbytes)
            case InSync(step, facts, digest, committed):
                self._compare(source, step, digest)
                # Now it counts, also for a worker after this one.
                self._remember(facts)
                self._become_whole(committed, digest if len(self._sources) == 1 else None)
            case Over(reason):
                raise FeedOverError(reason)
            case Prepared():
                source.prepared = source.promised = True
                if self._prepared:
                    state.prepare()
            case Abandoned():
                # What is there of the step stays: who knows how it was committed may tell it in the next view.
                source.promised = False
            case Committed(step, coefficient, rate, facts, line, backlog, recorded):
                state.journal.settle(recorded)
                state.journal.merge(backlog, ())
                if line is not None:
                    state.journal.add(Line(step, line, time.time()))
                self._tally.committed(step)
                if state.step != step:
                    self._remember(facts)
                self._commit(source, step, coefficient, rate, line)

    def _compare(self, source: Sourced, step: int, digest: str) -> None:
        """Whether what ``source`` has brought is what it has itself. Raises FeedOverError when it is not."""
        if not source.complete or source.step != step:
            raise RuntimeError(f"{source.there} units of step {source.step} are here, and are said to be all of step {step}")
        mine = source.digest()
        if mine != digest:
            self._state.fill(-1)
            raise FeedOverError(f"its state of step {step} is not that of its source: digest {mine}, not {digest}")
        source.in_sync = True
        # Of a step that the source may do again.
        self._state.unprepare()
        if self._state.dirty:
            source.forget_gradients()

    def _become_whole(self, committed: tuple[int, float, float] | None, digest: str | None = None) -> None:
        """Once all parameters are here, in sync with their sources and of one step, the block is that step's. ``committed``: how it was.
        ``digest``: of the whole state, where that is known.
        """
        sources, state = self._sources.values(), self._state
        here = sum(len(source.names) for source in sources)
        steps = {source.step for source in sources}
        if here < len(state.slots) or len(steps) > 1 or not all(source.in_sync for source in sources):
            return
        (step,) = steps
        self._whole = True
        for source in sources:
            source.become_whole()
        if state.step != step:
            state.fill(step, committed)
        if self._prepared:
            state.prepare()
        digest = digest or state.digest()
        self._tally.in_sync(step, digest)
        whose = "its source's" if len(sources) == 1 else f"the parts that its {len(sources)} sources have"
        self._expect(step)
        self._tell(f"is in sync at step {step}: its state has digest {digest}, as {whose}")

    def _commit(self, source: Sourced, step: int, coefficient: float, rate: float, line: str | None) -> None:
        state = self._state
        if not self._whole:
            if state.step >= 0:
                state.fill(-1)  # what the others bring is of a step of its own
            source.apply(step, coefficient, rate)
            if source.in_sync:
                self._become_whole((step, coefficient, rate))
            return
        if state.reached == step:
            source.step = step  # another source has told of it
            return
        if state.step + 1 != step:
            raise RuntimeError(f"step {step} was committed, and here is step {state.step}")
        if not self._prepared:
            raise FeedOverError(f"step {step} was committed, and not all of its gradients are here")
        for each in self._sources.values():
            each.taken(step)
        state.line = line
        state.commit(coefficient, rate)

    def _apply(self) -> None:
        """Take the step that is committed."""
        self._optimizer.apply()
        if not self._whole:
            return
        self._expect(self._state.step)
        if time.monotonic() - self._told > _TELL_SECONDS:
            self._tell(f"is at step {self._state.step}")

    def _remember(self, facts: Facts) -> None:
        self._state.facts = facts

    def _tell(self, message: str) -> None:
        self._told = time.monotonic()
        self._control.emit(EventKind.FOLLOWING, message, holding=self._state.holding, copied=self._tally.told)
