"""One rank's part in the steps and evaluations of one view: a stage, for the shards of its replica."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lmj_api.shards import share
from lmj_trainer.model.stage import Place
from lmj_trainer.strategy.pipeline.backward import Deferred, Done, backward, backward_input, backward_weights
from lmj_trainer.strategy.pipeline.exchange import Exchange
from lmj_trainer.strategy.pipeline.schedule import Op, Work, first_cut, order
from lmj_trainer.strategy.pipeline.sums import ShardSums
from lmj_trainer.strategy.pipeline.tied import Ends
from lmj_trainer.strategy.pipeline.tree import total_loss
from lmj_trainer.transport.envelope import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from lmj_trainer.group.commit import Report
    from lmj_trainer.group.group import Group
    from lmj_trainer.model.part import Part
    from lmj_trainer.state.stage_state import StageState
    from lmj_trainer.strategy.step_data import StepData
    from lmj_trainer.task.port import Counts, Objective


@dataclass(frozen=True)
class _Piece:
    """A micro-batch that this replica computes."""

    place: Place
    shard: int
    inputs: Any
    """What the stage reads, with its ``labels``."""


class Pipeline:
    """Runs this rank's stage. All methods are for the compute thread; they raise ViewBrokenError when the view breaks."""

    def __init__(self, stage: Part, state: StageState, group: Group, batches: StepData, objective: Objective) -> None:
        self._stage, self._state, self._group, self._batches, self._objective = stage, state, group, batches, objective
        topology, rank = group.topology, group.rank
        self._shards = range(batches.shards)
        """Those of this replica, in the view."""
        self._sums = ShardSums(state.gradient, batches.shards)
        self._ends = Ends(state, group, stage.tied)
        self._number, self._stages = topology.stage(rank), topology.stages
        self._before, self._after = topology.before(rank), topology.after(rank)
        self._end = topology.last(rank)
        self._weights = [p for _, p in stage.parameters_by_name()]
        # The first stage has no input to give a gradient by, and recomputed activations can be walked through only once.
        self._cut = stage.halves and not stage.first and not stage.recompute
        self._deferred: deque[tuple[int, Deferred]] = deque()
        """What is left to do for a micro-batch's weights, with its shard."""
        self._hidden: dict[int, Tensor] = {}
        self._outputs: dict[int, Tensor] = {}
        self._losses: dict[int, list[Tensor]] = {}
        """Of micro-batches, by shard, on the last stage."""
        self._scale = state.loss_scale
        """Of the step."""
        self.compute_seconds = 0.0

    def gradients(self, step: int, final: Done | None = None) -> list[float]:
        """Run the micro-batches of the 0-based ``step`` that are this replica's; the gradient of all of them is in the state then.

        ``final`` is told of each parameter when its gradient is complete, of those that get any; of several shards, of its parts.
        Returns the loss of each of its shards on the last stage, weighed by the shard's part of the samples; nothing on others.
        """
        # A single stage waits for nobody: without this it would not notice that its view is over.
        self._group.check()
        # Not a part of what it computes: storage may be slow.
        self._batches.fetch(step, self._group.check)
        begin, waited = time.monotonic(), self._group.waited
        topology = self._group.topology
        replicas = topology.present
        self._shards = share(self._batches.shards, len(replicas), replicas.index(topology.rank(self._group.rank).replica))
        batch, samples = self._pieces(step)
        self._losses = {}
        self._scale = self._state.loss_scale
        self._sums.begin(self._shards)
        final = self._ends.others(final)
        several = self._batches.shards > 1
        exchange = Exchange(self._group, self._state, self._sums, step, final, self._ends.spans) if several else None
        added = final if exchange is None else exchange.final
        last, cut = len(batch) - 1, first_cut(self._stages, len(batch))
        try:
            for op in order(self._number, self._stages, len(batch)):
                self._make_room(step, op, batch)
                if op.work is Work.FORWARD:
                    self._forward(step, batch[op.micro_batch], samples)
                else:
                    done = added if op.micro_batch == last else None
                    self._backward(step, batch[op.micro_batch], done, cut=self._cut and op.micro_batch >= cut)
            while self._deferred:
                # First in, first out: what is added last is the last micro-batch's.
                self._add_deferred(added if len(self._deferred) == 1 else None)
        finally:
            # Left by a broken view: graphs of a step that will be done again.
            self._deferred.clear()
            self._hidden.clear()
            self._outputs.clear()
        exchanged = 0.0 if exchange is None else exchange.seconds
        self.compute_seconds = time.monotonic() - begin - (self._group.waited - waited) - exchanged
        if exchange is not None:
            exchange.finish()
        self._ends.finish(step)
        return [sum((loss.item() for loss in losses), 0.0) for losses in self._losses.values()]

    def _pieces(self, step: int) -> tuple[list[_Piece], int]:
        """The micro-batches of this replica, and the samples of all replicas'."""
        mine: list[_Piece] = []
        samples, number, first = 0, 0, 0
        for shard, parts in enumerate(self._batches.train(step)):
            for rows in parts:
                place = Place(step, number, first)
                if shard in self._shards:
                    inputs = self._batches.inputs("train", rows, place)
                    mine.append(_Piece(place, shard, inputs))
                    samples += self._objective.samples(inputs.labels)
                else:
                    samples += self._objective.samples(self._batches.targets("train", rows, place))
                number, first = number + 1, first + len(rows)
        return mine, samples

    def whole(self, reports: Sequence[Report]) -> tuple[float, Tensor]:
        """As of :class:`~lmj_trainer.strategy.port.Strategy`: stages have the model's parameters in order, last ones the losses of shards."""
        topology, shards = self._group.topology, self._batches.shards
        losses = [loss for report in reports for loss in report.losses]
        by_rank = dict(zip(topology.ranks, reports, strict=True))
        norms = [by_rank[rank].norms for rank in topology.writers]
        return total_loss(dict(enumerate(losses)), (0, shards)), torch.cat(norms)

    def rehearse(self) -> None:
        """Do the work of a micro-batch and forget it: kernels are chosen and memory is there when the first one comes that counts.

        Nothing is sent, and neither weights nor gradients change.
        """
        inputs = self._batches.rehearsal()
        hidden = None if self._stage.first else self._stage.blank(inputs)
        if hidden is None and not self._stage.first:
            return
        output = self._stage(inputs, hidden, Place(0, 0))
        loss = self._objective.loss(output, inputs.labels) if self._stage.last else output.sum()
        kept = [weight.grad for weight in self._weights]

        def drop(weight: Tensor) -> None:
            weight.grad = None

        # Each as soon as it is there: all together they would be memory that is never needed again.
        try:
            for weight in self._weights:
                drop(weight)
            backward(loss, None, self._weights, drop)
        finally:
            for weight, grad in zip(self._weights, kept, strict=True):
                weight.grad = grad

    def _make_room(self, step: int, op: Op, batch: Sequence[_Piece]) -> None:
        # Nobody waits for weight gradients: do them while the next piece of work is not ready.
        number = batch[op.micro_batch].place.micro_batch
        while self._deferred and not self._ready(step, op.work, number):
            self._add_deferred(None)

    def _add_deferred(self, final: Done | None) -> None:
        shard, deferred = self._deferred.popleft()
        self._sums.reach(shard)
        backward_weights(deferred, self._weights, final)

    def _ready(self, step: int, work: Work, number: int) -> bool:
        group = self._group
        if work is Work.FORWARD:
            return self._before is None or group.poll(Kind.ACTIVATION, step, self._before, number)
        return self._after is None or group.poll(Kind.GRADIENT, step, self._after, number)

    def _forward(self, step: int, piece: _Piece, samples: int) -> None:
        hidden, micro_batch, inputs = None, piece.place.micro_batch, piece.inputs
        if self._before is not None:
            hidden = self._group.take(Kind.ACTIVATION, step, self._before, micro_batch).to(self._stage.device).requires_grad_()
            self._hidden[micro_batch] = hidden
        output = self._stage(inputs, hidden, piece.place)
        if self._after is None:
            output = self._objective.loss(output, inputs.labels) * (self._objective.samples(inputs.labels) / samples)
            # Not as a number yet: a GPU would be waited for, and have nothing to do next.
            self._losses.setdefault(piece.shard, []).append(output.detach())
            if self._scale is not None:
                output = output * self._scale.factor
        else:
            self._group.send(self._after, Kind.ACTIVATION, step, micro_batch, output.detach().cpu())
        self._outputs[micro_batch] = output

    def _backward(self, step: int, piece: _Piece, final: Done | None, *, cut: bool) -> None:
        micro_batch = piece.place.micro_batch
        output = self._outputs.pop(micro_batch)
        grad = None
        if self._after is not None:
            grad = self._group.take(Kind.GRADIENT, step, self._after, micro_batch).to(self._stage.device)
        if self._before is None:
            self._sums.reach(piece.shard)
            backward(output, grad, self._weights, final)
            return
        hidden = self._hidden.pop(micro_batch)
        if cut:
            upstream, deferred = backward_input(output, grad, hidden, self._weights)
            self._deferred.append((piece.shard, deferred))
        else:
            self._sums.reach(piece.shard)
            backward(output, grad, self._weights, final)
            assert hidden.grad is not None, "the output depends on the input"
            upstream = hidden.grad
        self._group.send(self._before, Kind.GRADIENT, step, micro_batch, upstream.cpu())

    @torch.no_grad()
    def evaluate(self, split: str, step: int, tick: Callable[[int, int], None]) -> Counts | None:
        """Run ``split`` forward with the weights of ``step`` committed steps, each replica as many of its micro-batches. ``tick(done, all)`` is
        called as those of the leader's replica end.

        Returns the counts on the leader, None on others.
        """
        topology, group = self._group.topology, self._group
        replicas, mine = topology.present, topology.rank(group.rank).replica
        parts = self._batches.evaluation(split)
        counts = self._counts(split, step, range(replicas.index(mine), len(parts), len(replicas)), parts, tick)
        if counts is None:
            return None
        if not group.leads:
            group.send(group.leader, Kind.COUNTS, step, payload=counts.payload())
            return None
        for replica in replicas[1:]:
            counts.merge(group.take(Kind.COUNTS, step, topology.ranks_of(replica)[0]))
        return counts

    def _counts(
        self, split: str, step: int, mine: range, parts: Sequence[NDArray[np.int64]], tick: Callable[[int, int], None]
    ) -> Counts | None:
        """What this replica counts of ``parts``, of which it runs ``mine``. None: the rank of its first stage has that."""
        counts, ahead = self._objective.counts(), 2 * self._stages
        first = self._group.rank - self._number
        self._stage.set_training(False)
        try:
            for done, i in enumerate(mine):
                # Negative: an evaluation's messages are never taken for a step's.
                index = -1 - i
                inputs = self._batches.inputs(split, parts[i])
                hidden = None if self._before is None else self._group.take(Kind.ACTIVATION, step, self._before, index)
                output = self._stage(inputs, None if hidden is None else hidden.to(self._stage.device), None)
                if self._after is not None:
                    self._group.send(self._after, Kind.ACTIVATION, step, index, output.cpu())
                else:
                    counts.add(i, output, inputs.labels)
                    if self._before is not None:
                        self._group.send(first, Kind.CREDIT, step, index, counts.payload() if i == mine[-1] else None)
                if self._before is None:
                    if self._after is not None and done >= ahead:
                        self._group.take(Kind.CREDIT, step, self._end, -1 - mine[done - ahead])
                    if self._group.leads:
                        tick(done + 1, len(mine))
            if self._before is not None:
                return None
            if self._after is not None:
                for i in mine[-ahead:]:
                    payload = self._group.take(Kind.CREDIT, step, self._end, -1 - i)
                    counts = self._objective.counts(payload) if i == mine[-1] else counts
            return counts
        finally:
            self._stage.set_training(True)
