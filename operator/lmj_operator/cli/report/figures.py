"""The pictures of a report, each with its heading and its key: what there is to draw, and nothing else."""

from collections.abc import Callable, Iterable, Sequence

from lmj_api.protocol import Evaluation
from lmj_api.status import IncidentKind
from lmj_operator.cli.report import matrix, text, timeline
from lmj_operator.cli.report.plot import Dot, Line, Mark, Plot, steps_scale, svg
from lmj_operator.cli.report.run import Run
from lmj_operator.cli.report.scale import of_counts, of_parts, of_small, of_times
from lmj_operator.cli.report.series import drawable, losses, rates, replicas, smooth, step_times
from lmj_operator.cli.report.text import plural, safe
from lmj_operator.plan.failures.incidents import NOT_FAILED

SIZES = ((880, 280), (380, 240))
"""Widths and heights of each plot: one for wide windows, one for phones."""
HALF = ((430, 250),)
"""The same of one that stands beside another."""
MOST_DOTS = 300
"""Evaluations that are drawn; the newest."""


def progress(run: Run) -> str:
    """The loss, and below it accuracy and learning rate beside each other."""
    loss = losses(run.records)
    if not loss:
        return "<h2>Loss</h2>\n<p>No step is recorded.</p>"
    marks, smoothed = _marks(run), smooth(loss)
    dots = _dots(run.evaluations, lambda e: e.loss)
    plot = Plot("Loss over steps", "loss", [Line(loss, "raw"), Line(smoothed)] if smoothed else [Line(loss)], dots, marks)
    names = [("raw", "loss of a step"), ("loss", "smoothed")] if smoothed else [("loss", "loss of a step")]
    key = [*(_key(*name) for name in names), *(_key(kind, f"{kind} loss") for kind in _kinds(dots)), *_mark_key(run, marks)]
    return _figure("Loss", _drawn(plot, [plot], SIZES), key) + beside(_accuracy(run, marks), _rate(run))


def step_time(run: Run) -> str:
    """Seconds a step, where the records say when they were made."""
    times = step_times(run.records)
    plot = Plot("Seconds between recorded steps, over steps", "seconds a step", [Line(times)], (), _marks(run), of_times)
    return _figure("Step time", _drawn(plot, [plot, _steps(run)], SIZES), []) if times else ""


def _accuracy(run: Run, marks: Sequence[Mark]) -> str:
    dots = _dots(run.evaluations, lambda e: e.accuracy)
    line = Line([(dot.step, dot.value) for dot in dots if dot.kind != "test"], "validation")
    plot = Plot("Accuracy over steps", "accuracy", [line], dots, marks, of_parts)
    keys = [_key(kind, f"{kind} accuracy") for kind in _kinds(dots)]
    return _figure("Accuracy", _drawn(plot, [plot, _steps(run)], HALF), keys) if dots else ""


def _rate(run: Run) -> str:
    plot = Plot("Learning rate over steps", "learning rate", [Line(rates(run.records), "rate")], (), (), of_small)
    return _figure("Learning rate", _drawn(plot, [plot, _steps(run)], HALF), []) if plot.lines[0].points else ""


def _steps(run: Run) -> Plot:
    """All steps of the run, for plots that show some of them: equal steps stand at equal places."""
    return Plot("", "", [Line(losses(run.records))])


def _drawn(plot: Plot, all_plots: Sequence[Plot], sizes: Sequence[tuple[int, int]]) -> str:
    return "\n".join(svg(plot, steps_scale(all_plots, width), width, height) for width, height in sizes)


def ranks(run: Run) -> str:
    """Where each rank was; nothing where too little is known."""
    made = timeline.timeline_of(run.status, run.begin, run.end)
    if made is None:
        return ""
    key = [_key("wait", "training waited"), *_mark_key(run, made.marks)] if made.marks else []
    key += [_key("absent", "not in the view")] if made.absences else []
    drawn = "\n".join(timeline.svg(made, width) for width, _ in SIZES)
    return _figure("Ranks", drawn, key)


def group_size(run: Run) -> str:
    """How many replicas took each step; nothing of a job that has one and no more."""
    counts = replicas(run.records)
    plot = Plot("Replicas over steps", "replicas", [Line(counts)], (), _marks(run), of_counts)
    return _figure("Replicas", _drawn(plot, [plot, _steps(run)], SIZES), []) if counts else ""


def confusion(run: Run) -> str:
    """What the newest evaluation took for what; nothing where it does not tell."""
    evaluation = run.last_evaluation
    made = matrix.matrix_of(evaluation)
    if made is None or evaluation is None:
        return ""
    of = (
        f", the {len(made.labels) - 1} of {plural(made.whole, 'label')} with the most mistakes"
        if made.whole > len(made.labels)
        else ""
    )
    caption = f"{evaluation.split} at step {evaluation.step:,}, {plural(evaluation.samples, 'row')}{of}"
    return _figure("Confusion matrix", matrix.svg(made, HALF[0][0]), [safe(caption)])


def beside(left: str, right: str) -> str:
    """Two parts of the page beside each other, where the window is wide enough; the only one alone."""
    parts = [part for part in (left, right) if part]
    cells = "".join(f"<section>{part}</section>" for part in parts)
    return f'\n<div class="beside">{cells}</div>' if len(parts) == 2 else "".join(parts)


def _figure(title: str, drawn: str, key: Sequence[str]) -> str:
    caption = f"\n<figcaption>{''.join(key)}</figcaption>" if key else ""
    return f"<h2>{title}</h2>\n<figure>\n{drawn}{caption}\n</figure>"


def _marks(run: Run) -> list[Mark]:
    return [
        Mark(
            number,
            min(max(i.step, 0), 2**53),
            i.kind in NOT_FAILED,
            f"{number}: {text.what(i)}, step {i.step}: {i.message}",
        )
        for number, i in enumerate(run.status.incidents if run.status is not None else [], 1)
    ]


def _dots(evaluations: Sequence[Evaluation], value: Callable[[Evaluation], float | None]) -> list[Dot]:
    found = ((e, value(e)) for e in evaluations[-MOST_DOTS:])
    return [
        Dot(e.step, at, e.split, f"{e.split} at step {e.step}: loss {text.number(e.loss)}, accuracy {text.number(e.accuracy)}")
        for e, at in found
        if drawable(at)
    ]


def _kinds(dots: Iterable[Dot]) -> list[str]:
    """The kinds of dots that a key explains."""
    found = {dot.kind for dot in dots}
    return [kind for kind in ("validation", "test") if kind in found]


def _mark_key(run: Run, marks: Iterable[Mark]) -> list[str]:
    kinds = {mark.moved for mark in marks}
    scaled = run.status is not None and any(i.kind is IncidentKind.SCALED for i in run.status.incidents)
    names = [(False, "failed", "incident"), (True, "moved", "move or another number of replicas" if scaled else "move")]
    return [f'<span><b class="badge {kind}">n</b> {name}</span>' for moved, kind, name in names if moved in kinds]


def _key(kind: str, name: str) -> str:
    return f'<span><i class="key {kind}"></i>{name}</span>'
