"""The state of one stage: weights, the optimizer's moments and gradients, in one block of memory that outlives the process."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import xxhash
from torch import Tensor

from lmj_api.protocol import Holding
from lmj_trainer.state.facts import Facts
from lmj_trainer.state.journal import Journal
from lmj_trainer.state.ledger import HEADER, Count, Ledger, Measure, packed_wait, unpacked_wait
from lmj_trainer.state.loss_scale import LossScale
from lmj_trainer.state.share import ALIGN, CHUNK, Placed

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from lmj_trainer.model.part import Part


@dataclass(frozen=True)
class Slot:
    """One parameter: views into the block, all of its shape, float32."""

    name: str
    decay: bool
    """Whether weight decay applies: not to biases and layer norms."""
    weight: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor
    grad: Tensor
    copy_of: str | None = None
    """The parameter of the first stage that this one is a copy of: value, gradient and moments are the same after each step. It counts in
    no norm and is in no checkpoint. None: it is one itself."""

    @property
    def saved_as(self) -> str:
        """Its name in a checkpoint."""
        return self.copy_of or self.name


@dataclass(frozen=True)
class Group:
    """What changes at once: one span of each array, so that it can be copied as a whole. On the CPU at most CHUNK elements for each thread."""

    span: slice
    """Elements of each array of the block."""
    decay: bool
    parts: list[tuple[Slot, slice]]
    """The tensors in it, flat. Each is updated by itself: what lies between them is padding, and the last elements of a tensor are
    rounded as in any other loop."""


@dataclass(frozen=True)
class Best:
    """The best validation so far."""

    step: int | None = None
    score: float | None = None
    waited: int = 0
    """Evaluations in a row, up to the newest, of which none was better; counted where training may stop early."""
    counted: int = -1
    """The step of the newest evaluation in that; -1: none was counted."""


class StageState:
    """Everything that changes in training (not the stage's frozen weights), after ``step`` committed steps.

    One block: weights, first moments, second moments, gradients, each in the order in which groups change. A snapshot is one copy of
    the first three; the model's parameters and their ``.grad`` are views of it, for good. On the CPU the block and its ledger lie in a file
    of the agent: a worker that is killed, wherever it is, leaves a state with which its successor goes on.
    """

    def __init__(
        self, stage: Part, device: torch.device, memory: int | None = None, identity: str = "", threads: int = 1
    ) -> None:
        """``memory``: descriptor of the agent's file; its content is kept if it was written for the same stage, ``identity`` and ``threads``.

        ``threads``: that compute. Each is to have a chunk of what changes at once, else they meet for less work than their meeting costs.
        """
        named = stage.parameters_by_name()
        self.frozen = stage.frozen
        """Digests of the weights that are not trained, by name: without the same ones this state means nothing."""
        if len(self.frozen) != len(stage.frozen_by_name()):
            raise RuntimeError("the stage's frozen weights are not there yet: a state is of certain ones")
        # LayerNorm and LlamaRMSNorm, for one.
        norms = {f"{n}.{k}" for n, m in stage.modules_by_name() if type(m).__name__.endswith("Norm") for k in ("weight", "bias")}
        shapes = [_Shape(name, p.numel(), name not in norms and not name.endswith(".bias")) for name, p in named]
        # A GPU's memory goes with the process: there the ledger is the process's alone.
        mapped = device.type == "cpu"
        self.chunk = _chunk(device, threads)
        """Elements of the largest group; 0: it may have any number."""
        offsets, spans, size = _place(shapes, self.chunk)
        self.size = size
        self.layout = f"{identity} {[(name, tuple(p.shape), offsets[name]) for name, p in named]} {CHUNK * threads}"
        if self.frozen:
            self.layout += f" {sorted(self.frozen.items())}"
        """What lies where, of which job: memories of one layout hold the same when they are of the same step."""
        self.identity = f"{identity} {CHUNK}"
        """Of which job: memories of one identity have the same in parameters of the same name when they are of the same step."""
        self._ledger = Ledger(4 * 4 * (size + self.chunk) if mapped else 0, self.layout, memory if mapped else None)
        if mapped:
            whole = torch.frombuffer(self._ledger.memory, dtype=torch.float32, offset=HEADER)
        else:
            whole = torch.zeros(4 * (size + self.chunk), dtype=torch.float32, device=device)
        self.block, self.undo = whole[: 4 * size], whole[4 * size :]
        """``undo``: room for a group's weights, moments and gradients before its update, ``[4 * chunk]``."""
        self.slots: list[Slot] = []
        for (name, parameter), shape in zip(named, shapes, strict=True):
            # Not slices: those share one version counter, and autograd would take a changed gradient for a changed weight.
            weight, first, second, grad = (self._tensor(k * size + offsets[name], parameter.shape) for k in range(4))
            slot = Slot(name, shape.decay, weight, first, second, grad, stage.tied.get(name))
            self.slots.append(slot)
            module, _, key = name.rpartition(".")
            fresh = torch.nn.Parameter(slot.weight)
            fresh.grad = slot.grad
            setattr(stage.model.get_submodule(module), key, fresh)
        by_name = {slot.name: slot for slot in self.slots}
        self.groups = [Group(span, decay, [(by_name[name], part) for name, part in parts]) for span, decay, parts in spans]
        """All of the block, in the order in which it changes."""
        self.dirty = True
        """The gradients may not be zero: what an earlier process left there is not known."""
        self.journal = Journal()
        """What is to be recorded of all steps of which nobody has said that it is."""
        stage.materialise(device)

    @property
    def gradient(self) -> Tensor:
        """All gradients, flat float32 ``[size]``, with zeros between them."""
        return self.block[3 * self.size :]

    def arrays(self, span: slice, first: int = 0, last: int = 4) -> list[Tensor]:
        """``span`` of the arrays ``first`` to ``last`` (exclusive) of the block: 0 weights, 1 and 2 moments, 3 gradients."""
        return [self.block[k * self.size + span.start : k * self.size + span.stop] for k in range(first, last)]

    def lent(self, span: slice, first: int = 0, last: int = 4) -> list[Tensor]:
        """As :meth:`arrays`; on the CPU each has a storage of its own over the same memory. A transport sends that as it is, and of a part of
        a larger storage a copy: the block must not change before it has.
        """
        arrays = self.arrays(span, first, last)
        if self.block.device.type != "cpu":
            return arrays
        return [
            torch.frombuffer(
                self._ledger.memory, dtype=a.dtype, count=len(a), offset=HEADER + int(a.storage_offset()) * a.itemsize
            )
            for a in arrays
        ]

    def placed(self, names: Collection[str] | None = None) -> list[Placed]:
        """Where the parameters of these ``names`` lie; None: all of them."""
        return [
            Placed(slot.name, tuple(slot.weight.shape), int(slot.weight.storage_offset()))
            for slot in self.slots
            if names is None or slot.name in names
        ]

    def _tensor(self, offset: int, shape: torch.Size) -> Tensor:
        view = torch.empty(0, dtype=torch.float32, device=self.block.device)
        view.set_(self.block.untyped_storage(), offset, shape, torch.empty(shape, device="meta").stride())
        return view

    # --- where it stands ---------------------------------------------------------------------------------------------------

    @property
    def step(self) -> int:
        """Committed steps; -1: the block is no step's."""
        return self._ledger.counts[Count.STEP]

    @property
    def lacks_update(self) -> bool:
        """Whether a step is committed whose update is not complete yet: each process with this memory makes it first."""
        return self._ledger.counts[Count.COMMIT] > self.step

    @property
    def reached(self) -> int:
        """As :attr:`step`, with a committed step that lacks its update."""
        return self.step + self.lacks_update

    @property
    def holding(self) -> Holding | None:
        """What a view may start from; None: nothing."""
        reached = self.reached
        if reached < 0:
            return None
        return Holding(step=reached, prepared=self._ledger.counts[Count.PREPARED] == reached + 1)

    def fill(self, step: int, committed: tuple[int, float, float] | None = None) -> None:
        """The block holds the state of ``step`` from now on (-1: of none, because it is about to be written).

        ``committed``: as the property, where it is known; only of ``step`` itself it matters.
        """
        counts, measures = self._ledger.counts, self._ledger.measures
        counts[Count.PREPARED] = counts[Count.COMMIT] = -1
        counts[Count.STEP] = step
        if committed is not None and committed[0] == step:
            # Last: above the block's step it would be an update to be made.
            measures[Measure.COEFFICIENT], measures[Measure.RATE] = committed[1:]
            counts[Count.COMMIT] = step

    # --- a step ------------------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """All gradients of the next step are in the block."""
        self._ledger.counts[Count.PREPARED] = self.step + 1

    def unprepare(self) -> None:
        """Gradients are about to change."""
        self._ledger.counts[Count.PREPARED] = -1

    def populate(self) -> None:
        """Have the block's memory made, which is otherwise done bit by bit while it is written for the first time."""
        self._ledger.populate()

    def commit(self, coefficient: float, rate: float) -> None:
        """The next step is committed: each process with this memory takes it, with gradients times ``coefficient``, at learning ``rate``."""
        counts, measures = self._ledger.counts, self._ledger.measures
        counts[Count.DONE] = counts[Count.UNDO] = 0
        measures[Measure.COEFFICIENT], measures[Measure.RATE] = coefficient, rate
        counts[Count.COMMIT] = self.step + 1

    @property
    def committed(self) -> tuple[int, float, float] | None:
        """Step, coefficient and learning rate of the newest commit, taken already or not; None: there was none since it was filled."""
        counts, measures = self._ledger.counts, self._ledger.measures
        step = counts[Count.COMMIT]
        return (step, measures[Measure.COEFFICIENT], measures[Measure.RATE]) if step >= 0 else None

    @property
    def done(self) -> int:
        """Groups of tensors that have the committed step's update."""
        return self._ledger.counts[Count.DONE]

    @done.setter
    def done(self, groups: int) -> None:
        self._ledger.counts[Count.DONE] = groups

    @property
    def saved_group(self) -> int | None:
        """The group whose values before the update are in ``undo``; None: no group's."""
        return self._ledger.counts[Count.UNDO] - 1 if self._ledger.counts[Count.UNDO] else None

    @saved_group.setter
    def saved_group(self, group: int) -> None:
        self._ledger.counts[Count.UNDO] = group + 1

    def take_step(self) -> None:
        """The update of the committed step is in the whole block."""
        committed, scale = self.committed, self.loss_scale
        # Before the step: a process that dies in between has the update to do, of which nothing is left, and finds the scale of after it.
        if scale is not None and committed is not None and scale.step < committed[0]:
            self.loss_scale = scale.after(committed[1])
        self._ledger.counts[Count.STEP] = self._ledger.counts[Count.COMMIT]
        self.dirty = False

    def forget_gradients(self) -> None:
        """Drop the gradients of a step that was not committed."""
        self._ledger.counts[Count.PREPARED] = -1
        if self.dirty:
            self.gradient.zero_()
            self.dirty = False

    # --- what rank 0 remembers ---------------------------------------------------------------------------------------------

    @property
    def line(self) -> str | None:
        """What is to be recorded of the newest step that was committed here, as JSON of its Progress; None: not known."""
        return self._ledger.text

    @line.setter
    def line(self, value: str | None) -> None:
        self._ledger.text = value

    @property
    def seconds(self) -> float:
        """Time of training so far."""
        return self._ledger.measures[Measure.SECONDS]

    @seconds.setter
    def seconds(self, value: float) -> None:
        self._ledger.measures[Measure.SECONDS] = value

    @property
    def evaluated(self) -> int:
        """The newest step whose evaluation is over; -1: none."""
        return self._ledger.counts[Count.EVALUATED]

    @evaluated.setter
    def evaluated(self, step: int) -> None:
        self._ledger.counts[Count.EVALUATED] = step

    @property
    def best(self) -> Best:
        """The best validation."""
        step = self._ledger.counts[Count.BEST_STEP]
        wait = unpacked_wait(self._ledger.counts[Count.WAITED])
        return Best(None, None, *wait) if step < 0 else Best(step, self._ledger.measures[Measure.BEST_SCORE], *wait)

    @best.setter
    def best(self, best: Best) -> None:
        # First: an evaluation that is done again is not counted again, and whether it was better is not to be told any more.
        self._ledger.counts[Count.WAITED] = packed_wait(best.waited, best.counted)
        # The step next: an evaluation that is done again knows by it that its step was the best, whatever the score says.
        self._ledger.counts[Count.BEST_STEP] = -1 if best.step is None else best.step
        self._ledger.measures[Measure.BEST_SCORE] = 0.0 if best.score is None else best.score

    @property
    def loss_scale(self) -> LossScale | None:
        """That of Float16 training; None: losses are not scaled."""
        return LossScale.unpacked(self._ledger.counts[Count.LOSS_SCALE])

    @loss_scale.setter
    def loss_scale(self, scale: LossScale | None) -> None:
        self._ledger.counts[Count.LOSS_SCALE] = 0 if scale is None else scale.packed()

    @property
    def facts(self) -> Facts:
        """All that goes where the tensors go."""
        best = self.best
        return Facts(self.seconds, self.evaluated, best.step, best.score, best.waited, best.counted, self.loss_scale)

    @facts.setter
    def facts(self, facts: Facts) -> None:
        self.seconds, self.evaluated = facts.seconds, facts.evaluated
        self.best = Best(facts.best_step, facts.best_score, facts.waited, facts.counted)
        self.loss_scale = facts.loss_scale

    def digest(self, runs: Sequence[slice] | None = None) -> str:
        """XXH3-128 of weights and moments, hex; of ``runs`` of the arrays (None: of all). They must not change meanwhile."""
        value = xxhash.xxh3_128()
        for array in range(3):
            for run in (slice(0, self.size),) if runs is None else runs:
                value.update(self.arrays(run, array, array + 1)[0].cpu().numpy().data.cast("B"))
        return str(value.hexdigest())

    # --- checkpoints -------------------------------------------------------------------------------------------------------

    @property
    def saved(self) -> Tensor:
        """Weights and moments, flat: what a checkpoint holds."""
        return self.block[: 3 * self.size]

    def tensors(self, block: Tensor | None = None) -> Iterator[tuple[str, Tensor]]:
        """Names and tensors of a checkpoint, in the model's order: of this state, or of ``block``, a copy of :attr:`saved`."""
        for slot, name, own in self._tensors():
            if slot.copy_of is None:
                start = own.storage_offset()
                yield name, own if block is None else block[start : start + own.numel()].view(own.shape)

    def targets(self) -> Iterator[tuple[str, Tensor]]:
        """What is to be filled from a checkpoint, with the names there; those of copies come twice where both are here."""
        return ((name, own) for _, name, own in self._tensors())

    def _tensors(self) -> Iterator[tuple[Slot, str, Tensor]]:
        for k, prefix in enumerate(("", "exp_avg/", "exp_avg_sq/")):
            for slot in self.slots:
                yield slot, prefix + slot.saved_as, (slot.weight, slot.exp_avg, slot.exp_avg_sq)[k]


def _chunk(device: torch.device, threads: int) -> int:
    """As of :attr:`StageState.chunk`. On a GPU no update is gone on with by another process, and a call costs more than most of its work."""
    return CHUNK * threads if device.type == "cpu" else 0


@dataclass(frozen=True)
class _Shape:
    name: str
    count: int
    decay: bool


_Span = tuple[slice, bool, list[tuple[str, slice]]]


def _place(shapes: list[_Shape], chunk: int) -> tuple[dict[str, int], list[_Span], int]:
    """Offset of each tensor in an array of the block, the groups as spans of it, and its size.

    Large tensors first, ``chunk`` elements at a time (0: any number); those that find room go together, because a call costs more than they do.
    """
    offsets: dict[str, int] = {}
    spans: list[_Span] = []
    end = 0
    for large in (True, False):
        for decay in (True, False):
            room: float = 0
            for shape in shapes:
                if shape.decay is not decay or (shape.count > CHUNK // 16) is not large:
                    continue
                offsets[shape.name] = end
                padded = -(-shape.count // ALIGN) * ALIGN
                if large and chunk:
                    cuts = [slice(i, min(i + chunk, shape.count)) for i in range(0, shape.count, chunk)]
                    spans += [(slice(end + c.start, end + c.stop), decay, [(shape.name, c)]) for c in cuts]
                elif padded <= room:
                    span, _, parts = spans[-1]
                    spans[-1] = slice(span.start, end + padded), decay, [*parts, (shape.name, slice(0, shape.count))]
                    room -= padded
                else:
                    spans.append((slice(end, end + padded), decay, [(shape.name, slice(0, shape.count))]))
                    room = (chunk or math.inf) - padded
                end += padded
    return offsets, spans, end
