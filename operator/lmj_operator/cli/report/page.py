"""The report's page: a pure function of a run."""

from collections.abc import Sequence
from html import escape

from lmj_api.protocol import CheckpointInfo, Evaluation
from lmj_api.spec.job import LiveMigrationJob
from lmj_api.status import Incident, JobStatus
from lmj_operator.cli.report import text
from lmj_operator.cli.report.plot import Dot, Mark, Plot, steps_scale, svg
from lmj_operator.cli.report.run import Run
from lmj_operator.cli.report.scale import of_times
from lmj_operator.cli.report.series import drawable, losses, step_times
from lmj_operator.cli.report.style import CSS
from lmj_operator.cli.report.text import NONE, plural, safe
from lmj_operator.plan.incidents import MOVED, proof
from lmj_operator.plan.units import size

SIZES = ((880, 280), (380, 240))
"""Widths and heights of each plot: one for wide windows, one for phones."""
MOST_DOTS = 300
"""Evaluations that are drawn, and listed; the newest."""
_KEPT_INCIDENTS = 10
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
        _plots(run),
        _incidents(incidents, run.status),
        _evaluations(run.evaluations),
        _checkpoints(run.checkpoints),
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
        ("steps", f"{run.steps:,}" if of is None or of == run.steps else f"{run.steps:,} of {of:,}"),
        ("restarts", f"{status.restarts:,}" if status is not None else NONE),
        ("migrations", f"{status.migrations:,}" if status is not None else NONE),
        ("steps done again", f"{status.steps_lost:,}" if status is not None else NONE),
        ("total time", text.seconds(run.seconds)),
    ]
    return '<dl class="tiles">' + "".join(f"<div><dt>{safe(k)}</dt><dd>{safe(v)}</dd></div>" for k, v in tiles) + "</dl>"


def _facts(job: LiveMigrationJob) -> str:
    spec = job.spec
    scratch, data, training = spec.model.scratch, spec.dataset, spec.training
    if scratch is not None:
        model = (
            f"{scratch.architecture.value} from random weights: {plural(scratch.layers, 'layer')}, hidden size {scratch.hidden_size}, "
            f"{plural(scratch.heads, 'head')}"
        )
    else:
        model = f"{spec.model.source}" + (f" at {spec.model.revision}" if spec.model.revision else "")
    source = data.source + (f" ({data.config})" if data.config else "")
    layers = f", layers {' + '.join(map(str, spec.pipeline.layers))}" if spec.pipeline.layers else ""
    length = plural(training.max_steps, "step") if training.max_steps is not None else plural(training.epochs, "epoch")
    rows = [
        ("Model", model),
        ("Data", f"{source}: {' and '.join(data.text)} to {data.label}, up to {data.max_length} tokens"),
        (
            "Stages",
            f"{spec.pipeline.stages}{layers}, {plural(spec.pipeline.micro_batches, 'micro-batch').replace('batchs', 'batches')}",
        ),
        (
            "Training",
            f"{length}, batches of {training.batch_size * training.gradient_accumulation_steps}, "
            f"peak learning rate {training.learning_rate:g}, seed {training.seed}",
        ),
    ]
    return '<h2>Job</h2>\n<dl class="facts">' + "".join(f"<dt>{k}</dt><dd>{safe(v)}</dd>" for k, v in rows) + "</dl>"


def _plots(run: Run) -> str:
    loss, times = losses(run.records), step_times(run.records)
    if not loss:
        return "<h2>Loss</h2>\n<p>No step is recorded.</p>"
    marks = [
        Mark(
            number, min(max(i.step, 0), 2**53), i.kind == MOVED, f"{number}: {i.kind}, rank {i.rank}, step {i.step}: {i.message}"
        )
        for number, i in enumerate(run.status.incidents if run.status is not None else [], 1)
    ]
    dots = [
        Dot(
            e.step, e.loss, e.split, f"{e.split} at step {e.step}: loss {text.number(e.loss)}, accuracy {text.number(e.accuracy)}"
        )
        for e in run.evaluations[-MOST_DOTS:]
        if drawable(e.loss)
    ]
    plots = [Plot("Loss over steps", "loss", loss, dots, marks)]
    if times:
        plots.append(Plot("Seconds between recorded steps, over steps", "seconds a step", times, (), marks, of_times))
    drawn = ["\n".join(svg(plot, steps_scale(plots, width), width, height) for width, height in SIZES) for plot in plots]
    kinds = {dot.kind for dot in dots}
    key = ['<span><i class="key loss"></i>loss of a step</span>']
    key += [f'<span><i class="key {kind}"></i>{kind} loss</span>' for kind in ("validation", "test") if kind in kinds]
    key += ['<span><b class="badge failed">n</b> incident</span>'] if any(not mark.moved for mark in marks) else []
    key += ['<span><b class="badge moved">n</b> move</span>'] if any(mark.moved for mark in marks) else []
    text_of = [f"<h2>Loss</h2>\n<figure>\n{drawn[0]}\n<figcaption>{''.join(key)}</figcaption>\n</figure>"]
    if len(drawn) > 1:
        text_of.append(f"<h2>Step time</h2>\n<figure>\n{drawn[1]}\n</figure>")
    return "\n".join(text_of)


def _incidents(incidents: Sequence[Incident], status: JobStatus | None) -> str:
    if status is None:
        return "<h2>Incidents and moves</h2>\n<p>Not known: the folder holds no status (on a cluster, give --status).</p>"
    if not incidents:
        return "<h2>Incidents and moves</h2>\n<p>None.</p>"
    rows = []
    for index, each in enumerate(incidents, 1):
        badge = f'<b class="badge {"moved" if each.kind == MOVED else "failed"}">{index}</b>'
        lost = "not known yet" if each.steps_lost is None else plural(each.steps_lost, "step") + " done again"
        pause = "" if each.seconds is None else f", {text.seconds(each.seconds)}"
        if each.pause_seconds is not None:
            pause = f", paused for {text.seconds(each.pause_seconds)}"
        what = "; ".join(part for part in (each.message, proof(each)) if part is not None)
        cells = [each.time, f"{each.step:,}", each.kind, each.rank, each.pod, each.node or NONE, what, lost + pause]
        rows.append([badge, *map(safe, cells), safe(each.recovery or "not known yet")])
    head = ("No.", "Time", "Step", "Kind", "Rank", "Pod", "Node", "What", "Cost", "Went on")
    older = f'<p class="dim">A status keeps the last {_KEPT_INCIDENTS}.</p>' if len(incidents) >= _KEPT_INCIDENTS else ""
    return f"<h2>Incidents and moves</h2>\n{_table(head, rows)}{older}"


def _evaluations(evaluations: Sequence[Evaluation]) -> str:
    if not evaluations:
        return ""
    rows = [
        [safe(v) for v in (f"{e.step:,}", e.split, *map(text.number, (e.accuracy, e.f1, e.loss)), f"{e.samples:,}")]
        for e in reversed(evaluations[-MOST_DOTS:])
    ]
    table = _table(("Step", "Split", "Accuracy", "F1", "Loss", "Samples"), rows)
    opened = " open" if len(rows) <= 12 else ""
    note = f", the newest {MOST_DOTS} of them" if len(evaluations) > MOST_DOTS else ""
    return f"<h2>Evaluations</h2>\n<details{opened}><summary>{plural(len(evaluations), 'evaluation')}{note}</summary>\n{table}</details>"


def _checkpoints(checkpoints: Sequence[CheckpointInfo]) -> str:
    if not checkpoints:
        return "<h2>Checkpoints</h2>\n<p>None in the folder.</p>"
    rows = [
        [
            safe(v)
            for v in (
                c.name,
                f"{c.step:,}",
                text.moment(c.time),
                size(c.size) if c.problem is None else NONE,
                c.problem or ("best so far when it was taken" if c.best else ""),
            )
        ]
        for c in reversed(checkpoints)
    ]
    return f"<h2>Checkpoints</h2>\n{_table(('Name', 'Step', 'Time', 'Size', 'Note'), rows)}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """``rows`` of cells that are HTML already."""
    top = "".join(f"<th>{name}</th>" for name in head)
    body = "\n".join(
        "<tr>" + "".join(f'<td data-of="{name}">{cell}</td>' for name, cell in zip(head, row, strict=True)) + "</tr>"
        for row in rows
    )
    return f"<table>\n<thead><tr>{top}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"


def _notes(run: Run) -> str:
    notes = []
    if run.unread:
        notes.append(f"{plural(run.unread, 'line')} of metrics.jsonl could not be read.")
    odd = [record.step for record in run.records if not drawable(record.loss)]
    if odd:
        notes.append(f"{plural(len(odd), 'step')} with a loss that is no finite number, the first at {odd[0]:,}, not drawn.")
    return "".join(f" {safe(note)}" for note in notes)
