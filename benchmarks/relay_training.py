"""What encryption costs training: steps of the pipeline and moves of a rank, with relays beside the same without, in turns."""

from __future__ import annotations

import os
import statistics
from dataclasses import asdict
from pathlib import Path
from typing import Any

from group import Group
from killable import Ours
from move import Move
from progress import Say
from relay_ways import relays
from report import Goal, goal
from sizes import BASE
from ways import live

STRAIGHT, RELAYED = "straight", "relayed"
ENCRYPTION = {STRAIGHT: "Never", RELAYED: "Required"}
"""``network.encryption`` of each."""
Round = dict[str, Any]


def steps(rounds: int, number: int, say: Say) -> list[Round]:
    """Seconds a step of BERT-base in two stages. ``number``: steps in a turn."""
    found = []
    with relays() as pair:
        behind = {"BENCH_RELAYS": f"{pair.near}{os.pathsep}{pair.far}"}
        with Group(STRAIGHT, "ours.py") as straight, Group(RELAYED, "ours.py", environment=behind) as relayed:
            for group in (straight, relayed):
                say(f"{group.name}: warm-up step {group.slowest(1):.2f} s")
            for turn in range(rounds):
                both = (straight, relayed) if turn % 2 == 0 else (relayed, straight)
                found.append({group.name: group.slowest(number) for group in both})
                say(f"steps {turn + 1}/{rounds}: " + ", ".join(f"{name} {took:.2f} s" for name, took in found[-1].items()))
    return found


def moves(rounds: int, number: int, folder: Path, say: Say) -> list[Round]:
    """Moves of the only rank of BERT-base to another pod, ``number`` in each job: on two cores the target has one of its own."""
    found = []
    for turn in range(rounds):
        names = (STRAIGHT, RELAYED) if turn % 2 == 0 else (RELAYED, STRAIGHT)
        found.append({name: _moves(folder / f"{name}-{turn}", ENCRYPTION[name], number) for name in names})
        for name in names:
            say(f"moves {turn + 1}/{rounds}, {name}: " + "; ".join(map(str, found[-1][name])))
    return found


def _moves(folder: Path, encryption: str, number: int) -> list[Move]:
    job = Ours(folder, {**BASE.sets, "pipeline.stages": 1, "network.encryption": encryption})
    job.start()
    try:
        return [live(job, BASE, 1, 0, each) for each in range(number)]
    finally:
        job.stop()


def goals(rounds: list[Round], moved: list[Round]) -> list[Goal]:
    """What was to be reached."""
    found = []
    if rounds:
        step = statistics.median(each[RELAYED] / each[STRAIGHT] for each in rounds)
        found.append(goal("step of BERT-base in two stages with encryption, over that without", "<=", 1.03, step))
    if moved:
        whole = statistics.median(_median(each[RELAYED], "total") / _median(each[STRAIGHT], "total") for each in moved)
        pause = [statistics.median(_median(each[name], "standstill") for each in moved) for name in (RELAYED, STRAIGHT)]
        found.append(goal("move of BERT-base with encryption, request to first step, over that without", "<=", 1.10, whole))
        found.append(goal("a move with encryption pauses training longer by", "<=", 50.0, 1000 * (pause[0] - pause[1]), " ms"))
        again = max(move.again for each in moved for name in (STRAIGHT, RELAYED) for move in each[name])
        found.append(goal("moves: steps done again, at most", "<=", 0, again))
    return found


def table(rounds: list[Round], moved: list[Round]) -> str:
    """For people."""
    lines = [f"{'BERT-base':12}{'step':>14}{'move':>14}{'its pause':>14}"]
    for name in (STRAIGHT, RELAYED):
        step = f"{statistics.median(each[name] for each in rounds):.2f} s" if rounds else "-"
        whole = f"{statistics.median(_median(each[name], 'total') for each in moved):.1f} s" if moved else "-"
        pause = f"{1000 * statistics.median(_median(each[name], 'standstill') for each in moved):.0f} ms" if moved else "-"
        lines.append(f"{name:12}{step:>14}{whole:>14}{pause:>14}")
    return "\n".join(lines)


def details(moved: list[Round]) -> list[dict[str, list[dict[str, Any]]]]:
    """For the results."""
    return [{name: [asdict(move) for move in those] for name, those in each.items()} for each in moved]


def _median(those: list[Move], field: str) -> float:
    return statistics.median(float(getattr(move, field)) for move in those)
