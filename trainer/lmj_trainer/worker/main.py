"""The worker process: one rank's compute. Started by the agent, never by hand."""

from __future__ import annotations

import argparse
import faulthandler
import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lmj_api.protocol import CUT_OFF, USER_ERROR, EventKind
from lmj_api.spec import Device, LiveMigrationJob, Precision
from lmj_trainer import linux
from lmj_trainer.errors import CutOffError, UserError
from lmj_trainer.worker import libraries
from lmj_trainer.worker.claim import refuse_other
from lmj_trainer.worker.control import Control
from lmj_trainer.worker.preparation import prepare_standby, teller

if TYPE_CHECKING:
    import torch

log = logging.getLogger("lmj.worker")


def main(argv: list[str]) -> int:
    """Run one worker; its exit code is that of the process."""
    parser = argparse.ArgumentParser(prog="lmj_trainer worker", description=__doc__)
    parser.add_argument("--job", type=Path, required=True, help="the job, JSON, with absolute paths")
    parser.add_argument("--rank", type=int, help="left out: prepare what no rank matters to, and leave")
    parser.add_argument("--pod", required=True)
    parser.add_argument("--incarnation", type=int, required=True)
    parser.add_argument("--fd", type=int, required=True, help="socket to the agent")
    parser.add_argument(
        "--memory-fd", type=int, help="the agent's file for the state: what an earlier worker left there is gone on with"
    )
    parser.add_argument("--snapshots-fd", type=int, help="the agent's file for snapshots of the state")
    parser.add_argument("--kept-fd", type=int, help="the agent's file for the snapshots of the rank before")
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    # Written by the signal's handler itself, so also by a process that hangs.
    faulthandler.register(signal.SIGUSR1, file=sys.stderr, all_threads=True)
    job = LiveMigrationJob.model_validate_json(arguments.job.read_bytes(), extra="ignore")
    try:
        if arguments.rank is None:
            prepare_standby(job, Control(arguments.fd))
            code = 0
        else:
            both = arguments.snapshots_fd is not None and arguments.kept_fd is not None
            shelves = (arguments.snapshots_fd, arguments.kept_fd) if both else None
            code = _work(job, arguments.rank, arguments.fd, arguments.memory_fd, shelves)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        code = USER_ERROR
    except CutOffError as error:
        print(error, file=sys.stderr)
        code = CUT_OFF
    except Exception:
        log.exception("%s failed", "the preparation" if arguments.rank is None else f"rank {arguments.rank}")
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    linux.give_way()
    # RPC's threads outlive their agent: leave without Python's and C++'s clean-up, which would wait for them.
    os._exit(code)


def _work(job: LiveMigrationJob, rank: int, fd: int, memory: int | None, shelves: tuple[int, int] | None) -> int:
    control = Control(fd)
    spec = job.spec

    say = teller(control, rank)
    say(
        "loading libraries" if "torch" not in sys.modules else "looking at the model and the data"
    )  # a fork server has loaded them
    libraries.load(lora=spec.model.lora is not None)

    from lmj_trainer.check import check_frozen_source, check_model, check_rows
    from lmj_trainer.checkpoint.identity import state_digest
    from lmj_trainer.data.prepared import prepare_patiently
    from lmj_trainer.follow.follower import Follower
    from lmj_trainer.model.config import load_config
    from lmj_trainer.model.partition import partition
    from lmj_trainer.model.stage import Stage
    from lmj_trainer.pretrained import keep
    from lmj_trainer.state.stage_state import StageState
    from lmj_trainer.state.weights import freeze
    from lmj_trainer.strategy.batches import Batches
    from lmj_trainer.transport.feed import Offer
    from lmj_trainer.transport.inbox import ViewBrokenError
    from lmj_trainer.transport.tensorpipe import TensorPipeTransport
    from lmj_trainer.worker.trainer import Trainer

    device = pick_device(spec.training.device, rank)
    make_deterministic(device, spec.training.computing_threads)
    # On a cluster nobody looked before: no restart mends what is wrong here.
    refuse_other(job, lambda message: control.emit(EventKind.WARNING, message))
    check_frozen_source(spec)
    spec = keep(spec, say)
    check_model(spec)
    prepared = prepare_patiently(spec, say)
    check_rows(spec, {name: len(split) for name, split in prepared.splits.items()})
    config = load_config(spec.model, prepared.labels, prepared.vocab_size)
    layers = partition(config.num_hidden_layers, spec.pipeline.stages, spec.pipeline.layers)[spec.topology.stage(rank)]
    bfloat16 = spec.training.precision is Precision.BFLOAT16
    stage = Stage(
        config,
        layers,
        seed=spec.training.seed,
        bfloat16=bfloat16,
        recompute=spec.training.gradient_checkpointing,
        lora=spec.model.lora,
        source=job.spec.model.source,
    )
    if spec.model.lora is not None:
        say("the weights that stay as they are")
        fresh = freeze(stage, spec.model, device)
        if fresh:
            say(f"at random, and not trained: {', '.join(fresh)}")
    state = StageState(stage, device, memory, state_digest(job.spec))
    stage.set_training(True)
    batches = Batches(prepared, spec, device)
    # A peer that does not take a message for so long is lost: half of what counts as a hang, so that the peer is named and not this rank.
    recovery = spec.recovery
    transport = TensorPipeTransport(max(5.0, recovery.hang_timeout_seconds / 2), recovery.silence_timeout_seconds)
    feed = transport.feed

    def newer_view(number: int, reason: str) -> None:
        transport.inbox.supersede(number, reason)
        feed.stop(reason)

    control.on_newer_view(newer_view)
    trainer = Trainer(job, rank, prepared, batches, stage, state, transport, control, shelves)
    follower = Follower(feed, state, trainer.optimizer, transport, control, trainer.strategy.rehearse)
    log.info("rank %d: layers %d to %d, %.1f M parameters to train", rank, layers.start, layers.stop - 1, state.size / 1e6)
    has = {"holding": state.holding, "snapshots": trainer.snapshots.held}
    control.emit(EventKind.READY, f"layers {layers.start} to {layers.stop - 1}", address=transport.address, **has)
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
            follower.run(view)
            continue
        feed.listen(None)
        log.info("view %d: %s", view.number, view.reason)
        try:
            phase = trainer.run(view)
        except ViewBrokenError as error:
            log.warning("view %d is broken: %s", view.number, error)
            has = {"holding": state.holding, "snapshots": trainer.snapshots.held}
            control.emit(EventKind.LOST_PEER, str(error), view=view.number, peer=error.rank, **has)
        else:
            transport.close()
            log.info("left: %s", phase)
            return 0


def pick_device(wanted: Device, rank: int) -> torch.device:
    """The device of ``rank``; ranks of one machine share its GPUs in turn. Raises UserError when CUDA is asked for and not there."""
    import torch

    if wanted is Device.CPU or (wanted is Device.AUTO and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise UserError("training.device is CUDA, but this rank sees no GPU: set it to Auto or CPU")
    return torch.device("cuda", rank % torch.cuda.device_count())


def make_deterministic(device: torch.device, threads: int) -> None:
    """Equal numbers give equal bits: fixed threads, and on a GPU the deterministic kernels."""
    import torch

    torch.set_num_threads(threads)
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
