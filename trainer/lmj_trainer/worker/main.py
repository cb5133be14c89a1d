"""The worker process: one rank's compute. Started by the agent, never by hand."""

from __future__ import annotations

import argparse
import faulthandler
import logging
import os
import signal
import sys
import threading
from pathlib import Path
from typing import NoReturn

from lmj_api.protocol import CUT_OFF, USER_ERROR
from lmj_api.spec import LiveMigrationJob
from lmj_trainer import linux
from lmj_trainer.errors import CutOffError, UserError
from lmj_trainer.fetched import as_named
from lmj_trainer.limits import allow_files
from lmj_trainer.own.source import blame, settled
from lmj_trainer.worker import libraries
from lmj_trainer.worker.control import Control
from lmj_trainer.worker.preparation import prepare_standby, teller

log = logging.getLogger("lmj.worker")


def main(argv: list[str]) -> int:
    """Run one worker; its exit code is that of the process."""
    parser = argparse.ArgumentParser(prog="lmj_trainer worker", description=__doc__)
    parser.add_argument("--job", type=Path, required=True, help="the job, JSON, with absolute paths")
    parser.add_argument("--rank", type=int, help="left out: prepare what no rank matters to, and leave")
    parser.add_argument("--pod", required=True)
    parser.add_argument("--incarnation", type=int, required=True)
    parser.add_argument("--fd", type=int, required=True, help="socket to the agent")
    parser.add_argument("--relay", type=Path, help="socket of the pod's relay, through which alone others are reached")
    parser.add_argument(
        "--memory-fd", type=int, help="the agent's file for the state: what an earlier worker left there is gone on with"
    )
    parser.add_argument("--snapshots-fd", type=int, help="the agent's file for snapshots of the state")
    parser.add_argument("--kept-fd", type=int, help="the agent's file for the snapshots of the rank before")
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    # Written by the signal's handler itself, so also by a process that hangs.
    faulthandler.register(signal.SIGUSR1, file=sys.stderr, all_threads=True)
    threading.excepthook = _end_with_thread
    job = LiveMigrationJob.model_validate_json(arguments.job.read_bytes(), extra="ignore")
    try:
        job = settled(job)
        if arguments.rank is None:
            prepare_standby(job, arguments.pod, Control(arguments.fd))
            code = 0
        else:
            both = arguments.snapshots_fd is not None and arguments.kept_fd is not None
            shelves = (arguments.snapshots_fd, arguments.kept_fd) if both else None
            relay = arguments.relay
            code = _work(job, arguments.rank, arguments.pod, arguments.fd, arguments.memory_fd, shelves, relay)
    except UserError as error:
        print(f"error: {as_named(job.spec, str(error))}", file=sys.stderr)
        code = USER_ERROR
    except CutOffError as error:
        print(error, file=sys.stderr)
        code = CUT_OFF
    except Exception as error:
        log.exception("%s failed", "the preparation" if arguments.rank is None else f"rank {arguments.rank}")
        code = 1
        if (problem := blame(job, error)) is not None:
            print(f"error: {problem}", file=sys.stderr)
            code = USER_ERROR
    _leave(code)


def _end_with_thread(failed: threading.ExceptHookArgs) -> None:
    """A thread that ends by an error ends the worker: others would wait for what it did not do, and another worker goes on from its memory."""
    name = failed.thread.name if failed.thread else "a thread"
    log.error("%s failed", name, exc_info=(failed.exc_type, failed.exc_value or failed.exc_type(), failed.exc_traceback))
    _leave(1)


def _leave(code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    linux.give_way()
    # RPC's threads outlive their agent: leave without Python's and C++'s clean-up, which would wait for them.
    os._exit(code)


def _work(
    job: LiveMigrationJob, rank: int, pod: str, fd: int, memory: int | None, shelves: tuple[int, int] | None, relay: Path | None
) -> int:
    allow_files()
    control = Control(fd)
    say = teller(control, rank)
    # A fork server has loaded them.
    say("loading libraries" if "torch" not in sys.modules else "looking at the model and the data")
    libraries.load(lora=job.spec.model.lora is not None)

    from lmj_trainer.worker.member import join

    return join(job, rank, pod, control, say, memory, shelves, relay).serve()
