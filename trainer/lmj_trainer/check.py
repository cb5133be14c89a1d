"""Finds what is wrong with a job before any process is started for it. Needs no torch."""

import argparse
import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout, suppress
from pathlib import Path
from tempfile import TemporaryDirectory, mkstemp
from typing import Any

from pydantic import ValidationError

from lmj_api.base import Message
from lmj_api.layout import Layout
from lmj_api.protocol import USER_ERROR
from lmj_api.spec import Device, JobSpec, LiveMigrationJob, Weights
from lmj_trainer.cli import Parser
from lmj_trainer.data.numbered import NumberedRows
from lmj_trainer.data.order import global_batch, steps_per_epoch, total_steps
from lmj_trainer.data.source import DataSource, Say
from lmj_trainer.data.table import Table
from lmj_trainer.data.tokens import require_vocabulary
from lmj_trainer.dataset.pin import pinned
from lmj_trainer.dataset.prepared import at_hand, prepare
from lmj_trainer.dataset.selection import select, select_rows
from lmj_trainer.dataset.streamed import check_streamed
from lmj_trainer.errors import OutageError, UserError
from lmj_trainer.fetched import trying
from lmj_trainer.gpu import missing_gpu
from lmj_trainer.hub import is_commit, patiently
from lmj_trainer.memory import Beside, most_trained
from lmj_trainer.model import lora
from lmj_trainer.model.config import (
    CONVOLVED,
    SUPPORTED,
    has_class,
    layer_count,
    load_config,
    max_positions,
    stored_count,
)
from lmj_trainer.model.families.registry import FAMILIES
from lmj_trainer.model.sizes import sizes_of
from lmj_trainer.own.source import is_own, load_own, settled
from lmj_trainer.pretrained import kept
from lmj_trainer.script_check import ScriptSummary, check_script
from lmj_trainer.store.port import Ref
from lmj_trainer.store.registry import checkpoints_of, open_place
from lmj_trainer.task.registry import TASKS
from lmj_trainer.trackers.registry import require_trackers
from lmj_trainer.weight_files import lacking
from lmj_trainer.wording import one_line

_TRIED = 2
"""Rows that a class of the user's is tried with."""
PATIENCE_SECONDS = 60.0
"""For which a hub that does not answer is asked again: somebody waits for this command."""


class Summary(Message):
    """A job that can be trained, in numbers."""

    rows: dict[str, int]
    """Rows of each split."""
    labels: list[str]
    """Names of the labels in the order of their ids."""
    layers: int
    """Layers of the model; units, of one of the user's own."""
    steps_per_epoch: int
    """Optimizer steps in an epoch."""
    steps: int
    """Optimizer steps of the whole run."""
    parameters: int | None
    """Weights of the model; of one from scratch, with the largest vocabulary that it may learn. None: not known before it is fetched."""
    beside: Beside | None = None
    """Memory for sums of shards; None: the job has one shard, and needs none."""
    own: bool = False
    """The model is that of a class of the user's."""


def check_command(job: LiveMigrationJob) -> ScriptSummary:
    """As :func:`check`, of a job that runs a script."""
    _check_writable(Path(job.spec.output.path), "output.path")
    if job.spec.command is not None and job.spec.command.checkpoints is not None:
        _check_writable(Path(job.spec.command.checkpoints), "command.checkpoints")
    return check_script(job.spec)


def check(job: LiveMigrationJob, say: Say = lambda text: None, *, forget: bool = False) -> Summary:
    """What ``job``, of a model and a dataset, comes to. Raises UserError for every bad input that can be known before training.

    What it has in object storage is fetched for its training, or, to ``forget``, for the check alone.
    """
    spec = job.spec
    layout = Layout.of(spec)
    _check_writable(layout.output, "output.path" if layout.results is None else "output.scratch")
    if layout.results is not None:
        say(f"trying to write to {layout.results}")
        _check_bucket(open_place(layout.results), "output.path")
    if layout.bucket is not None and spec.checkpoint.path is not None:
        say(f"trying to write to {layout.bucket}")
        _check_bucket(checkpoints_of(spec), "checkpoint.path")
    elif spec.checkpoint.path is not None:
        _check_writable(layout.checkpoints, "checkpoint.path")
    _check_device(spec.training.device)
    require_trackers(spec.output.trackers)
    with trying(spec, say, forget=forget) as found:
        return _check_found(job.model_copy(update={"spec": found}), say)


def _check_found(job: LiveMigrationJob, say: Say) -> Summary:
    """As :func:`check`, of a job that has what it reads on this machine."""
    spec = job.spec
    if is_own(spec):
        # What the class prints is none of the summary.
        with redirect_stdout(sys.stderr):
            return _check_own(settled(job).spec, say)
    check_frozen_source(spec)
    # What a run of this job has already is not asked of anybody again.
    spec = kept(spec)
    # The model first: it is quick to look at, the data may be large.
    layers = patiently(lambda: check_model(spec), PATIENCE_SECONDS, say)
    labels, rows = patiently(lambda: _data(spec, say), PATIENCE_SECONDS, say)
    config = load_config(spec.model, labels, spec.model.scratch.vocabulary if spec.model.scratch else 0)
    check_rows(spec, rows)
    parameters, trained = _parameters(spec, config)
    return Summary(
        rows=rows,
        labels=list(labels),
        layers=layers,
        steps_per_epoch=steps_per_epoch(rows["train"], spec.training),
        steps=total_steps(rows["train"], spec.training),
        parameters=parameters,
        beside=_beside(spec, trained, say),
    )


def _check_own(spec: JobSpec, say: Say) -> Summary:
    """As :func:`check`, of a job with a class of the user's own: it is tried with the first rows."""
    # The class is the user's, and imports what it likes.
    if "torch" in sys.modules and sys.modules["torch"] is None:
        del sys.modules["torch"]
    load_own(spec.model)
    prepared = patiently(lambda: _tables(spec, say), PATIENCE_SECONDS, say)
    rows = {name: len(table) for name, table in prepared.items()}
    check_rows(spec, rows)

    from lmj_trainer.own.rehearsal import built, rehearse

    units, parameters = built(spec, lambda count: check_cut(spec, count))
    rehearse(spec, units, prepared["train"].rows(range(min(_TRIED, rows["train"]))))
    return Summary(
        rows=rows,
        labels=[],
        layers=len(units),
        steps_per_epoch=steps_per_epoch(rows["train"], spec.training),
        steps=total_steps(rows["train"], spec.training),
        parameters=parameters,
        beside=_beside(spec, parameters if spec.pipeline.stages == 1 else None, say),
        own=True,
    )


def _tables(spec: JobSpec, say: Say) -> Mapping[str, Table | NumberedRows]:
    """The rows of each split."""
    kind = DataSource.of(spec).kind
    if kind == "script":
        return prepare(spec, Layout.of(spec).cache, say).splits  # type: ignore[no-any-return]
    if kind == "hub" and (prepared := at_hand(spec, Layout.of(spec).cache)) is not None:
        return prepared.splits  # type: ignore[return-value]  # of whole rows
    return {name: Table.of(rows) for name, rows in select_rows(pinned(spec), say).items()}


def _data(spec: JobSpec, say: Say) -> tuple[tuple[str, ...], dict[str, int]]:
    """The labels, and how many rows each split has."""
    if spec.dataset.streaming is not None:
        return check_streamed(spec, say)
    if DataSource.of(spec).kind == "hub" and (prepared := at_hand(spec, Layout.of(spec).cache)) is not None:
        return prepared.labels, prepared.rows
    if spec.dataset.packing or TASKS[spec.model.task].windows:
        # How many rows there are is known when they are tokenized.
        with TemporaryDirectory() as folder:
            prepared = prepare(pinned(spec), Path(folder), say)
            return prepared.labels, prepared.rows
    selection = select(pinned(spec), say)
    return tuple(selection.labels.names), {name: len(part.rows) for name, part in selection.splits.items()}


def _parameters(spec: JobSpec, config: Any) -> tuple[int | None, int | None]:
    """Those of the model, and those that the largest stage trains; None: not known before it is fetched."""
    if config.model_type in FAMILIES:
        sizes = sizes_of(config, TASKS[spec.model.task].heads)
        return sizes.total, most_trained(spec, sizes)
    whole = stored_count(Path(str(spec.model.source)))
    return whole, whole


def _beside(spec: JobSpec, trained: int | None, say: Say) -> Beside | None:
    """``trained``: parameters that the largest stage trains, where that is known."""
    beside = Beside.of(spec.data_parallel, trained)
    for line in beside.short(spec.template) if beside is not None else []:
        say(f"warning: {line}")
    return beside


def check_model(spec: JobSpec) -> int:
    """Layers of the model. Reads no data. UserError: something is wrong with the model, or asked of it that it cannot do."""
    _check_model_folder(spec)
    config = load_config(
        spec.model,
        spec.model.labels or (["0", "1"] if spec.model.task.labelled else []),
        spec.model.scratch.vocabulary if spec.model.scratch else 0,
    )
    layers = layer_count(config)
    if config.model_type not in FAMILIES:
        _check_whole(spec, config.model_type)
    check_cut(spec, layers)
    _check_task(spec, config)
    if spec.output.int8 and config.model_type in CONVOLVED:
        raise UserError(f"output.int8: a model of type {config.model_type} has no linear layers to keep in 8 bits: leave it out")
    if spec.model.lora is not None:
        lora.targets(config.model_type, spec.model.lora)
    if spec.dataset.max_length > max_positions(config):
        raise UserError(
            f"dataset.maxLength {spec.dataset.max_length} is over the {max_positions(config)} tokens the model reads: lower it"
            + (", or raise model.scratch.maxPositions" if spec.model.scratch else "")
        )
    if len(spec.dataset.columns) == 2 and spec.dataset.max_length < 5:
        raise UserError(f"dataset.maxLength {spec.dataset.max_length} has no room for a pair of texts: make it 5 or more")
    return layers


def _check_task(spec: JobSpec, config: Any) -> None:
    """``config``: of the model."""
    name, heads = spec.model.task, TASKS[spec.model.task].heads
    cut = config.model_type in FAMILIES
    if not (config.model_type in heads.by_family if cut else has_class(heads, config.model_type)):
        raise UserError(
            f"model.task {name} is not for a model of type {config.model_type}: use one of {', '.join(sorted(heads.by_family))}"
        )


def _check_whole(spec: JobSpec, kind: str) -> None:
    """UserError: a model of a type that cannot be cut into stages is to be, or is to have adapters."""
    families = ", ".join(SUPPORTED)
    if spec.pipeline.stages > 1:
        raise UserError(
            f"pipeline.stages {spec.pipeline.stages}: a model of type {kind} is trained in one stage: set stages 1 (models of these types "
            f"can be cut: {families})"
        )
    if spec.model.lora is not None:
        raise UserError(f"model.lora is for models of type {families}, not {kind}: leave it out")


def check_rows(spec: JobSpec, rows: Mapping[str, int]) -> None:
    """``rows``: how many each split has. UserError: too few for what ``spec`` wants to do with them."""
    if rows["train"] < global_batch(spec.training):
        raise UserError(
            f"{rows['train']} training rows are fewer than one global batch of {global_batch(spec.training)} (training.batchSize "
            f"{spec.training.batch_size} x gradientAccumulationSteps {spec.training.gradient_accumulation_steps}): "
            "lower training.batchSize"
        )
    if "validation" in rows:
        return
    if spec.output.weights is Weights.BEST:
        raise UserError(
            "output.weights Best needs validation rows: set dataset.splits.validation or validationFraction, or weights: Last"
        )
    training = spec.training
    for name, asked in (
        ("earlyStopping", training.early_stopping),
        ("evalSteps", training.eval_steps),
        ("metricForBestModel", training.metric_for_best_model),
    ):
        if asked is not None:
            raise UserError(
                f"training.{name} needs validation rows: set dataset.splits.validation or validationFraction, or leave it out"
            )


def _check_device(device: Device) -> None:
    """A stage that asks for a GPU would say so too, but only when it has loaded everything."""
    problem = missing_gpu() if device is Device.CUDA else None
    if problem is not None:
        raise UserError(f"training.device CUDA: {problem}: use CPU, or Auto to take a GPU where there is one")


def check_cut(spec: JobSpec, layers: int) -> None:
    """UserError: a model of so many layers, or units, cannot be cut as ``spec`` says."""
    stages, given, what = spec.pipeline.stages, spec.pipeline.layers, "units" if is_own(spec) else "layers"
    if is_own(spec) and stages > layers == 1:
        raise UserError(
            f"pipeline.stages {stages}: {spec.model.python} makes one module, which is one stage: set stages 1, or have model() give a list"
        )
    if stages > layers:
        raise UserError(f"pipeline.stages {stages} is more than the model's {layers} {what}: use {layers} stages at most")
    if given is not None and sum(given) != layers:
        raise UserError(f"pipeline.layers {given} places {sum(given)} {what}, the model has {layers}: make the sum {layers}")


def _check_model_folder(spec: JobSpec) -> None:
    """A local model must have its weights and tokenizer; what a hub id has is found when it is loaded."""
    if spec.model.source is None or not (folder := Path(spec.model.source)).is_dir() or not (folder / "config.json").is_file():
        return
    if (problem := lacking(path.name for path in folder.iterdir() if path.is_file())) is not None:
        raise UserError(f"model {folder} {problem}")
    require_vocabulary(folder)


def check_frozen_source(spec: JobSpec) -> None:
    """Weights that are not trained are in no checkpoint: a program that loads the adapter fetches them again, so they must not change."""
    source, revision = spec.model.source, spec.model.revision
    if spec.model.lora is not None and source is not None and not Path(source).is_dir() and not is_commit(revision):
        raise UserError(
            f"model.lora with the hub's {source!r} needs its commit as model.revision, 40 hex digits, not "
            f"{'none' if revision is None else repr(revision)}: a program that loads the adapter fetches the rest again, which must not change"
        )


def _check_writable(folder: Path, field: str) -> None:
    """Really makes a file in ``folder`` and removes it again, with the folders made for it. UserError: it cannot be done."""
    made = [path for path in [folder, *folder.parents] if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor, name = mkstemp(prefix=".lmj-check-", dir=folder)
        os.close(descriptor)
        os.unlink(name)
    except OSError as error:
        raise UserError(f"{field} {folder} cannot be written: {error.strerror or error}; choose another folder") from error
    finally:
        for path in made:  # deepest first
            with suppress(OSError):  # not made after all, or another process already writes into it
                path.rmdir()


def _check_bucket(place: Ref, field: str) -> None:
    """Really does in ``place`` what checkpoints need, with an object that it removes again. UserError: something cannot be done."""
    file = place / f".lmj-check-{secrets.token_hex(8)}"
    try:
        if not file.create(b"x"):
            raise OSError(f"{file} is there already")
        try:
            if file.create(b"y") or file.get() != b"x" or file.name not in place.files():
                raise OSError(f"{place}: an object that is there is written over, or is not found again")
            place.folders()
        finally:
            file.delete()
    except OSError as error:
        raise UserError(f"{field} cannot be used: {error}") from error


def read_job(path: Path) -> LiveMigrationJob:
    """The job in the JSON file at ``path``. UserError: there is none, or it is wrong."""
    try:
        return LiveMigrationJob.model_validate_json(path.read_bytes())
    except OSError as error:
        raise UserError(f"the job file {path} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(f"{path}: {'.'.join(map(str, first['loc']))}: {one_line(first['msg'])}") from error


def run(argv: Sequence[str]) -> int:
    """``check --job FILE [-o json]``: prints the summary. Returns the exit code; 2 with one line on stderr for a user's error."""
    parser = Parser(prog="check", description="Checks a job before anything is started for it.")
    parser.add_argument("--job", type=Path, required=True, help="the job, a JSON file")
    parser.add_argument("-o", dest="output", choices=["text", "json"], default="text", help="form of the output")
    parser.add_argument("--forget", action="store_true", help="leave nothing of what is fetched from object storage")
    try:
        arguments: argparse.Namespace = parser.parse_args(argv)
        job = read_job(arguments.job)
        if job.spec.strategy.stateless:
            _tell_script(check_command(job), arguments.output)
            return 0
        summary = check(job, lambda text: print(text, file=sys.stderr), forget=arguments.forget)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return USER_ERROR
    except OutageError as error:
        print(f"error: {error}; try again later", file=sys.stderr)
        return 1
    if arguments.output == "json":
        print(summary.to_json())
        return 0
    print(f"rows: {', '.join(f'{count} {name}' for name, count in summary.rows.items())}")
    if summary.labels:
        print(f"labels: {', '.join(summary.labels)}")
    weights = f", {summary.parameters / 1e6:.1f} million parameters" if summary.parameters is not None else ""
    print(f"model: {_counted(summary)}{weights}")
    print(f"steps: {summary.steps}, {summary.steps_per_epoch} an epoch")
    for line in summary.beside.lines if summary.beside is not None else []:
        print(line)
    return 0


def _tell_script(summary: ScriptSummary, output: str) -> None:
    print(summary.to_json() if output == "json" else "\n".join(summary.lines))


def _counted(summary: Summary) -> str:
    if not summary.own:
        return f"{summary.layers} layers"
    return f"{summary.layers} unit{'s' if summary.layers > 1 else ''} of your own"


def main(argv: Sequence[str]) -> int:
    """:func:`run`, for a process that does nothing else: transformers imports torch (4 s) if it is there, so here it is not."""
    if "torch" not in sys.modules:
        sys.modules["torch"] = None  # type: ignore[assignment]
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    return run(argv)
