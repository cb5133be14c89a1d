"""What the move of a rank cost, from the times of the steps that were done meanwhile."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from report import quantile
from steps import median_step, repeated

BEFORE = 11
"""Steps before a move that say how long one takes, at most."""
AFTER = 5
"""Steps after it that belong to it."""
SHOWN = 2
"""Steps before and after the first of the next group that are shown."""
LIVE, STOP = "live move", "stop and copy"
ENCRYPTED = "live move, encrypted"
RESTART, GROUP = "restart from a checkpoint", "torchrun, the whole group"


@dataclass(frozen=True)
class Move:
    """What one move cost."""

    way: str
    size: str
    stages: int
    rank: int
    pause: float
    """Seconds: the gap between the last step of the old group and the first of the next, less the median step before the move."""
    longest: float
    """The same, over all of the move: a new process that imports on a machine without a core to spare slows every step."""
    total: float
    """From the request to the first new step of the next group."""
    rate: float
    """Steps a second while it went on, as part of those before."""
    again: int
    """Steps done again."""
    step: float
    """Median step before it, seconds."""
    unrest: float
    """What one step in ten takes longer than the median when nothing happens, seconds: so much of ``pause`` may be the machine's."""
    sent: float | None = None
    """Megabytes of state and gradients that were sent for it, or of the checkpoint that was written and read; None: not known."""
    around: list[float] | None = None
    """Seconds of the steps at the switch, the first new one in the middle; None: it is not known where that was."""
    waited: float | None = None
    """Seconds in which no rank did anything for a step: from the last update of the old group to the first batch of the next; None: not
    known."""

    @property
    def standstill(self) -> float:
        """``waited``, or where it is not known ``pause``, which has the scatter of a step in it."""
        return self.pause if self.waited is None else self.waited

    def __str__(self) -> str:
        step, unrest, longest = (round(value * 1000) for value in (self.step, self.unrest, self.longest))
        pause = f"paused {self.pause * 1000:.0f} ms (a step: {step} ms, unrest {unrest}; longest {longest})"
        waited = "" if self.waited is None else f"waited {self.waited * 1000:.0f} ms, "
        sent = "" if self.sent is None else f", {self.sent:.0f} MB"
        whole = f"{self.total:.1f} s in all at {self.rate:.0%} of the speed{sent}, {self.again} steps done again"
        return f"rank {self.rank}: {waited}{pause}, {whole}; {self.around}"


@dataclass(frozen=True)
class Cost:
    """The part of a :class:`Move` that the times of steps tell."""

    pause: float
    longest: float
    total: float
    rate: float
    step: float
    again: int


def firsts(seen: Iterable[tuple[int, float]]) -> dict[int, float]:
    """When each step was first done."""
    first: dict[int, float] = {}
    for step, at in sorted(seen, key=lambda entry: entry[1]):
        first.setdefault(step, at)
    return first


def first_times(seen: Iterable[tuple[int, float]]) -> list[tuple[float, int]]:
    """When each step was first done, in that order."""
    return sorted((at, step) for step, at in firsts(seen).items())


def judge(seen: Iterable[tuple[int, float]], begun: float, switch: int | None, after: int = AFTER, near: int = 0) -> Cost | None:
    """What was asked for at ``begun`` cost; None: it is not over yet.

    ``switch``: the step after which the group changed; None: that is where the longest gap is. ``after``: steps after it to wait for.
    ``near``: so many gaps before it count as well.
    """
    seen = list(seen)
    times = first_times(seen)
    before = [(at, step) for at, step in times if at <= begun][-BEFORE:]
    later = [before[-1], *((at, step) for at, step in times if at > begun)]
    usual = median_step([(step, at) for at, step in before])
    gaps = [(b - a, step, b) for (a, _), (b, step) in pairwise(later)]
    if not gaps:
        return None
    if switch is None:
        # A slow step is no change of the group, and what came just before the request's effect is none either.
        switch = max(gaps)[1] - 1
    there = [gap for gap in gaps if switch + 1 - near <= gap[1] <= switch + 1]
    whole = [gap for gap in gaps if gap[1] <= switch + after]
    if not there or later[-1][1] < switch + after:
        return None
    end = next(at for _, step, at in gaps if step > switch)
    during = sum(at <= end for _, _, at in gaps) / (end - begun)
    again = repeated(entry for entry in seen if entry[1] > before[0][0])
    return Cost(max(there)[0] - usual, max(whole)[0] - usual, end - begun, during * usual, usual, again)


def unrest(seen: Iterable[tuple[int, float]], begun: float) -> float:
    """What one in ten of the steps before ``begun`` takes longer than the median."""
    times = [at for at, _ in first_times(seen) if at <= begun][-BEFORE:]
    gaps = [b - a for a, b in pairwise(times)]
    return quantile(gaps, 0.9) - statistics.median(gaps)


def around(seen: Iterable[tuple[int, float]], switch: int) -> list[float]:
    """Seconds of the steps at the switch."""
    first = firsts(seen)
    steps = range(switch + 1 - SHOWN, switch + 2 + SHOWN)
    return [round(first[step] - first[step - 1], 4) for step in steps if {step, step - 1} <= first.keys()]


NAMES = (
    "stages",
    "times",
    "step, ms",
    "waits p50",
    "pause p50",
    "p99",
    "unrest",
    "longest",
    "total, s",
    "speed",
    "sent, MB",
    "again",
)
EXPLANATION = """\
waits: from the last update of the old group to the first batch of the next, in ms: nobody does anything for a step.
pause: the gap between the last step of the old group and the first of the next, longest: the longest gap of all the move; both in ms,
less the median step before. unrest: what one step in ten takes longer than that when nothing happens.
speed: steps a second during the move, of those before. sent: state and gradients, or the checkpoint that was written and read."""


def table(groups: Iterable[list[Move]]) -> str:
    """A line for each group of like moves."""
    lines = ["", f"{'':38}" + "".join(f"{name:>10}" for name in NAMES)]
    return "\n".join([*lines, *map(_row, groups)])


def _row(moves: list[Move]) -> str:
    pauses, longest = [m.pause * 1000 for m in moves], [m.longest * 1000 for m in moves]
    sent = [m.sent for m in moves if m.sent is not None]
    waited = [m.waited * 1000 for m in moves if m.waited is not None]
    cells = [
        str(moves[0].stages),
        str(len(moves)),
        f"{statistics.median(m.step for m in moves) * 1000:.0f}",
        f"{statistics.median(waited):.0f}" if waited else "-",
        f"{statistics.median(pauses):.0f}",
        f"{quantile(pauses, 0.99):.0f}",
        f"{statistics.median(m.unrest for m in moves) * 1000:.0f}",
        f"{statistics.median(longest):.0f}",
        f"{statistics.median(m.total for m in moves):.1f}",
        f"{statistics.median(m.rate for m in moves):.0%}",
        f"{statistics.median(sent):.0f}" if sent else "-",
        str(max(m.again for m in moves)),
    ]
    return f"{moves[0].way + ', ' + moves[0].size:38}" + "".join(f"{cell:>10}" for cell in cells)
