"""The tables of a report: incidents and moves, evaluations, checkpoints."""

from collections.abc import Sequence

from lmj_api.protocol import CheckpointInfo, Evaluation
from lmj_api.status import Incident, JobStatus
from lmj_operator.cli.report import text
from lmj_operator.cli.report.text import NONE, plural, safe
from lmj_operator.plan.failures.incidents import KEPT, NOT_FAILED, OF_ALL, proof, whole
from lmj_operator.plan.observe.units import size

MOST = 300
"""Evaluations that are listed; the newest."""


def incidents(told: Sequence[Incident], status: JobStatus | None) -> str:
    """All that the status reports."""
    if status is None:
        return "<h2>Incidents and moves</h2>\n<p>Not known: the folder holds no status (on a cluster, give --status).</p>"
    if not told:
        return "<h2>Incidents and moves</h2>\n<p>None.</p>"
    rows = []
    for index, each in enumerate(told, 1):
        badge = f'<b class="badge {"moved" if each.kind in NOT_FAILED else "failed"}">{index}</b>'
        lost = "not known yet" if each.steps_lost is None else plural(each.steps_lost, "step") + " done again"
        pause = "" if each.seconds is None else f", {text.seconds(each.seconds)}"
        if each.pause_seconds is not None:
            pause = f", paused for {text.seconds(each.pause_seconds)}"
        pause += "" if (there := whole(each)) is None else f"; {there}"
        what = "; ".join(part for part in (each.message, proof(each)) if part is not None)
        rank = NONE if each.kind in OF_ALL else each.rank
        cells = [each.time, f"{each.step:,}", each.kind, rank, each.pod or NONE, each.node or NONE, what, lost + pause]
        rows.append([badge, *map(safe, cells), safe(each.recovery or "not known yet")])
    head = ("No.", "Time", "Step", "Kind", "Rank", "Pod", "Node", "What", "Cost", "Went on")
    older = f'<p class="dim">A status keeps the last {KEPT}.</p>' if len(told) >= KEPT else ""
    return f"<h2>Incidents and moves</h2>\n{_table(head, rows, 'incidents')}{older}"


def evaluations(told: Sequence[Evaluation]) -> str:
    """The newest, the last first."""
    if not told:
        return ""
    rows = [
        [safe(v) for v in (f"{e.step:,}", e.split, *map(text.number, (e.accuracy, e.f1, e.loss)), f"{e.samples:,}")]
        for e in reversed(told[-MOST:])
    ]
    table = _table(("Step", "Split", "Accuracy", "F1", "Loss", "Samples"), rows)
    opened = " open" if len(rows) <= 12 else ""
    note = f", the newest {MOST} of them" if len(told) > MOST else ""
    return f"<h2>Evaluations</h2>\n<details{opened}><summary>{plural(len(told), 'evaluation')}{note}</summary>\n{table}</details>"


def checkpoints(told: Sequence[CheckpointInfo]) -> str:
    """Those in the folder, the newest first."""
    if not told:
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
        for c in reversed(told)
    ]
    return f"<h2>Checkpoints</h2>\n{_table(('Name', 'Step', 'Time', 'Size', 'Note'), rows)}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "") -> str:
    """``rows`` of cells that are HTML already."""
    top = "".join(f"<th>{name}</th>" for name in head)
    body = "\n".join(
        "<tr>" + "".join(f'<td data-of="{name}">{cell}</td>' for name, cell in zip(head, row, strict=True)) + "</tr>"
        for row in rows
    )
    return f'<table class="{kind}">\n<thead><tr>{top}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>'
