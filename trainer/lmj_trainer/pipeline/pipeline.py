"""One stage's part in the steps and evaluations of one view."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor

from lmj_trainer.model.stage import Inputs, Place
from lmj_trainer.pipeline.backward import Deferred, Done, backward, backward_input, backward_weights
from lmj_trainer.pipeline.schedule import Op, Work, most_deferred, order
from lmj_trainer.transport.envelope import Envelope, Kind

if TYPE_CHECKING:
    from collections.abc import Callable

    from lmj_trainer.model.stage import Stage
    from lmj_trainer.pipeline.batches import Batches
    from lmj_trainer.transport.port import Transport


@dataclass
class Counts:
    """What the last stage counts in an evaluation."""

    loss_sum: float
    confusion: list[list[int]]
    """Rows: true label; columns: predicted label."""


class Pipeline:
    """Runs this rank's stage. All methods are for the compute thread; they raise ViewBrokenError when the view breaks."""

    def __init__(self, stage: Stage, transport: Transport, batches: Batches, rank: int, stages: int, patience: float) -> None:
        """``patience``: seconds after which a message that does not come breaks the view."""
        self.rank, self.stages = rank, stages
        self._stage, self._transport, self._batches, self._patience = stage, transport, batches, patience
        self._weights = [p for _, p in stage.parameters_by_name()]
        # The first stage has no input to give a gradient by, and recomputed activations can be walked through only once.
        self._cut = not stage.first and not stage.recompute
        self._deferred: deque[Deferred] = deque()
        self._hidden: dict[int, Tensor] = {}
        self._outputs: dict[int, Tensor] = {}
        self._losses: list[float] = []

    def send(self, rank: int, kind: Kind, step: int, index: int = 0, payload: Any = None) -> None:
        """Send to ``rank`` in the current view."""
        view = self._transport.inbox.view
        self._transport.send(rank, Envelope(view, kind, step, index, self.rank, payload))

    def take(self, kind: Kind, step: int, sender: int, index: int = 0, *, promised: bool = False) -> Any:
        """Wait for a message of the current view. ``promised``: for a while even when the view is to be left meanwhile."""
        return self._transport.inbox.take(kind, step, index, sender, self._patience, promised=promised)

    def check(self) -> None:
        """Raise ViewBrokenError when the view is to be left."""
        self._transport.inbox.check()

    def gradients(self, step: int, final: Done | None = None) -> list[float]:
        """Run all micro-batches of the 0-based ``step``; gradients add up in the state.

        ``final`` is told of each parameter when its gradient has got the last micro-batch's part, of those that get any.
        Returns the losses of the micro-batches on the last stage, each weighed by its part of the samples; nothing on others.
        """
        # A single stage waits for nobody: without this it would not notice that its view is over.
        self.check()
        batch = self._batches.train(step)
        samples = sum(len(inputs.labels) for inputs in batch)
        self._losses = []
        last = len(batch) - 1
        try:
            for op in order(self.rank, self.stages, len(batch)):
                self._make_room(step, op)
                if op.work is Work.FORWARD:
                    self._forward(step, op.micro_batch, batch[op.micro_batch], samples)
                else:
                    self._backward(step, op.micro_batch, final if op.micro_batch == last else None)
            while self._deferred:
                # First in, first out: what is added last is the last micro-batch's.
                ends = final if len(self._deferred) == 1 else None
                backward_weights(self._deferred.popleft(), self._weights, ends)
        finally:
            # Left by a broken view: graphs of a step that will be done again.
            self._deferred.clear()
            self._hidden.clear()
            self._outputs.clear()
        return self._losses

    def rehearse(self) -> None:
        """Do the work of a micro-batch and forget it: kernels are chosen and memory is there when the first one comes that counts.

        Nothing is sent, and neither weights nor gradients change.
        """
        inputs = self._batches.train(0)[0]
        hidden = None
        if not self._stage.first:
            size = self._stage.config.hidden_size
            hidden = torch.zeros(*inputs.input_ids.shape, size, device=self._stage.device, requires_grad=True)
        output = self._stage(inputs, hidden, Place(0, 0))
        loss = F.cross_entropy(output, inputs.labels) if self._stage.last else output.sum()
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

    def _make_room(self, step: int, op: Op) -> None:
        # Nobody waits for weight gradients: do them while the next piece of work is not ready, and when too many wait.
        while self._deferred and (len(self._deferred) > most_deferred(self.rank, self.stages) or not self._ready(step, op)):
            backward_weights(self._deferred.popleft(), self._weights)

    def _ready(self, step: int, op: Op) -> bool:
        inbox = self._transport.inbox
        if op.work is Work.FORWARD:
            return self._stage.first or inbox.poll(Kind.ACTIVATION, step, op.micro_batch, self.rank - 1)
        return self._stage.last or inbox.poll(Kind.GRADIENT, step, op.micro_batch, self.rank + 1)

    def _forward(self, step: int, micro_batch: int, inputs: Inputs, samples: int) -> None:
        hidden = None
        if not self._stage.first:
            hidden = self.take(Kind.ACTIVATION, step, self.rank - 1, micro_batch).to(self._stage.device).requires_grad_()
            self._hidden[micro_batch] = hidden
        output = self._stage(inputs, hidden, Place(step, micro_batch))
        if self._stage.last:
            output = F.cross_entropy(output, inputs.labels) * (len(inputs.labels) / samples)
            self._losses.append(output.item())
        else:
            self.send(self.rank + 1, Kind.ACTIVATION, step, micro_batch, output.detach().cpu())
        self._outputs[micro_batch] = output

    def _backward(self, step: int, micro_batch: int, final: Done | None) -> None:
        output = self._outputs.pop(micro_batch)
        grad = None if self._stage.last else self.take(Kind.GRADIENT, step, self.rank + 1, micro_batch).to(self._stage.device)
        if self._stage.first:
            backward(output, grad, self._weights, final)
            return
        hidden = self._hidden.pop(micro_batch)
        if self._cut:
            upstream, deferred = backward_input(output, grad, hidden, self._weights)
            self._deferred.append(deferred)
        else:
            backward(output, grad, self._weights, final)
            assert hidden.grad is not None, "the output depends on the input"
            upstream = hidden.grad
        self.send(self.rank - 1, Kind.GRADIENT, step, micro_batch, upstream.cpu())

    @torch.no_grad()
    def evaluate(self, split: str, step: int, labels: int, tick: Callable[[int, int], None]) -> Counts | None:
        """Run ``split`` forward with the weights of ``step`` committed steps. ``tick(done, all)`` is called as micro-batches end (rank 0).

        Returns the counts on rank 0, None on others.
        """
        parts = self._batches.evaluation(split)
        counts = Counts(0.0, [[0] * labels for _ in range(labels)])
        ahead = 2 * self.stages
        self._stage.set_training(False)
        try:
            for i, rows in enumerate(parts):
                # Negative: an evaluation's messages are never taken for a step's.
                index = -1 - i
                inputs = self._batches.inputs(split, rows)
                hidden = None if self._stage.first else self.take(Kind.ACTIVATION, step, self.rank - 1, index)
                output = self._stage(inputs, None if hidden is None else hidden.to(self._stage.device), None)
                if not self._stage.last:
                    self.send(self.rank + 1, Kind.ACTIVATION, step, index, output.cpu())
                else:
                    _count(counts, output, inputs.labels)
                    if self.rank != 0:
                        end = i == len(parts) - 1
                        self.send(0, Kind.CREDIT, step, index, vars(counts) if end else None)
                if self.rank == 0:
                    if self.stages > 1 and i >= ahead:
                        self.take(Kind.CREDIT, step, self.stages - 1, index + ahead)
                    tick(i + 1, len(parts))
            if self.rank != 0:
                return None
            if self.stages > 1:
                for i in range(max(0, len(parts) - ahead), len(parts)):
                    payload = self.take(Kind.CREDIT, step, self.stages - 1, -1 - i)
                counts = Counts(**payload)
            return counts
        finally:
            self._stage.set_training(True)


def _count(counts: Counts, logits: Tensor, labels: Tensor) -> None:
    counts.loss_sum += F.cross_entropy(logits.double(), labels, reduction="sum").item()
    for true, predicted in zip(labels.tolist(), logits.argmax(1).tolist(), strict=True):
        counts.confusion[true][predicted] += 1
