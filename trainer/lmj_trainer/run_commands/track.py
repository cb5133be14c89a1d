"""``lmj track OUTPUT``: sends what a run has recorded to its trackers."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from lmj_trainer.cli import Parser
from lmj_trainer.errors import UserError
from lmj_trainer.run_commands.output import output_folder, read_run
from lmj_trainer.trackers.feeding import Orders
from lmj_trainer.trackers.main import feed_one, log_to_stderr
from lmj_trainer.trackers.registry import require_trackers

ALL_SECONDS = 120.0
"""That a tracker gets to take all of a run that has ended."""


def main(argv: Sequence[str]) -> int:
    """Send what the run that ``argv`` names has recorded. Returns the exit code. Raises UserError and OutageError."""
    parser = Parser(prog="lmj track", description="Sends what a run has recorded to its experiment trackers (output.trackers).")
    parser.add_argument(
        "output", metavar="OUTPUT", help="the run's output folder (output.path); its trackers get what they do not have yet"
    )
    place = parser.parse_args(argv).output
    log_to_stderr()
    with output_folder(place, lambda line: print(line, file=sys.stderr)) as folder:
        job = read_run(folder)
        trackers = job.spec.output.trackers
        if not trackers:
            raise UserError(f"{place}: its job has no output.trackers, so there is nobody to tell")
        require_trackers(trackers)
        wrong = 0
        for number in range(len(trackers)):
            orders = Orders()
            orders.end(ALL_SECONDS)
            wrong += not feed_one(
                job, number, orders, lambda text: print(f"error: {text}", file=sys.stderr), print, f"lmj track {place}"
            )
    return 1 if wrong else 0
