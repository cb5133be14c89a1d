"""``python -m lmj_trainer continue``: where a run would go on that is to be longer, or to have another learning rate. Needs no torch."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from lmj_api.base import Message
from lmj_api.spec import LiveMigrationJob, Training
from lmj_api.spec.training import Continued
from lmj_trainer.check import check, read_job
from lmj_trainer.checkpoint.identity import state_digest
from lmj_trainer.checkpoint.scan import survey
from lmj_trainer.cli import Parser
from lmj_trainer.errors import UserError
from lmj_trainer.state.learning_rate import learning_rate
from lmj_trainer.store.registry import checkpoints_of
from lmj_trainer.worker.claim import require_start


class Continuation(Message):
    """Where a run goes on."""

    step: int
    """Committed steps of the state that it goes on from."""
    steps: int
    """Steps of the whole run."""
    learning_rate: float
    """Of the first new step."""
    continues: list[Continued]
    """``training.continues`` of the job that goes on."""


def continuation(job: LiveMigrationJob, old: LiveMigrationJob, steps: int) -> Continuation:
    """How ``job``, of ``steps`` steps, goes on from what ``old`` has trained in the same folder. UserError: it cannot."""
    place, digest = checkpoints_of(job.spec), state_digest(old.spec)
    try:
        found = survey(place, digest, old.spec.training)
    except OSError as error:
        raise UserError(f"{place} cannot be read: {error.strerror or error}") from error
    newest = next((each.manifest for each in found if each.manifest is not None and each.info.problem is None), None)
    if newest is None or newest.step == 0:
        raise UserError(f"{place} has no checkpoint to go on from: start over with --fresh")
    require_start(Training(), newest.step, steps)
    same = _digest_of(job, old.spec.training.continues) == digest
    parts = [part for part in old.spec.training.continues if part.step < newest.step]
    continues = old.spec.training.continues if same else [*parts, Continued(step=newest.step, state_digest=newest.state_digest)]
    rate = learning_rate(job.spec.training, min(newest.step, steps - 1), steps)
    return Continuation(step=newest.step, steps=steps, learning_rate=rate, continues=continues)


def _digest_of(job: LiveMigrationJob, continues: list[Continued]) -> str:
    training = job.spec.training.model_copy(update={"continues": continues})
    return state_digest(job.spec.model_copy(update={"training": training}))


def main(argv: Sequence[str]) -> int:
    """``continue --job FILE --earlier FILE``: prints a :class:`Continuation` as JSON."""
    parser = Parser(prog="continue", description="Say where a run goes on with another job.")
    parser.add_argument("--job", type=Path, required=True, help="the job, a JSON file")
    parser.add_argument("--earlier", type=Path, required=True, help="the job that was trained there so far, a JSON file")
    arguments: argparse.Namespace = parser.parse_args(argv)
    if "torch" not in sys.modules:
        sys.modules["torch"] = None  # type: ignore[assignment]  # as in check
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    job = read_job(arguments.job)
    print(continuation(job, read_job(arguments.earlier), check(job).steps).to_json())
    return 0
