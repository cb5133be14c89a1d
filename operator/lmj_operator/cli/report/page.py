"""The report's page: a pure function of a run."""

from html import escape
from pathlib import PurePosixPath

from lmj_api.spec.command import Command
from lmj_api.spec.job import JobSpec, LiveMigrationJob
from lmj_api.spec.pipeline import DataParallel
from lmj_operator.cli.report import figures, tables, text
from lmj_operator.cli.report.run import Run
from lmj_operator.cli.report.series import drawable
from lmj_operator.cli.report.style import CSS
from lmj_operator.cli.report.text import NONE, plural, safe

# Nothing is loaded or run, even if something of a file came through.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def page(run: Run, now: float) -> str:
    """The whole page for ``run``, made at ``now`` (seconds since the epoch). It needs nothing beside itself."""
    phase = f' <span class="phase {run.status.phase.value}">{run.status.phase.value}</span>' if run.status is not None else ""
    message = f"<p>{safe(run.status.message)}</p>" if run.status is not None and run.status.message else ""
    incidents = run.status.incidents if run.status is not None else []
    parts = [
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{safe(run.name)}: report</title>\n<style>{CSS}</style>\n</head>\n<body>",
        f"<h1>{safe(run.name)}{phase}</h1>",
        message,
        _tiles(run),
        _facts(run.job) if run.job is not None else "",
        figures.progress(run),
        figures.ranks(run),
        figures.group_size(run),
        figures.step_time(run),
        tables.incidents(incidents, run.status),
        figures.beside(figures.confusion(run), tables.evaluations(run.evaluations)),
        tables.checkpoints(run.checkpoints),
        f"<footer>Made by lmj report, {text.moment(now)}.{_notes(run)}</footer>",
        "</body>\n</html>\n",
    ]
    return "\n".join(part for part in parts if part)


def _tiles(run: Run) -> str:
    last, status = run.last_evaluation, run.status
    of = status.progress.steps if status is not None and status.progress is not None else None
    tiles = [
        (f"{last.split if last else 'test'} accuracy", text.number(last.accuracy if last else None)),
        (f"{last.split if last else 'test'} F1", text.number(last.f1 if last else None)),
        (f"{last.split if last else 'test'} loss", text.number(last.loss if last else None)),
        ("steps", f"{run.steps:,}" if of is None or of == run.steps else f"{run.steps:,} of {of:,}"),
        ("restarts", f"{status.restarts:,}" if status is not None else NONE),
        ("migrations", f"{status.migrations:,}" if status is not None else NONE),
        ("steps done again", f"{status.steps_lost:,}" if status is not None else NONE),
        ("total time", text.seconds(run.seconds)),
    ]
    return '<dl class="tiles">' + "".join(f"<div><dt>{safe(k)}</dt><dd>{safe(v)}</dd></div>" for k, v in tiles) + "</dl>"


def _facts(job: LiveMigrationJob) -> str:
    rows = _of_script(job.spec, job.spec.command) if job.spec.command is not None else _of_model(job.spec)
    return '<h2>Job</h2>\n<dl class="facts">' + "".join(f"<dt>{k}</dt><dd>{safe(v)}</dd>" for k, v in rows) + "</dl>"


def _of_script(spec: JobSpec, command: Command) -> list[tuple[str, str]]:
    """Its name without the arguments, which may hold what is not for others."""
    name = command.args[1] if command.args[0] == "-m" else _named(command.args[0])
    processes = plural(command.processes_per_node, "process").replace("processs", "processes")
    parts = spec.data_parallel
    return [("Script", name), ("Replicas", f"{parts.replicas}, {_bounds(parts)}; {processes} each")]


def _of_model(spec: JobSpec) -> list[tuple[str, str]]:
    scratch, data, training = spec.model.scratch, spec.dataset, spec.training
    if scratch is not None:
        model = (
            f"{scratch.architecture.value} from random weights: {plural(scratch.layers, 'layer')}, hidden size {scratch.hidden_size}, "
            f"{plural(scratch.heads, 'head')}"
        )
    elif spec.model.python is not None:
        model = _named(spec.model.python)
    else:
        model = _named(spec.model.source) + (f" at {spec.model.revision}" if spec.model.revision else "")
    source = _named(data.source) + (f" ({data.config})" if data.config else "")
    layers = f", layers {' + '.join(map(str, spec.pipeline.layers))}" if spec.pipeline.layers else ""
    length = plural(training.max_steps, "step") if training.max_steps is not None else plural(training.epochs, "epoch")
    return [
        ("Model", model),
        (
            "Data",
            source
            if data.text is None
            else f"{source}: {' and '.join(data.text)}{f' to {data.label}' if data.label else ''}, up to {data.max_length} tokens",
        ),
        (
            "Stages",
            f"{spec.pipeline.stages}{layers}, {plural(spec.pipeline.micro_batches, 'micro-batch').replace('batchs', 'batches')}",
        ),
        *([("Replicas", _replicas(spec.data_parallel))] if spec.data_parallel.shards > 1 else []),
        (
            "Training",
            f"{length}, batches of {training.batch_size * training.gradient_accumulation_steps}, "
            f"peak learning rate {training.learning_rate:g}, seed {training.seed}",
        ),
    ]


def _replicas(parts: DataParallel) -> str:
    return f"{parts.replicas}, {_bounds(parts)}; {plural(parts.shards, 'shard')} a step"


def _bounds(parts: DataParallel) -> str:
    return f"from {parts.min_replicas} to {parts.most}" if parts.min_replicas < parts.most else "no more and no less"


def _named(source: str | None) -> str:
    """What a model or data came from; of a path the last part, because a report is sent to others."""
    return PurePosixPath(source).name if source is not None and source.startswith("/") else str(source)


def _notes(run: Run) -> str:
    notes = []
    if run.unread:
        notes.append(f"{plural(run.unread, 'line')} of metrics.jsonl could not be read.")
    odd = [record.step for record in run.records if not drawable(record.loss)]
    if odd:
        notes.append(f"{plural(len(odd), 'step')} with a loss that is no finite number, the first at {odd[0]:,}, not drawn.")
    return "".join(f" {safe(note)}" for note in notes)
