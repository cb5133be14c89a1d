"""Writes signals.jsonl: 48 readings of a sensor a row, and which of four shapes they have. The same each time.

python make_signals.py
"""

import json
import math
import random
from pathlib import Path

SHAPES = ("sine", "square", "saw", "noise")
ROWS, READINGS = 2000, 48


def value(shape: str, phase: float) -> float:
    """The shape at ``phase``, in periods."""
    part = phase % 1
    return {"sine": math.sin(2 * math.pi * part), "square": 1.0 if part < 0.5 else -1.0, "saw": 2 * part - 1}.get(shape, 0.0)


def row(pick: random.Random) -> dict[str, object]:
    """One signal: its shape, a period of 12 to 40 readings, any phase, any height, and noise."""
    shape = pick.choice(SHAPES)
    period, begin, height = pick.uniform(12, 40), pick.random(), pick.uniform(0.5, 1.5)
    readings = [height * value(shape, begin + i / period) + pick.gauss(0, 0.3) for i in range(READINGS)]
    return {"readings": [round(reading, 2) for reading in readings], "shape": shape}


def main(folder: Path) -> None:
    """Write the file into ``folder``."""
    pick = random.Random(0)
    lines = [json.dumps(row(pick)) for _ in range(ROWS)]
    (folder / "signals.jsonl").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(Path(__file__).parent)
