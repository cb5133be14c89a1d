"""Results as they are kept, and tables and numbers as Markdown shows them."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
NONE = ""
KEPT = {"nothing": "", "standby": "`standby: 1`", "replica": "`hotStandby: true`"}
"""What a job keeps ready, as its spec says it."""

Results = dict[str, Any]
Row = Sequence[object]


def results(name: str) -> Results:
    """What a benchmark wrote."""
    content: Results = json.loads((RESULTS / f"{name}.json").read_text("utf-8"))
    return content


def is_kept(name: str) -> bool:
    """Whether the results of a benchmark that is new are there."""
    return (RESULTS / f"{name}.json").exists()


def when_kept(name: str, make: Callable[[], str]) -> Callable[[], str]:
    """``make``, or a line as long as no results of the benchmark are kept."""
    return lambda: make() if is_kept(name) else "No results are kept of this one yet.\n"


def table(head: Row, rows: Iterable[Row]) -> str:
    """As Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def number(value: float, unit: str = "") -> str:
    """With as many digits as are worth reading."""
    digits = 0 if abs(value) >= 100 or value == int(value) else 1 if abs(value) >= 10 else 2 if abs(value) >= 0.1 else 3
    return f"{value:.{digits}f}{unit}"


def span(values: Iterable[float], unit: str = "") -> str:
    """The smallest and the largest."""
    values = list(values)
    return f"{number(min(values))} to {number(max(values), unit)}"


def grouped(items: Iterable[Results], *names: str) -> dict[tuple[Any, ...], list[Results]]:
    """By the values of these fields, in the order in which they first appear."""
    groups: dict[tuple[Any, ...], list[Results]] = defaultdict(list)
    for item in items:
        groups[tuple(item[name] for name in names)].append(item)
    return groups


def goals(name: str) -> str:
    """What the benchmark was to reach."""
    rows = [
        (each["name"], each["goal"], number(each["measured"], each["unit"]), "yes" if each["met"] else "no")
        for each in results(name)["goals"]
    ]
    return table(("What", "Goal", "Measured", "Met"), rows)
