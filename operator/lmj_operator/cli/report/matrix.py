"""The confusion matrix of an evaluation, as an SVG: what was true, and what was predicted."""

from collections.abc import Sequence
from dataclasses import dataclass

from lmj_api.protocol import Evaluation
from lmj_operator.cli.report.text import safe

MOST = 12
"""Labels that are drawn."""


@dataclass(frozen=True)
class Matrix:
    """Counts: rows are true labels, columns predicted ones."""

    labels: Sequence[str]
    counts: Sequence[Sequence[int]]
    whole: int
    """Labels of the evaluation; more than are drawn: the last one drawn stands for the others."""


def matrix_of(evaluation: Evaluation | None) -> Matrix | None:
    """That of ``evaluation``; of many labels those with the most mistakes, and the others together. None: it has none."""
    if evaluation is None:
        return None
    labels, counts = evaluation.labels, evaluation.confusion
    if not labels or len(counts) != len(labels) or any(len(row) != len(labels) for row in counts):
        return None
    if len(labels) <= MOST:
        return Matrix(labels, counts, len(labels))
    columns = list(zip(*counts, strict=True))
    mistakes = [sum(row) + sum(column) - 2 * row[index] for index, (row, column) in enumerate(zip(counts, columns, strict=True))]
    chosen = sorted(sorted(range(len(labels)), key=lambda index: (-mistakes[index], index))[: MOST - 1])
    groups = [[index] for index in chosen] + [sorted(set(range(len(labels))) - set(chosen))]
    names = [labels[index] for index in chosen] + [f"{len(groups[-1]):,} others"]
    merged = [[sum(counts[i][j] for i in rows for j in cells) for cells in groups] for rows in groups]
    return Matrix(names, merged, len(labels))


def svg(matrix: Matrix, width: int) -> str:
    """``matrix`` as an SVG of ``width`` units. The deeper a cell, the more of the row's true label are there."""
    left, top, count = min(150, width // 4), 44, len(matrix.labels)
    cell = (width - left - 8) / count
    tall = min(cell, 56.0)
    letters = max(3, int((left - 12) / 7)), max(1, int(cell / 7))
    height = top + tall * count + 6
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:.0f}" class="matrix w{width}" role="img">',
        "<title>Confusion matrix: true labels in rows, predicted ones in columns</title>",
        f'<text class="unit" x="{left}" y="12">predicted</text>',
        f'<text class="unit" text-anchor="end" x="{left - 8}" y="{top - 8}">true</text>',
    ]
    for index, label in enumerate(matrix.labels):
        x, y = left + cell * (index + 0.5), top + tall * (index + 0.5) + 4
        parts.append(f'<text text-anchor="middle" x="{x:.1f}" y="{top - 8}">{_named(label, letters[1])}</text>')
        parts.append(f'<text text-anchor="end" x="{left - 8}" y="{y:.1f}">{_named(label, letters[0])}</text>')
    for i, row in enumerate(matrix.counts):
        of = max(1, sum(row))
        for j, value in enumerate(row):
            x, y, part = left + cell * j, top + tall * i, value / of
            says = f"{matrix.labels[i]} taken for {matrix.labels[j]}: {value:,} of {sum(row):,}, {part:.1%}"
            deep = " deep" if part > 0.5 else ""
            parts.append(
                f'<g class="cell {"right" if i == j else "wrong"}{deep}"><title>{safe(says)}</title>'
                f'<rect x="{x + 1:.1f}" y="{y + 1:.1f}" width="{cell - 2:.1f}" height="{tall - 2:.1f}" rx="3" class="back"/>'
                f'<rect x="{x + 1:.1f}" y="{y + 1:.1f}" width="{cell - 2:.1f}" height="{tall - 2:.1f}" rx="3" fill-opacity="{part:.3f}"/>'
                f"{_count(value, part, x + cell / 2, y + tall / 2, cell)}</g>"
            )
    return "\n".join([*parts, "</svg>"])


def _named(label: str, letters: int) -> str:
    """``label`` in the room there is, and whole for who points at it."""
    shown = label if len(label) <= letters else label[: max(1, letters - 1)] + "\N{HORIZONTAL ELLIPSIS}"
    return f"<title>{safe(label)}</title>{safe(shown)}"


def _count(value: int, part: float, x: float, y: float, room: float) -> str:
    text = f"{value:,}"
    if room >= 90:
        text += f" ({part:.1%})"
    # A tooltip has it where there is no room.
    return f'<text text-anchor="middle" x="{x:.1f}" y="{y + 4:.1f}">{text}</text>' if len(text) * 7 <= room else ""
