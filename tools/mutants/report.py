"""What became of the mutants, as a table and as JSON."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from mutants.mutant import Mutant

Key = tuple[str, str, str]


@dataclass
class Result:
    """What became of a mutant."""

    killed: bool
    how: str
    tests: int
    cpu: float
    wall: float


def progress(text: str) -> None:
    """Of a long run."""
    print(text, flush=True)


def report(
    chosen: list[Mutant],
    known: dict[Key, str],
    results: dict[Key, Result],
    seconds: float,
    seed: int,
    least: float,
    file: Path | None,
) -> int:
    """The table, and the exit code."""
    killed, all_of, even = Counter[str](), Counter[str](), Counter[str]()
    survivors = []
    for mutant in chosen:
        folder = str(Path(mutant.file).parent)
        if mutant.key in known:
            even[folder] += 1
            continue
        all_of[folder] += 1
        killed[folder] += results[mutant.key].killed
        if not results[mutant.key].killed:
            survivors.append(mutant)
    print(f"\n{'':36} {'mutants':>8} {'killed':>8} {'equivalent':>11}")
    for folder in sorted(all_of | even):
        print(f"{folder:36} {all_of[folder]:8} {killed[folder]:8} {even[folder]:11}")
    judged_all, killed_all = sum(all_of.values()), sum(killed.values())
    score = 100.0 * killed_all / judged_all if judged_all else 100.0
    cpu = sum(result.cpu for result in results.values())
    print(f"{'all':36} {judged_all:8} {killed_all:8} {sum(even.values()):11}")
    print(f"score {score:.1f}% of seed {seed}, in {seconds:.0f} s ({cpu:.0f} s of processor for the mutants)")
    for mutant in survivors:
        print(f"survives: {mutant.name} ({results[mutant.key].tests} tests)")
    for mutant in chosen:
        if mutant.key in known:
            print(f"equivalent: {mutant.name}: {known[mutant.key]}")
    if file is not None:
        entries = [
            {"name": m.name, "equivalent": known.get(m.key), **vars(results.get(m.key) or Result(False, "", 0, 0, 0))}
            for m in chosen
        ]
        file.write_text(json.dumps({"seed": seed, "score": score, "mutants": entries}, indent=1) + "\n")
    return 0 if score >= least else 1
