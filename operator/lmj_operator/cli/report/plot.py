"""One plot over the steps, as an SVG: lines, points beside them, and numbered marks at what happened."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from lmj_operator.cli.report.scale import Scale, from_zero
from lmj_operator.cli.report.series import Point, thin
from lmj_operator.cli.report.text import safe

LEFT, RIGHT = 52, 10
"""Room beside every plot."""
ROW = 20
"""Height of a row of badges."""
_BOTTOM, _BADGE = 34, 18


@dataclass(frozen=True)
class Mark:
    """Something that happened at a step."""

    number: int
    """Its line in the table."""
    step: float
    """Committed steps when it was noticed; on a timeline, seconds."""
    moved: bool
    """A rank moved; else something failed."""
    title: str
    """What it was, in one line."""


@dataclass(frozen=True)
class Dot:
    """A value beside the line."""

    step: int
    value: float
    """Drawable."""
    kind: str
    """``validation`` or ``test``; others are drawn as the first."""
    title: str
    """What it is, in one line."""


@dataclass(frozen=True)
class Line:
    """Points that belong together."""

    points: Sequence[Point]
    kind: str = "line"
    """Its class in the style: ``line``, ``raw`` (behind its smoothed line), ``validation`` or ``rate``."""


@dataclass(frozen=True)
class Plot:
    """What is drawn."""

    name: str
    """What the plot shows, for those who do not see it."""
    unit: str
    """What the values are; stands at their axis."""
    lines: Sequence[Line]
    """The first lies below the others."""
    dots: Sequence[Dot] = ()
    marks: Sequence[Mark] = ()
    scale: Callable[[Iterable[float], float, float], Scale] = from_zero
    """Makes the scale of the values from them and the places of its ends."""


def steps_scale(plots: Iterable[Plot], width: int) -> Scale:
    """The scale of the steps, from 0, with room for all that ``plots`` show. One for all: equal steps stand below each other."""
    steps = [1.0]
    for plot in plots:
        steps += [step for line in plot.lines for step, _ in line.points]
        steps += [dot.step for dot in plot.dots]
        steps += [mark.step for mark in plot.marks]
    return Scale(0.0, max(steps), LEFT, width - RIGHT)


def svg(plot: Plot, x: Scale, width: int, height: int) -> str:
    """``plot`` as an SVG of ``width`` and ``height`` units; ``x`` as :func:`steps_scale` made it for that width."""
    rows = rows_of([x.at(mark.step) for mark in plot.marks])
    top = 12 + ROW * (max(rows, default=-1) + 1)
    bottom = max(height - _BOTTOM, top + 60)
    height = bottom + _BOTTOM
    values = [value for line in plot.lines for _, value in line.points]
    y = plot.scale([*values, *(dot.value for dot in plot.dots)], bottom, top)
    logarithmic = ", logarithmic" if y.logarithmic else ""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" class="w{width}" role="img">',
        f"<title>{safe(plot.name)}</title>",
        *_axes(x, y, top, bottom, width),
        f'<text class="unit" x="{LEFT}" y="{bottom + 30}">{safe(plot.unit + logarithmic)}</text>',
        *(mark_at(mark, x.at(mark.step), row, bottom) for mark, row in zip(plot.marks, rows, strict=True)),
        *(_line([(x.at(step), y.at(value)) for step, value in thin(line.points)], line.kind) for line in plot.lines),
        *(_dot(dot, x.at(dot.step), y.at(dot.value)) for dot in plot.dots),
        "</svg>",
    ]
    return "\n".join(part for part in parts if part)


def rows_of(places: Sequence[float]) -> list[int]:
    """A row for each badge, so that none lies over another in its row."""
    ends: list[float] = []
    rows: dict[int, int] = {}
    for index in sorted(range(len(places)), key=lambda i: (places[i], i)):
        row = next((r for r, end in enumerate(ends) if end <= places[index]), len(ends))
        ends[row : row + 1] = [places[index] + _BADGE + 2]
        rows[index] = row
    return [rows[index] for index in range(len(places))]


def _axes(x: Scale, y: Scale, top: int, bottom: int, width: int) -> list[str]:
    parts = []
    for tick in y.ticks(5):
        at = y.at(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{width - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text class="tick" text-anchor="end" x="{LEFT - 6}" y="{at + 4:.1f}">{tick:.4g}</text>')
    for tick in x.ticks(max(2, width // 120)):
        if not tick.is_integer():
            continue
        at = x.at(tick)
        anchor = "end" if at > width - 40 else "middle"
        parts.append(f'<line class="axis" x1="{at:.1f}" x2="{at:.1f}" y1="{bottom}" y2="{bottom + 4}"/>')
        parts.append(f'<text class="tick" text-anchor="{anchor}" x="{at:.1f}" y="{bottom + 16}">{tick:,.0f}</text>')
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{width - RIGHT}" y1="{bottom}" y2="{bottom}"/>')
    parts.append(f'<text class="unit" text-anchor="end" x="{width - RIGHT}" y="{bottom + 30}">step</text>')
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{LEFT}" y1="{top}" y2="{bottom}"/>')
    return parts


def _line(places: Sequence[Point], kind: str) -> str:
    if len(places) == 1:
        (x, y) = places[0]
        return f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>'
    return f'<polyline class="{kind}" points="' + " ".join(f"{x:.1f},{y:.1f}" for x, y in places) + '"/>' if places else ""


def mark_at(mark: Mark, x: float, row: int, bottom: int) -> str:
    """The badge of ``mark`` in its row, and a line from it down to ``bottom``."""
    kind, y = "moved" if mark.moved else "failed", 4 + ROW * row
    half = _BADGE / 2
    corner = 3 if mark.moved else half
    return (
        f'<g class="mark {kind}" data-number="{mark.number}"><title>{safe(mark.title)}</title>'
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y + _BADGE}" y2="{bottom}"/>'
        f'<rect x="{x - half:.1f}" y="{y}" width="{_BADGE}" height="{_BADGE}" rx="{corner:g}"/>'
        f'<text x="{x:.1f}" y="{y + 13}" text-anchor="middle">{mark.number}</text></g>'
    )


def _dot(dot: Dot, x: float, y: float) -> str:
    title = f"<title>{safe(dot.title)}</title>"
    if dot.kind == "test":
        shape = f'<path class="test" d="M{x:.1f} {y - 6:.1f}l6 6l-6 6l-6 -6z">{title}</path>'
    else:
        shape = f'<circle class="validation" cx="{x:.1f}" cy="{y:.1f}" r="4">{title}</circle>'
    return shape
