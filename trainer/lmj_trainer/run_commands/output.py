"""A run's output folder: on this machine, or brought here from object storage for as long as a command needs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from lmj_api.buckets import in_bucket, split
from lmj_api.layout import Layout
from lmj_api.results import LARGEST_JOB, ResultsError, job_in, trained_job
from lmj_api.spec import LiveMigrationJob
from lmj_trainer.errors import OutageError, UserError
from lmj_trainer.fetched import borrowed
from lmj_trainer.store.port import RefusedError
from lmj_trainer.store.registry import open_place
from lmj_trainer.wording import one_line
from lmj_trainer.worker.collected import as_json, collect
from lmj_trainer.worker.results import Results

Say = Callable[[str], None]


@contextmanager
def output_folder(place: str, say: Say, *folders: str) -> Iterator[Path]:
    """The output folder ``place``. Of one in object storage: a folder that lasts as long as the context, with the job, its metrics and
    evaluations, and those of ``folders`` (``model``) that are there.

    Raises UserError, which names ``place``, and OutageError where storage does not answer.
    """
    if not in_bucket(place):
        yield Path(place)
        return
    uri = place.rstrip("/")
    try:
        if not split(uri)[2]:
            raise UserError(f"{place}: this is a whole bucket: name the folder in it that is the job's output.path")
    except ValueError as error:
        raise UserError(str(error)) from error
    with TemporaryDirectory(prefix="lmj-") as name:
        folder = Path(name)
        try:
            _bring(uri, folder, say, folders)
            yield folder
        except UserError as error:
            raise UserError(str(error).replace(name, uri)) from error


def _bring(uri: str, folder: Path, say: Say, folders: tuple[str, ...]) -> None:
    layout = Layout(folder, folder / "checkpoints", results=uri)
    results = Results(open_place(uri), layout)
    try:
        content = results.trained.get(0, LARGEST_JOB + 1)
        job_in(content, results.trained)
        said = collect(results)
        there = [name for name in folders if results.root.is_folder() and name in results.root.folders()]
    except FileNotFoundError as error:
        raise UserError(f"{uri}: no run's results are here") from error
    except ResultsError as error:
        raise UserError(str(error)) from error
    except RefusedError as error:
        raise UserError(f"{one_line(error)}: give credentials that may read it, in the environment") from error
    except OSError as error:
        raise OutageError(f"{uri} cannot be read: {one_line(error)}") from error
    layout.trained.write_bytes(content)
    layout.metrics.write_bytes(b"".join(said.lines[step] for step in sorted(said.lines)))
    layout.evaluation.write_bytes(as_json(said.evaluations))
    for name in there:
        with borrowed(f"{uri}/{name}", name, say) as path:
            Path(path).rename(folder / name)


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
