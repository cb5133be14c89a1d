"""A rank's process from the job to its last view: everything that it needs is made once, and serves each view that it is told."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from lmj_api.layout import Layout
from lmj_api.protocol import EventKind
from lmj_api.spec import LiveMigrationJob
from lmj_trainer import linux
from lmj_trainer.agreed import agreed
from lmj_trainer.check import check_cut, check_frozen_source, check_model, check_rows
from lmj_trainer.checkpoint.identity import state_digest
from lmj_trainer.dataset.prepared import prepare_patiently
from lmj_trainer.errors import CutOffError
from lmj_trainer.fetched import fetch, local
from lmj_trainer.follow.follower import Follower
from lmj_trainer.model.config import load_config
from lmj_trainer.model.families.registry import FAMILIES
from lmj_trainer.model.partition import partition
from lmj_trainer.model.stage import Stage
from lmj_trainer.model.whole import WholeStage
from lmj_trainer.own.batches import OwnBatches
from lmj_trainer.own.source import is_own, load_own
from lmj_trainer.own.stage import OwnStage
from lmj_trainer.own.units import build, require_stages
from lmj_trainer.pretrained import keep
from lmj_trainer.state.stage_state import StageState
from lmj_trainer.state.weights import freeze
from lmj_trainer.strategy.batches import Batches
from lmj_trainer.strategy.streamed import StreamedBatches
from lmj_trainer.task.registry import TASKS
from lmj_trainer.transport.feed import Offer
from lmj_trainer.transport.inbox import ViewBrokenError
from lmj_trainer.transport.tensorpipe import TensorPipeTransport
from lmj_trainer.worker.background import yield_to_compute
from lmj_trainer.worker.claim import refuse_other
from lmj_trainer.worker.device import make_deterministic, pick_device
from lmj_trainer.worker.gateway import gateway_of
from lmj_trainer.worker.trainer import Trainer

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from lmj_api.spec import JobSpec
    from lmj_trainer.dataset.stored import PreparedDataset
    from lmj_trainer.model.part import Part
    from lmj_trainer.strategy.step_data import StepData
    from lmj_trainer.worker.control import Control

log = logging.getLogger("lmj.worker")

Say = Callable[[str], None]


@dataclass(frozen=True)
class Member:
    """A rank that is ready to train, or to follow."""

    trainer: Trainer
    follower: Follower
    state: StageState
    transport: TensorPipeTransport
    control: Control
    what: str
    """The part of the model that it computes, for people."""

    def serve(self) -> int:
        """Join each view that the agent tells, until training is over or the rank is to leave; the exit code. Raises CutOffError."""
        control, transport, feed = self.control, self.transport, self.transport.feed
        control.emit(EventKind.READY, self.what, address=transport.address, **self._memory())
        while True:
            if not transport.listens():
                # The next worker maps the same memory, and has a port of its own.
                raise CutOffError(f"nobody can connect to this worker any more: what listened at {transport.address} ended")
            feed.listen(control.offer)
            view = control.next_order()
            if view is None:
                control.emit(EventKind.DRAINED, "left while no view ran")
                return 0
            if isinstance(view, Offer):
                self.trainer.settle()
                self.follower.run(view)
                self.trainer.settle()
                continue
            feed.listen(None)
            linux.like_others()
            log.info("view %d: %s", view.number, view.reason)
            try:
                phase = self.trainer.run(view)
            except ViewBrokenError as error:
                log.warning("view %d is broken: %s", view.number, error)
                control.emit(EventKind.LOST_PEER, str(error), view=view.number, peer=error.rank, **self._memory())
                if not self.trainer.replaced:
                    self.trainer.settle()  # while the next view is made
            else:
                transport.close()
                log.info("left: %s", phase)
                return 0

    def _memory(self) -> dict[str, Any]:
        return {"holding": self.state.holding, "snapshots": self.trainer.snapshots.held}


def join(
    job: LiveMigrationJob,
    rank: int,
    pod: str,
    control: Control,
    say: Say,
    memory: int | None,
    shelves: tuple[int, int] | None,
    relay: Path | None = None,
) -> Member:
    """``rank`` of ``job``, in ``pod``, with its part of the model. ``memory``, ``shelves``: the agent's files, see :class:`Trainer`.
    ``relay``: the socket of the pod's relay, through which alone others are reached; None: straight. Raises UserError, and CutOffError where
    there is no relay.
    """
    spec = job.spec
    device = pick_device(spec.training.device, rank)
    make_deterministic(device, spec.training.computing_threads)
    # On a cluster nobody looked before: no restart fixes what is wrong here.
    refuse_other(job, lambda message: control.emit(EventKind.WARNING, message))
    spec = fetch(spec, say, pod)
    check_frozen_source(spec)
    if is_own(spec):
        load_own(spec.model)  # before the rows are read: it is quick
    else:
        spec = keep(spec, say, pod, partial(agreed, Layout.of(spec).results))
        check_model(spec)
    prepared = prepare_patiently(spec, say, pod)
    check_rows(spec, prepared.rows)
    stage = own_stage(spec, rank) if is_own(spec) else _stage(job, spec, rank, prepared, device, say)
    state = StageState(stage, device, memory, state_digest(job.spec), spec.training.computing_threads)
    stage.set_training(True)
    # A peer that does not take a message for so long is lost: half of what counts as a hang, so that the peer is named and not this rank.
    recovery = spec.recovery
    timeout = max(5.0, recovery.hang_timeout_seconds / 2)
    transport = TensorPipeTransport(timeout, recovery.silence_timeout_seconds, gateway_of(relay))

    def newer_view(number: int, reason: str) -> None:
        transport.inbox.supersede(number, reason)
        transport.feed.stop(reason)

    control.on_newer_view(newer_view)
    batches = _batches(prepared, spec, device, say)
    trainer = Trainer(job, rank, prepared, batches, stage, state, transport, control, shelves)
    follower = Follower(transport.feed, state, trainer.optimizer, transport, control, trainer.strategy.rehearse, batches.expect)
    what = f"{'units' if is_own(spec) else 'layers'} {stage.layers.start} to {stage.layers.stop - 1}"
    log.info("rank %d: %s, %.1f M parameters to train", rank, what, state.size / 1e6)
    return Member(trainer, follower, state, transport, control, what)


def _batches(prepared: Any, spec: JobSpec, device: torch.device, say: Say) -> StepData:
    """The data of steps and evaluations."""
    if is_own(spec):
        return OwnBatches(prepared, spec, device, load_own(spec.model))
    if spec.dataset.streaming is not None:
        return StreamedBatches(prepared, spec, device, say, yield_to_compute)
    return Batches(prepared, spec, device)


def _stage(job: LiveMigrationJob, spec: JobSpec, rank: int, prepared: PreparedDataset, device: torch.device, say: Say) -> Part:
    """The part of the model that ``rank`` computes. ``spec``: the job's, with the model that the run keeps."""
    config = load_config(spec.model, prepared.labels, prepared.vocab_size)
    precision, recompute = spec.training.precision, spec.training.gradient_checkpointing
    if config.model_type not in FAMILIES:
        if config.pad_token_id is None:
            config.pad_token_id = prepared.pad_id  # a classifier that reads from left to right has to know where a row ends
        heads, source = TASKS[spec.model.task].heads, str(spec.model.source)
        return WholeStage(config, heads, source, seed=spec.training.seed, precision=precision, recompute=recompute)
    stage = Stage(
        config,
        TASKS[spec.model.task].heads,
        partition(config.num_hidden_layers, spec.pipeline.stages, spec.pipeline.layers)[spec.topology.stage(rank)],
        seed=spec.training.seed,
        precision=precision,
        recompute=recompute,
        lora=spec.model.lora,
        source=local(job.spec).model.source,
    )
    if spec.model.lora is not None:
        say("the weights that stay as they are")
        fresh = freeze(stage, spec.model, device)
        if fresh:
            say(f"at random, and not trained: {', '.join(fresh)}")
    return stage


def own_stage(spec: JobSpec, rank: int) -> OwnStage:
    """The part of the model of the user's class that ``rank`` computes."""
    own = load_own(spec.model)
    units = build(own, spec.training.seed)
    check_cut(spec, len(units))
    parts = partition(len(units), spec.pipeline.stages, spec.pipeline.layers)
    require_stages(own, units, parts)
    return OwnStage(
        own,
        units,
        parts[spec.topology.stage(rank)],
        seed=spec.training.seed,
        precision=spec.training.precision,
        recompute=spec.training.gradient_checkpointing,
    )
