"""``python -m lmj_trainer feed --job FILE --number N``: feeds one tracker of a job that trains (started by the agent)."""

import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from lmj_api.layout import Layout
from lmj_api.spec import LiveMigrationJob, Tracker
from lmj_trainer.cli import Parser
from lmj_trainer.trackers.cursor import CursorFile
from lmj_trainer.trackers.feeding import Orders, feed
from lmj_trainer.trackers.parameters import parameters
from lmj_trainer.trackers.port import Subject
from lmj_trainer.trackers.records import Records
from lmj_trainer.trackers.registry import open_tracker, require_trackers, token_variable
from lmj_trainer.trackers.tracking import Tracking

_LEAVE_SECONDS = 2.5
"""A process whose agent is gone, or wants it to be, leaves within so long, whatever its library waits for."""
_NICE = 10

Say = Callable[[str], None]


def main(argv: Sequence[str]) -> int:
    """Feed the tracker that ``argv`` says, with orders on stdin. Returns the exit code. Raises UserError."""
    parser = Parser(prog="python -m lmj_trainer feed")
    parser.add_argument("--job", type=Path, required=True)
    parser.add_argument("--number", type=int, required=True)
    arguments = parser.parse_args(argv)
    log_to_stderr()
    return _beside(LiveMigrationJob.model_validate_json(arguments.job.read_bytes(), extra="ignore"), arguments.number)


def log_to_stderr() -> None:
    """Warnings of libraries too."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)


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
    feed_one(job, number, orders, lambda text: tell("warning", text), lambda place: tell("place", place), again)
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


def feed_one(job: LiveMigrationJob, number: int, orders: Orders, warn: Say, show: Say, again: str) -> bool:
    """Feed tracker ``number`` of ``job`` as :func:`feed` does; whether all was logged."""
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
