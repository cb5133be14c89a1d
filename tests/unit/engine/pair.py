"""A source that trains, and its follower in a thread."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

from lmj_api.protocol import Copied, EventKind, Holding
from lmj_api.spec import Model, Training
from lmj_trainer.follow.follower import Follower
from lmj_trainer.follow.source import Source
from lmj_trainer.state.journal import Line as Recorded
from lmj_trainer.state.loss_scale import LossScale
from lmj_trainer.state.optimizer import AdamW
from lmj_trainer.state.stage_state import Best, StageState
from lmj_trainer.transport.feed import Offer
from lmj_trainer.transport.memory import MemoryTransport

SECONDS = 20.0
"""For anything that is expected to happen."""


class Line:
    """The follower's line to its agent."""

    def __init__(self) -> None:
        self.ordered = False
        self.told: list[tuple[EventKind, str, Holding | None]] = []
        self.copied: list[Copied] = []
        self.changed = threading.Condition()

    def emit(self, kind: EventKind, message: str = "", **details: Any) -> None:
        with self.changed:
            self.told.append((kind, message, details["holding"]))
            self.copied.append(details["copied"])
            self.changed.notify_all()

    def wait(self, holds: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(holds, SECONDS), self.told

    @property
    def over(self) -> bool:
        return bool(self.told) and self.told[-1][0] is EventKind.LOST_PEER

    @property
    def in_sync(self) -> bool:
        return bool(self.told) and self.told[-1][0] is EventKind.FOLLOWING and self.told[-1][2] is not None


class Pair:
    """A source that trains on made-up gradients, and its follower in a thread."""

    def __init__(self, make_state: Callable[..., Any], config: Any) -> None:
        self.network: dict[str, MemoryTransport] = {}
        self.transports = [MemoryTransport(self.network, name) for name in ("source", "follower")]
        self.states: list[StageState] = [make_state(config, range(1, 3), model=m)[1] for m in (source_model(), None)]
        self.optimizers = [AdamW(state, Training()) for state in self.states]
        self.lost: list[str] = []
        """Why followers were let go."""
        self.first = False
        """The source is rank 0: its follower is to know of a commit before anybody else."""
        self.states[0].fill(0)
        self.states[0].loss_scale = LossScale(0, exponent=1)
        self.source = Source(self.transports[0], self.states[0], self.let_go, SECONDS, 3 * SECONDS)
        self.line = Line()
        self.follower = Follower(self.transports[1].feed, self.states[1], self.optimizers[1], self.transports[1], self.line)  # type: ignore[arg-type]
        self.offers: queue.SimpleQueue[Offer | None] = queue.SimpleQueue()
        self.transports[1].feed.listen(self.offers.put)
        self.thread = threading.Thread(target=self._follow, daemon=True)
        self.thread.start()

    def let_go(self, address: str, reason: str) -> None:
        """As the source tells it."""
        self.lost.append(reason)

    def _follow(self) -> None:
        while (offer := self.offers.get()) is not None:
            self.follower.run(offer)

    def close(self) -> None:
        self.transports[1].feed.stop("the test is over")
        self.offers.put(None)
        self.thread.join(SECONDS)
        assert not self.thread.is_alive()

    def gradients(self) -> None:
        """Of the next step."""
        state = self.states[0]
        torch.manual_seed(state.step)
        for slot in state.slots:
            slot.grad.normal_()

    def final(self) -> None:
        """They are final, the last first, as a backward pass makes them."""
        for slot in reversed(self.states[0].slots):
            self.source.final(slot.weight)

    def prepare(self) -> None:
        self.source.boundary()
        self.gradients()
        self.states[0].prepare()
        self.source.prepared()

    def commit(self, *, last: bool = False) -> None:
        """``last``: the follower takes over after it, and its source makes no update."""
        state = self.states[0]
        state.seconds, state.evaluated, state.best = state.step + 0.5, state.step, Best(state.step, 0.25)
        rate = 1e-3 / (state.step + 1)
        line = Recorded(state.step + 1, f"step {state.step + 1}", 0.0)
        self.source.committed(0.5, rate, line.text, first=self.first, last=last)
        state.journal.add(line)
        state.commit(0.5, rate)
        if not last:
            self.update()

    def update(self) -> None:
        """The source makes the update of what it committed."""
        with self.source.changing():
            self.optimizers[0].apply()

    def step(self) -> None:
        self.prepare()
        self.commit()

    def follow(self) -> None:
        """A step, with a follower that is in sync."""
        self.source.follow("follower")
        self.step()
        self.line.wait(lambda: self.line.in_sync)

    def stop(self) -> Holding | None:
        """End it, as the agent does; what the follower has then."""
        self.transports[1].feed.stop("enough")
        self.line.wait(lambda: self.line.over)
        return self.line.told[-1][2]

    def await_refusal(self) -> None:
        """Until the source's thread that begins with a follower has given up."""
        for thread in threading.enumerate():
            if thread.name == "follow":
                thread.join(SECONDS)

    def assert_equal(self) -> None:
        one, two = self.states
        assert one.step == two.step
        assert torch.equal(one.saved, two.saved)
        assert (one.best, one.seconds, one.evaluated) == (two.best, two.seconds, two.evaluated)
        assert one.loss_scale == two.loss_scale
        assert one.loss_scale is not None
        assert one.loss_scale.step == one.step


def eventually(holds: Callable[[], bool]) -> None:
    """Wait until ``holds``."""
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"not within {SECONDS:g} s"
        time.sleep(0.01)


def source_model() -> Any:
    return Model.model_validate({"scratch": {}})
