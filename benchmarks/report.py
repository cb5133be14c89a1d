"""Goals and what was measured: a table for people, the same as JSON, and the exit code."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Goal:
    """One figure that was to be reached."""

    name: str
    goal: str
    measured: float
    met: bool
    unit: str = ""


def goal(name: str, relation: str, bound: float, measured: float, unit: str = "") -> Goal:
    """A goal such as ``<= 1.06``."""
    met: dict[str, Callable[[float, float], bool]] = {
        "<=": lambda a, b: a <= b,
        ">=": lambda a, b: a >= b,
        "<": lambda a, b: a < b,
        ">": lambda a, b: a > b,
    }
    return Goal(name, f"{relation} {bound:g}{unit}", measured, met[relation](measured, bound), unit)


def quantile(values: Sequence[float], part: float) -> float:
    """The smallest value that ``part`` of all do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def report(name: str, goals: list[Goal], details: dict[str, Any]) -> int:
    """Print the table, write ``results/NAME.json``, return 0 if all goals are met, else 1."""
    width = max(len(g.name) for g in goals)
    print(f"\n{'goal':{width}}  {'wanted':>10}  {'measured':>10}")
    for g in goals:
        print(f"{g.name:{width}}  {g.goal:>10}  {g.measured:>9.3f}{g.unit:1}  {'ok' if g.met else 'short'}")
    machine = {
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "processor": _processor(),
    }
    RESULTS.mkdir(exist_ok=True)
    content = {"benchmark": name, "goals": [asdict(g) for g in goals], "details": details, "machine": machine}
    (RESULTS / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")
    return 0 if all(g.met for g in goals) else 1


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")), "")
