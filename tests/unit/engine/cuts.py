"""Ranks of one cut of the layers that train, and workers of another that follow them, each in a thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from lmj_api.cut import Cut
from lmj_api.protocol import Holding, Recut
from lmj_api.spec import Training
from lmj_api.view import Member
from lmj_trainer.follow.follower import Follower
from lmj_trainer.follow.source import Source
from lmj_trainer.state.journal import Line as Recorded
from lmj_trainer.state.loss_scale import LossScale
from lmj_trainer.state.optimizer import AdamW
from lmj_trainer.state.stage_state import Best, StageState
from lmj_trainer.transport.feed import Offer
from lmj_trainer.transport.memory import MemoryTransport
from lmj_trainer.worker.recut import shares_of

from .pair import SECONDS, Line

Make = Callable[[range, bool], Any]
"""A stage of these layers and its state, with weights or without any."""


@dataclass
class Rank:
    """One that trains."""

    stage: Any
    state: StageState
    optimizer: AdamW
    transport: MemoryTransport
    source: Source
    lost: list[str] = field(default_factory=list)


class Next:
    """One of the next cut."""

    def __init__(self, network: dict[str, MemoryTransport], name: str, made: Any) -> None:
        self.stage, self.state = made
        self.optimizer = AdamW(self.state, Training())
        self.transport = MemoryTransport(network, name)
        self.line = Line()
        self.follower = Follower(self.transport.feed, self.state, self.optimizer, self.transport, self.line)  # type: ignore[arg-type]
        self._offers: queue.SimpleQueue[Offer | None] = queue.SimpleQueue()
        self.transport.feed.listen(self._offers.put)
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        while (offer := self._offers.get()) is not None:
            self.follower.run(offer)

    def close(self) -> None:
        self.transport.feed.stop("the test is over")
        self._offers.put(None)
        self._thread.join(SECONDS)
        assert not self._thread.is_alive()


class Cuts:
    """``old`` trains on made-up gradients, ``new`` is to take over."""

    def __init__(self, make: Make, old: Sequence[range], new: Sequence[range]) -> None:
        self.network: dict[str, MemoryTransport] = {}
        self.ranks: list[Rank] = []
        for number, layers in enumerate(old):
            stage, state = make(layers, True)
            state.fill(0)
            state.loss_scale = LossScale(0, exponent=1)
            transport = MemoryTransport(self.network, f"old-{number}")
            lost: list[str] = []
            source = Source(transport, state, lambda address, reason, lost=lost: lost.append(reason), SECONDS, 3 * SECONDS)
            self.ranks.append(Rank(stage, state, AdamW(state, Training()), transport, source, lost))
        self.nexts = [Next(self.network, f"new-{number}", make(layers, False)) for number, layers in enumerate(new)]
        self.recut = Recut(cut=Cut(stages=len(new), layers=[len(layers) for layers in new]), followers=self.members())

    def members(self, ranks: Iterable[int] | None = None) -> list[Member]:
        """The ``ranks`` of the next cut; None: all."""
        every = range(len(self.nexts)) if ranks is None else ranks
        return [Member(rank=rank, pod=f"new-{rank}", incarnation=1, address=f"new-{rank}") for rank in every]

    def close(self) -> None:
        for each in self.nexts:
            each.close()

    @property
    def step(self) -> int:
        """That of those that train."""
        (step,) = {rank.state.step for rank in self.ranks}
        return step

    def follow(self, recut: Recut | None, ranks: Iterable[int] | None = None) -> None:
        """Have those of ``recut`` follow; ``ranks``: whom, None: all."""
        for number in range(len(self.ranks)) if ranks is None else ranks:
            rank = self.ranks[number]
            rank.source.recut(shares_of(recut, rank.stage, rank.state))

    def gradients(self) -> None:
        """Of the next step, the last first, as a backward pass makes them."""
        for rank in self.ranks:
            rank.source.boundary()
            for slot in reversed(rank.state.slots):
                slot.grad.copy_(made_up(slot.saved_as, rank.state.step, slot.grad.shape))
                rank.source.final(slot.weight)
            rank.state.dirty = True

    def prepare(self, ranks: Iterable[int] | None = None) -> None:
        for number in range(len(self.ranks)) if ranks is None else ranks:
            self.ranks[number].state.prepare()
            self.ranks[number].source.prepared()

    def commit(self, ranks: Iterable[int] | None = None, *, last: bool = False) -> None:
        """``last``: those of the next cut take over after it, and nobody here makes an update."""
        for number in range(len(self.ranks)) if ranks is None else ranks:
            rank = self.ranks[number]
            state, step = rank.state, rank.state.step + 1
            state.seconds, state.evaluated, state.best = step - 0.5, step - 1, Best(step - 1, 0.25)
            line = Recorded(step, f"step {step}", 0.0)
            rank.source.committed(0.5, 1e-3 / step, line.text, first=number == 0, last=last)
            state.journal.add(line)
            state.commit(0.5, 1e-3 / step)
            if not last:
                with rank.source.changing():
                    rank.optimizer.apply()

    def train(self) -> None:
        """A step."""
        self.gradients()
        self.prepare()
        self.commit()

    def in_sync(self) -> bool:
        return all(each.line.in_sync for each in self.nexts)

    def train_until_in_sync(self) -> None:
        for _ in range(60):
            self.train()
            if self.in_sync():
                return
        for each in self.nexts:
            each.line.wait(lambda each=each: each.line.in_sync)

    def hand_over(self) -> list[Holding | None]:
        """What each of the next cut has then."""
        for rank in self.ranks:
            rank.source.boundary()
            assert rank.source.in_sync
        for rank in self.ranks:
            rank.source.hand_over()
        for each in self.nexts:
            each.line.wait(lambda each=each: each.line.over)
        return [each.line.told[-1][2] for each in self.nexts]

    def tensors(self, states: Sequence[StageState]) -> dict[str, torch.Tensor]:
        """Weights and moments by name."""
        return {name: tensor.clone() for state in states for name, tensor in state.tensors()}

    def assert_equal(self) -> None:
        """Both cuts have the same, to the bit."""
        one, two = self.tensors([r.state for r in self.ranks]), self.tensors([n.state for n in self.nexts])
        assert one.keys() == two.keys()
        assert [name for name in one if not torch.equal(one[name], two[name])] == []
        first = self.ranks[0].state
        for each in self.nexts:
            state = each.state
            assert (state.step, state.best, state.seconds, state.evaluated) == (
                first.step,
                first.best,
                first.seconds,
                first.evaluated,
            )
            assert state.committed == first.committed
            assert state.loss_scale == first.loss_scale
            assert [line.text for line in state.journal.lines()] == [line.text for line in first.journal.lines()]


def made_up(name: str, step: int, shape: torch.Size) -> torch.Tensor:
    """The gradient of a parameter: a function of its name and the step."""
    generator = torch.Generator().manual_seed(sum(name.encode()) * 1000 + step)
    return torch.randn(shape, generator=generator)
