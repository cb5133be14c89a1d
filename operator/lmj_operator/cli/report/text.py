"""Text for HTML and SVG. All of it may come from files that anybody wrote: it is escaped here and nowhere else."""

import math
import re
from datetime import UTC, datetime
from html import escape

from lmj_api.status import Incident
from lmj_operator.plan.failures.incidents import OF_ALL, OF_REPLICAS
from lmj_operator.plan.observe.units import duration

NONE = "\N{EN DASH}"
"""Stands for what is not known."""

# What XML cannot hold, and what makes a reader see another order of letters than the file has.
_UNSAFE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")


def safe(value: object) -> str:
    """``value`` as text that is the same in HTML, in SVG and in the value of an attribute in quotes."""
    return escape(_UNSAFE.sub("\N{REPLACEMENT CHARACTER}", str(value)), quote=True)


def number(value: float | None, digits: int = 4) -> str:
    """``value`` with ``digits`` after the point; the dash for None, and for what is no finite number."""
    return NONE if value is None or not math.isfinite(value) else f"{value:,.{digits}f}"


def seconds(value: float | None) -> str:
    """A time span: ``0.07 s``, ``12.5 s``, ``1:15``, ``2:01:15``."""
    if value is None or not 0 <= value < 1e12:
        return NONE
    if value >= 60:
        return duration(value)
    return f"{value:.2f} s" if value < 10 else f"{value:.1f} s"


def moment(value: float | None) -> str:
    """``value``, seconds since the epoch, as a date and time (UTC)."""
    # Up to the year 9999.
    if value is None or not 0 < value < 253_402_300_000:
        return NONE
    return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def what(incident: Incident) -> str:
    """What it was, and of which rank it is: those of replicas say it in their message."""
    return str(incident.kind) if incident.kind in OF_REPLICAS | OF_ALL else f"{incident.kind}, rank {incident.rank}"


def plural(count: int, noun: str) -> str:
    """``1 step``, ``2 steps``."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
