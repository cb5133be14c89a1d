"""What the comparison of pipelines makes of its rounds.

A round is a turn of several contenders, one right after the other: seconds a step of each. Contenders are compared within a round and never
across two, and of the quotients the median counts: a machine that gets slower is not what is measured.

The ideal of a step in two stages is taken from two single processes that run at once, one a core. Each has the whole model, the same batch
and the same micro-batches. In the time of their step (the mean of both) two cores did two steps, so a pipeline without bubble, messages and
commit would take half of it. Half of one process alone is no ideal: cores share memory, caches and power, and no program keeps two of them
busy at the speed that one has by itself.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from report import Goal, goal

Round = dict[str, float]
"""Seconds a step of each contender that had its turn."""

ALONE = "a single process alone"
BUSY = "each of two single processes at once"
OURS = "this pipeline"
PEERS = {
    "torch 1F1B, Gloo": ("torch_pipelining.py", "1f1b"),
    "torch interleaved zero-bubble, Gloo": ("torch_pipelining.py", "zb"),
    "naive RPC": ("naive.py",),
}
"""Script and arguments of each."""
WORST = 1.05
"""Step times of the ideal that the pipeline may take."""
ON_PAR = {"torch interleaved zero-bubble, Gloo": 0.95}
"""Peers that need not be slower. With two stages a rank this one waits no longer for its first micro-batch than this pipeline, which halves it
(``pipeline.firstInHalves``), so both are near the ideal: which is ahead differs from run to run, by what five rounds cannot tell.
"""


def ideal(took: Round) -> float:
    """Seconds of a step without a bubble: two busy cores do two steps in the time of two single processes."""
    return took[BUSY] / 2


def of_ideal(rounds: Sequence[Round], name: str) -> float:
    """Step times of the ideal that the contender takes."""
    return statistics.median(took[name] / ideal(took) for took in rounds if name in took)


def behind(rounds: Sequence[Round], peer: str) -> float:
    """Step times of this pipeline that ``peer`` takes: above 1, the pipeline is ahead."""
    return statistics.median(took[peer] / took[OURS] for took in rounds if peer in took)


def goals(rounds: Sequence[Round]) -> list[Goal]:
    """What was to be reached: near the ideal, and ahead of every peer, or on par with it."""
    near = goal("step time of this pipeline over that of two busy cores", "<=", WORST, of_ideal(rounds, OURS))
    return [near, *(_of_peer(rounds, peer) for peer in PEERS)]


def _of_peer(rounds: Sequence[Round], peer: str) -> Goal:
    relation, bound = (">=", ON_PAR[peer]) if peer in ON_PAR else (">", 1.0)
    return goal(f"step time of {peer}, over this pipeline's", relation, bound, behind(rounds, peer))


def table(rounds: Sequence[Round]) -> str:
    """Step time of each contender, for people."""
    lines = [f"{'contender':38}{'step, s (median)':>18}{'min to max':>18}{'x of two busy cores':>21}"]
    for name in (ALONE, BUSY, OURS, *PEERS):
        row = [took[name] for took in rounds if name in took]
        span = f"{min(row):.2f} to {max(row):.2f}"
        lines.append(f"{name:38}{statistics.median(row):>18.2f}{span:>18}{of_ideal(rounds, name):>21.3f}")
    return "\n".join(lines)
