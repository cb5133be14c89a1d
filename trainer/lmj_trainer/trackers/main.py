"""``python -m lmj_trainer track``: feeds one tracker of a job that trains (started by the agent), or all of a run that has ended."""

import argparse
import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from lmj_api.layout import Layout
from lmj_api.results import ResultsError, trained_job
from lmj_api.spec import LiveMigrationJob, Tracker
from lmj_trainer.cli import Parser
from lmj_trainer.errors import UserError
from lmj_trainer.trackers.cursor import CursorFile
from lmj_trainer.trackers.feeding import Orders, feed
from lmj_trainer.trackers.parameters import parameters
from lmj_trainer.trackers.port import Subject
from lmj_trainer.trackers.records import Records
from lmj_trainer.trackers.registry import open_tracker, require_trackers, token_variable
from lmj_trainer.trackers.tracking import Tracking

ALL_SECONDS = 120.0
"""That a tracker gets to take all of a run that has ended."""
_LEAVE_SECONDS = 2.5
"""A process whose agent is gone, or wants it to be, leaves within so long, whatever its library waits for."""
_NICE = 10

Say = Callable[[str], None]


def main(argv: Sequence[str]) -> int:
    """``track FOLDER``, or ``track --job FILE --number N`` with orders on stdin. Returns the exit code. Raises UserError."""
    parser = Parser(prog="lmj track", description="Sends what a run has recorded to its experiment trackers (output.trackers).")
    parser.add_argument(
        "folder", type=Path, nargs="?", help="the run's output folder; its trackers get what they do not have yet"
    )
    parser.add_argument("--job", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--number", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    if arguments.job is not None and arguments.number is not None:
        return _beside(LiveMigrationJob.model_validate_json(arguments.job.read_bytes(), extra="ignore"), arguments.number)
    if arguments.folder is None:
        raise UserError("which run? lmj track OUTPUT-FOLDER")
    return _afterwards(arguments.folder)


def _beside(job: LiveMigrationJob, number: int) -> int:
    """Feed tracker ``number`` while the job trains, as the lines on stdin say (``hold``, ``go``, ``end SECONDS``); their end is the agent's."""
    # Libraries print what they like.
    told = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    os.setpriority(os.PRIO_PROCESS, 0, max(_NICE, os.getpriority(os.PRIO_PROCESS, 0)))
    orders = Orders()
    threading.Thread(target=_obey, args=(orders,), name="orders", daemon=True).start()

    def tell(kind: str, text: str) -> None:
        told.write(json.dumps({kind: text}) + "\n")

    require_trackers(job.spec.output.trackers[number : number + 1])
    again = f"lmj track {job.spec.output.path}"
    _feed(job, number, orders, lambda text: tell("warning", text), lambda place: tell("place", place), again)
    return 0


def _obey(orders: Orders) -> None:
    for line in sys.stdin:
        word, _, rest = line.partition(" ")
        if word.strip() == "end":
            orders.end(float(rest or 0.0))
        elif word.strip() in ("hold", "go"):
            orders.hold(word.strip() == "hold")
    orders.leave()
    threading.Event().wait(_LEAVE_SECONDS)
    os._exit(1)


def _afterwards(folder: Path) -> int:
    job = read_run(folder)
    if not job.spec.output.trackers:
        raise UserError(f"{folder}: its job has no output.trackers, so there is nobody to tell")
    require_trackers(job.spec.output.trackers)
    wrong = 0
    for number in range(len(job.spec.output.trackers)):
        orders = Orders()
        orders.end(ALL_SECONDS)
        logged = _feed(job, number, orders, lambda text: print(f"error: {text}", file=sys.stderr), print, f"lmj track {folder}")
        wrong += not logged
    return 1 if wrong else 0


def read_run(folder: Path) -> LiveMigrationJob:
    """The job whose results are in the output folder ``folder``, with that for its output. Raises UserError."""
    layout = Layout(folder, folder / "checkpoints")
    try:
        job = trained_job(layout)
    except (ResultsError, OSError) as error:
        raise UserError(str(error)) from error
    if job is None:
        raise UserError(f"{folder}: no run's results are here")
    # It may have been copied from another place, as from a cluster's volume. Checkpoints stay in the bucket where the results are in one.
    output = job.spec.output.model_copy(update={"path": str(folder.resolve()), "scratch": None})
    checkpoint = job.spec.checkpoint.model_copy(update={"path": job.spec.checkpoint.path or Layout.of(job.spec).bucket})
    return job.model_copy(update={"spec": job.spec.model_copy(update={"output": output, "checkpoint": checkpoint})})


def _feed(job: LiveMigrationJob, number: int, orders: Orders, warn: Say, show: Say, again: str) -> bool:
    spec = job.spec
    tracker, layout = spec.output.trackers[number], Layout.of(spec)
    subject = Subject(job.metadata.name, job.metadata.run, tracker, parameters(spec), layout.trackers)
    begins = spec.training.begins
    tracking = Tracking(
        lambda: open_tracker(subject), Records(layout), CursorFile(layout.trackers, tracker), job.metadata.run.id, begins
    )
    secrets = [os.environ.get(name, "") for name in (token_variable(tracker), "MLFLOW_TRACKING_PASSWORD")]
    return feed(tracking, orders, warn, show, name=name_of(tracker, os.environ), secrets=secrets, again=again)


def name_of(tracker: Tracker, environment: Mapping[str, str]) -> str:
    """``tracker`` for people, with the credential that it should have and has not."""
    name, variable = f"{tracker.kind} ({tracker.uri or tracker.space or tracker.project})", token_variable(tracker)
    if tracker.token is None or variable in environment:
        return name
    return f"{name} without {variable} (Secret {tracker.token.name}, key {tracker.token.key})"
