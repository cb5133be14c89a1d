"""One process that trains, and adapters."""

from collections.abc import Sequence
from statistics import median

from figures.form import NONE, Results, Row, number, results, table


def tasks() -> str:
    """Steps of this project and of ``transformers.Trainer``, on the same models."""
    details = results("tasks")["details"]
    rows = [
        (work, way, len(turns), *_training([turn[way] for turn in turns]))
        for work, turns in details["turns"].items()
        for way in turns[0]
    ]
    rows.append(("a small Llama, in full", "this project", 1, *_training([details["full"]])))
    return table(("Model", "By", "Runs", "Step", "To the first step", "Memory", "Checkpoint"), rows)


def _training(of: Sequence[Results]) -> Row:
    step, first, peak = (median(each[what] for each in of) for what in ("step", "first", "peak_mb"))
    sizes = [each["checkpoint_mb"] for each in of if each["checkpoint_mb"] is not None]
    return number(step, " s"), number(first, " s"), number(peak, " MB"), number(median(sizes), " MB") if sizes else NONE
