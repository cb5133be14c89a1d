"""``python -m lmj_trainer export OUTPUT --to FOLDER``."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lmj_api.buckets import scheme_of
from lmj_api.layout import Layout
from lmj_trainer.cli import Parser
from lmj_trainer.errors import UserError
from lmj_trainer.exporting.choice import Choice, GoneError, choose, is_gone, require_any
from lmj_trainer.exporting.place import require_free, settle, site_of
from lmj_trainer.exporting.telling import telling
from lmj_trainer.own.source import blame, settled
from lmj_trainer.run_commands.output import read_run
from lmj_trainer.store.registry import checkpoints_of, open_place
from lmj_trainer.wording import WARNING, one_line

if TYPE_CHECKING:
    from lmj_api.spec import LiveMigrationJob
    from lmj_trainer.exporting.model import Ready
    from lmj_trainer.store.port import Ref

_NICE = 10
_EXAMPLE = """example, while the job trains or afterwards:
  lmj export runs/reviews --to reviews-at-400 --step 400
  lmj predict reviews-at-400 "I did not expect to like it, but I did.\""""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Exported:
    """A model that was written."""

    folder: Path
    adapter: Path | None
    choice: Choice


def main(argv: Sequence[str]) -> int:
    """Export what ``argv`` says, and print where it is. Returns the exit code. Raises UserError."""
    parser = Parser(
        prog="lmj export",
        description="Writes the model of a job's checkpoint as a folder that from_pretrained loads, also while the job trains.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("job", metavar="OUTPUT", help="the job's output folder (output.path)")
    parser.add_argument("--to", metavar="FOLDER", type=Path, required=True, help="where to: a folder that is not there, or empty")
    parser.add_argument("--step", metavar="N", type=int, help="the checkpoint of this step (default: the newest good one)")
    parser.add_argument("-o", "--output", choices=["text", "json"], default="text", help="form of the output (default: text)")
    arguments = parser.parse_args(argv)
    # Training goes first, where it is on this machine.
    os.setpriority(os.PRIO_PROCESS, 0, max(_NICE, os.getpriority(os.PRIO_PROCESS, 0)))
    job = job_of(arguments.job)
    folder = arguments.to.resolve()
    require_free(folder, Layout.of(job.spec))
    with redirect_stdout(sys.stderr):  # a class of the user's prints what it likes
        done = export_of(job, folder, arguments.step, lambda line: print(line, file=sys.stderr, flush=True))
    sys.stdout.write((as_json(done) if arguments.output == "json" else as_text(done, job)) + "\n")
    return 0


def job_of(output: str) -> LiveMigrationJob:
    """The job whose output folder is ``output``. Raises UserError: there is none, or nobody but its script can export its model."""
    if scheme_of(output):
        raise UserError(
            f"{output} has checkpoints alone, which say nothing of the job: give the job's output folder (output.path)"
        )
    folder = Path(output)
    if not folder.is_dir():
        raise UserError(f"{folder}: there is no such folder; give the job's output folder (output.path)")
    job = read_run(folder)
    if job.spec.strategy.stateless:
        raise UserError(
            f"{folder}: the job runs a script (command), which alone knows the format of its checkpoints: have it save"
        )
    if job.spec.model.is_script:
        raise UserError(
            f"{folder}: the model is made by a script ({job.spec.model.python}): it is in {folder / 'model'} at the end"
        )
    return settled(job)


def export_of(job: LiveMigrationJob, folder: Path, step: int | None, say: Say) -> Exported:
    """Write the model of the newest good checkpoint, or of that of ``step``, to ``folder``. Raises UserError."""
    root = _checkpoints(job)
    with _reading(root):
        require_any(root, job.spec, step)
    try:
        with site_of(folder) as site:
            built = Layout(site, site / "checkpoints")
            with telling("loading libraries, and what the dataset says of the model", say):
                ready = _ready(job, built, say)
            choice = _written(ready, root, step, say)
            return Exported(folder, settle(built, folder), choice)
    except OSError as error:
        raise UserError(f"the model cannot be written to {folder}: {one_line(error)}") from error


def _ready(job: LiveMigrationJob, built: Layout, say: Say) -> Ready:
    from lmj_trainer.exporting.model import prepare_export

    return prepare_export(job, built, say)


def _written(ready: Ready, root: Ref, step: int | None, say: Say) -> Choice:
    """The checkpoint whose model was written. One that the job removes meanwhile is no error where any will do: there is a newer one."""
    job = ready.job
    try:
        return _once(ready, root, step, say)
    except GoneError as gone:
        if step is not None:
            raise UserError(_removed(gone, f"try again with another step (lmj checkpoints {job.spec.output.path})")) from gone
        say(_removed(gone, "the newest one is taken"))
    try:
        return _once(ready, root, None, say)
    except GoneError as gone:
        raise UserError(_removed(gone, "try again")) from gone


def _removed(gone: GoneError, then: str) -> str:
    return f"the job removed {gone} while it was read (checkpoint.keep); {then}"


def _checkpoints(job: LiveMigrationJob) -> Ref:
    """Where they are. The output folder may have been copied here, with its checkpoints, from where ``checkpoint.path`` is another place."""
    layout = Layout.of(job.spec)
    beside = layout.output / "checkpoints"
    if layout.bucket is None and not layout.checkpoints.is_dir() and beside.is_dir():
        return open_place(str(beside))
    return checkpoints_of(job.spec)


def _once(ready: Ready, root: Ref, step: int | None, say: Say) -> Choice:
    """Raises GoneError, UserError, and OSError."""
    job = ready.job
    with _reading(root), telling(f"verifying checkpoints in {root}", say):
        choice = choose(root, job.spec, step)
    for text in choice.passed:
        say(f"{WARNING}{text}; the one of step {choice.step} is taken")
    try:
        with telling(f"writing the model of step {choice.step}", say):
            ready.write(choice.folder, choice.step)
    except Exception as error:
        with suppress(OSError):  # storage that does not answer: the error says so
            if is_gone(choice.folder):
                raise GoneError(choice.folder.name) from error
        if isinstance(error, UserError):
            raise
        if (problem := blame(job, error)) is not None:
            raise UserError(problem) from error
        if isinstance(error, KeyError):  # a tensor is missing
            raise UserError(f"checkpoint {choice.folder.name} is not of this job's model: {error.args[0]}") from error
        raise
    return choice


@contextmanager
def _reading(root: Ref) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"{root} cannot be read: {one_line(error)}") from error


def as_json(done: Exported) -> str:
    """One JSON object."""
    choice, adapter = done.choice, done.adapter
    value = {"folder": str(done.folder), "step": choice.step, "checkpoint": choice.folder.name, "best": choice.best}
    return json.dumps(value | {"adapter": str(adapter) if adapter else None})


def as_text(done: Exported, job: LiveMigrationJob) -> str:
    """One line, and one more about an adapter."""
    best = ", the best so far" if done.choice.best else ""
    text = f"{done.folder}: the model of {job.metadata.name} after step {done.choice.step}{best}"
    if done.adapter is None:
        return text
    return f"{text}, with the adapter merged into its weights\n{done.adapter}: the adapter alone"
