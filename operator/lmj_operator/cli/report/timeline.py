"""Where each rank was, and when: what a status reports it, as a value and as an SVG."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from lmj_api.status import Incident, JobStatus
from lmj_operator.cli.report.plot import RIGHT, ROW, Mark, mark_at, rows_of
from lmj_operator.cli.report.replicas import Replicas
from lmj_operator.cli.report.scale import Scale, clock_ticks
from lmj_operator.cli.report.text import safe, what
from lmj_operator.plan.failures.incidents import KEPT, NOT_FAILED, OF_REPLICAS
from lmj_operator.plan.observe.times import epoch_seconds
from lmj_operator.plan.observe.units import duration

LONGEST = 1e9
"""Seconds that a run may take to be drawn."""
MOST = 64
"""Ranks that are drawn."""
COLOURS = 6
_LEFT, _BAR, _BOTTOM = 64, 26, 34


@dataclass(frozen=True)
class Stay:
    """A rank in a pod, for a time."""

    begin: float
    """Seconds since the run began, as all here."""
    end: float
    pod: str | None
    """None: it is not known."""
    node: str | None


@dataclass(frozen=True)
class Absence:
    """A time for which a rank had a pod and was not in the view."""

    rank: int
    begin: float
    end: float
    title: str
    """What it was, in one line."""


@dataclass(frozen=True)
class Timeline:
    """All ranks, from the run's first pod on."""

    seconds: float
    rows: Sequence[tuple[int, Sequence[Stay]]]
    """Rank by rank, in order of time."""
    names: Mapping[int, str]
    """What each rank is called."""
    absences: Sequence[Absence]
    waits: Sequence[tuple[float, float]]
    """When training waited for a rank that was lost, or moved."""
    marks: Sequence[Mark]
    """Incidents and moves; their step is the second."""


def timeline_of(status: JobStatus | None, begin: float | None, end: float | None) -> Timeline | None:
    """What ``status`` reports a run from ``begin`` to ``end``; None: too little is known."""
    if status is None or begin is None or end is None or not 0 < end - begin < LONGEST or not 0 < begin < 1e11:
        return None
    told = [(number, i, at) for number, i in enumerate(status.incidents, 1) if (at := _seconds(i, begin, end)) is not None]
    at_end = {rank.rank: (rank.pod, rank.node) for rank in status.ranks}
    # Of what happened before the oldest of a full list nothing is known.
    known = min((at for _, _, at in told), default=0.0) if len(status.incidents) >= KEPT else 0.0
    group = [(i, at) for _, i, at in told if i.kind in OF_REPLICAS]
    of_ranks = [(i, at) for _, i, at in told if i.kind not in OF_REPLICAS]
    made = Replicas.of(status, group, end - begin)
    rows = []
    for rank in sorted({*at_end, *(i.rank for i, _ in of_ranks), *made.ranks})[:MOST]:
        mine = [(i, at) for i, at in of_ranks if i.rank == rank]
        stays = _stays(mine, at_end.get(rank, (None, None)), known, end - begin)
        rows.append((rank, _within(stays, made.lives(rank))))
    if not any(stay.pod for _, stays in rows for stay in stays):
        return None
    waits = [(at, min(at + _waited(i), end - begin)) for i, at in of_ranks if _waited(i) > 0]
    marks = [Mark(number, at, i.kind in NOT_FAILED, f"{number}: {what(i)}: {i.message}") for number, i, at in told]
    names = {rank: made.name(rank) for rank, _ in rows}
    absences = [Absence(rank, *span) for rank, _ in rows for span in made.absences(rank)]
    return Timeline(end - begin, rows, names, absences, waits, marks)


def _within(stays: Sequence[Stay], lives: Sequence[tuple[float, float]]) -> list[Stay]:
    """What of ``stays`` is in ``lives``, the times in which the job had the rank."""
    parts = [Stay(max(s.begin, begin), min(s.end, end), s.pod, s.node) for s in stays for begin, end in lives]
    return [part for part in parts if part.end > part.begin]


def _seconds(incident: Incident, begin: float, end: float) -> float | None:
    """When it was, since ``begin``; None: it does not say, or says a time that cannot be."""
    try:
        at = epoch_seconds(incident.time) - begin
    except (ValueError, OverflowError, OSError):
        return None
    return min(max(at, 0.0), end - begin) if -LONGEST < at < LONGEST else None


def _waited(incident: Incident) -> float:
    told = incident.pause_seconds if incident.kind in NOT_FAILED else incident.seconds
    return told if told is not None and 0 <= told < LONGEST else 0.0


def _stays(told: Sequence[tuple[Incident, float]], last: tuple[str | None, str | None], known: float, end: float) -> list[Stay]:
    """Each incident of a rank names the pod that it had; after the last it is in the one that the status names."""
    ordered = sorted(told, key=lambda each: each[1])
    places: list[tuple[str | None, str | None]] = [(i.pod, i.node) for i, _ in ordered]
    cuts = [known, *(at for _, at in ordered), end]
    stays = [Stay(0.0, known, None, None)] if known > 0 else []
    for (begin, until), place in zip(pairwise(cuts), [*places, last], strict=True):
        if stays and (stays[-1].pod, stays[-1].node) == place:  # its worker was another one, in the same pod
            stays[-1] = Stay(stays[-1].begin, until, *place)
        elif until > begin:
            stays.append(Stay(begin, until, *place))
    return stays


def svg(timeline: Timeline, width: int) -> str:
    """``timeline`` as an SVG of ``width`` units."""
    left = max(_LEFT, 12 + 7 * max(len(name) for name in timeline.names.values()))
    x = Scale(0.0, timeline.seconds, left, width - RIGHT)
    rows = rows_of([x.at(mark.step) for mark in timeline.marks])
    lanes = {rank: index for index, (rank, _) in enumerate(timeline.rows)}
    top = 12 + ROW * (max(rows, default=-1) + 1)
    bottom = top + _BAR * len(timeline.rows) + 6
    colours = _colours(timeline)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {bottom + _BOTTOM}" class="timeline w{width}" role="img">',
        "<title>Where each rank was, over time</title>",
    ]
    for index, (rank, stays) in enumerate(timeline.rows):
        y = top + _BAR * index + 3
        name = timeline.names[rank]
        parts.append(f'<text class="tick" text-anchor="end" x="{left - 8}" y="{y + 15}">{safe(name)}</text>')
        parts += [_bar(stay, f"rank {rank}" + (f" ({name})" if name != f"rank {rank}" else ""), x, y, colours) for stay in stays]
    for absence in timeline.absences:
        y, wide = top + _BAR * lanes[absence.rank] + 3, max(x.at(absence.end) - x.at(absence.begin), 1.5)
        parts.append(
            f'<rect class="absent" x="{x.at(absence.begin):.1f}" y="{y}" width="{wide:.1f}" height="{_BAR - 4}">'
            f"<title>{safe(absence.title)}</title></rect>"
        )
    for begin, end in timeline.waits:
        wide = max(x.at(end) - x.at(begin), 1.5)
        parts.append(f'<rect class="wait" x="{x.at(begin):.1f}" y="{top}" width="{wide:.1f}" height="{bottom - top}"/>')
    parts += [mark_at(mark, x.at(mark.step), row, bottom) for mark, row in zip(timeline.marks, rows, strict=True)]
    parts.append(f'<line class="axis" x1="{left}" x2="{width - RIGHT}" y1="{bottom}" y2="{bottom}"/>')
    for tick in clock_ticks(timeline.seconds, max(2, width // 120)):
        at = x.at(tick)
        parts.append(f'<line class="axis" x1="{at:.1f}" x2="{at:.1f}" y1="{bottom}" y2="{bottom + 4}"/>')
        anchor = "end" if at > width - 40 else "middle"
        parts.append(f'<text class="tick" text-anchor="{anchor}" x="{at:.1f}" y="{bottom + 16}">{duration(tick)}</text>')
    parts.append(f'<text class="unit" text-anchor="end" x="{width - RIGHT}" y="{bottom + 30}">time</text>')
    return "\n".join([*parts, "</svg>"])


def _colours(timeline: Timeline) -> dict[Stay, int]:
    """A colour for each stay: one a node, in the order in which they come; where there is one node only, one a pod."""
    stays = [stay for _, stays in timeline.rows for stay in stays if stay.pod is not None]
    nodes = len({stay.node for stay in stays}) > 1
    places = {place: index for index, place in enumerate(dict.fromkeys(stay.node if nodes else stay.pod for stay in stays))}
    return {stay: places[stay.node if nodes else stay.pod] % COLOURS for stay in stays}


def _bar(stay: Stay, who: str, x: Scale, y: float, colours: dict[Stay, int]) -> str:
    begin, wide = x.at(stay.begin), x.at(stay.end) - x.at(stay.begin)
    where = " on ".join(part for part in (stay.pod, stay.node) if part) or "not known"
    kind = f"place{colours[stay]}" if stay in colours else "unknown"
    shown = next((text for text in (where, stay.pod or where, stay.node or where) if len(text) * 7 + 8 <= wide), "")
    label = f'<text x="{begin + 6:.1f}" y="{y + 15}">{safe(shown)}</text>' if shown else ""
    says = f"{who}: {where}, {duration(stay.begin)} to {duration(stay.end)}"
    return (
        f'<g class="stay {kind}"><title>{safe(says)}</title>'
        f'<rect x="{begin:.1f}" y="{y}" width="{max(wide - 1, 0.5):.1f}" height="{_BAR - 4}" rx="3"/>{label}</g>'
    )
