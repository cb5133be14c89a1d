"""What a checkpoint costs the training beside it, and how fast it is written and loaded: beside ``torch.distributed.checkpoint``,
``torch.save``, and a plain copy and write of the same bytes, in turns, in one process.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from statistics import median

import torch
from loading import Loaded, Shape, verified, written
from progress import Say, progress
from report import Goal, goal, report
from saving_ways import ASYNC, OURS, PLAIN, STAGED, WAYS, Saved, fill, make_state
from transformers import BertConfig

STAGES = 2
"""That write the checkpoint which is loaded."""
SHAPES = ((STAGES, 1), (1, 1), (3, 1), (STAGES, 2))
"""Stages and replicas into which it is loaded."""
OVERLAP = 1.5
"""Seconds of a step's compute, while which the copy is taken by those that can."""
BESIDE = (OURS, ASYNC, STAGED)
"""Ways that are measured beside a step too: those that return before the checkpoint is on the disk."""
TINY = {"num_hidden_layers": 3, "hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 128, "vocab_size": 500}
Round = dict[str, Saved]
Stalls = dict[str, float]


def main() -> int:
    """Exit code 0 when all goals are met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--rounds", type=int, default=11, help="turns of each way to save, and of each load (default %(default)s)"
    )
    parser.add_argument("--tiny", action="store_true", help="a tiny model: tries the benchmark, proves nothing")
    options = parser.parse_args()
    say = progress()
    torch.set_num_threads(1)
    config = BertConfig(**TINY) if options.tiny else BertConfig()
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DISK")) as temporary:
        rounds, overlapped, size = saves(config, Path(temporary), options.rounds, say)
        loads, reading = loaded(config, Path(temporary) / "loads", options.rounds, say)
    print(f"\na state of {size / 1e6:.0f} MB, one thread, {options.rounds} turns of each\n{table(rounds, overlapped, size)}")
    print(f"\n{STAGES} stages' checkpoint, loaded; its digests take one reader {reading:.2f} s\n{loads_table(loads)}")
    details = {
        "bytes": size,
        "rounds": [{name: asdict(saved) for name, saved in each.items()} for each in rounds],
        "overlapped": overlapped,
        "loads": [[asdict(load) for load in each] for each in loads],
    }
    return report("checkpoint-tiny" if options.tiny else "checkpoint", goals(rounds, overlapped, loads), details)


def saves(config: BertConfig, place: Path, count: int, say: Say) -> tuple[list[Round], list[Stalls], int]:
    """Turns of all ways, one right after the other; who begins changes with each round. The stalls where a step's compute follows, as in
    training, and the bytes of the state.
    """
    state = make_state(config, range(config.num_hidden_layers))
    fill(state)
    ways = [way(state, place / str(number)) for number, way in enumerate(WAYS)]
    for way in ways:
        way.save()  # memory is made, and libraries are loaded
    rounds, overlapped = [], []
    for number in range(count):
        order = ways[number % len(ways) :] + ways[: number % len(ways)]
        took = {way.name: way.save() for way in order}
        beside = {way.name: way.save(_compute).stall for way in order if way.name in BESIDE}
        rounds.append({way.name: took[way.name] for way in ways})
        overlapped.append({name: beside[name] for name in BESIDE})
        words = ", ".join(f"{name} {saved.stall:.3f} s" for name, saved in rounds[-1].items())
        words += "; beside a step " + ", ".join(f"{name} {1000 * stall:.1f} ms" for name, stall in overlapped[-1].items())
        say(f"saved {number + 1}/{count}: stall {words}")
    return rounds, overlapped, state.saved.nbytes


def _compute() -> None:
    """What a step does meanwhile, as to cores and memory."""
    end = time.monotonic() + OVERLAP
    one, other = torch.randn(768, 768), torch.randn(768, 768)
    while time.monotonic() < end:
        one = torch.tanh(one @ other)


def loaded(config: BertConfig, place: Path, count: int, say: Say) -> tuple[list[list[Loaded]], float]:
    """Turns of all shapes, and the seconds in which one reader verifies the files before."""
    place.mkdir()
    folder, tensors, size = written(config, STAGES, place)
    reading = verified(folder)
    shapes = [Shape(config, *shape) for shape in SHAPES]
    for shape in shapes:
        shape.load(folder, tensors, size)  # memory is made
    found = []
    for number in range(count):
        order = shapes[number % len(shapes) :] + shapes[: number % len(shapes)]
        took = {(load.stages, load.replicas): load for load in (shape.load(folder, tensors, size) for shape in order)}
        found.append([took[shape] for shape in SHAPES])
        say(f"loaded {number + 1}/{count}: {', '.join(f'{load.shape} {load.seconds:.3f} s' for load in found[-1])}")
    return found, reading


def goals(rounds: list[Round], overlapped: list[Stalls], loads: list[list[Loaded]]) -> list[Goal]:
    """What was to be reached: medians of quotients, each of one round.

    Where the state changes at once nobody can be quicker than a plain copy, so that this is what it is compared with there; with
    ``dcp.async_save`` it is compared in training, where a step's compute follows.
    """

    def quotient(of: Callable[[Saved], float], one: str, other: str) -> float:
        return median(of(each[one]) / of(each[other]) for each in rounds)

    found = [
        goal(
            "beside a step: stall of dcp.async_save, over this project's", ">=", 7, median(e[ASYNC] / e[OURS] for e in overlapped)
        ),
        goal("beside a step: stall", "<=", 10, 1000 * median(each[OURS] for each in overlapped), "ms"),
        goal(
            "stall over that of a plain copy, where the state changes at once",
            "<=",
            1.3,
            quotient(lambda s: s.stall, OURS, PLAIN),
        ),
        goal("processor time over that of a plain copy and write", "<=", 1.5, quotient(lambda s: s.processor, OURS, PLAIN)),
        goal("bytes written a second over a plain copy and write", ">=", 0.9, quotient(lambda s: s.whole, PLAIN, OURS)),
    ]
    for place in range(1, len(SHAPES)):
        first = loads[0][place]
        seconds = median(each[place].seconds / each[0].seconds for each in loads)
        found.append(goal(f"loading {STAGES} stages into {first.shape}, over {STAGES}", "<=", 1.15, seconds))
        if first.replicas == 1:
            read = median(each[place].read for each in loads)
            found.append(goal(f"bytes that {first.shape} read, over those that there are", "<=", 1.05, read))
    differ = sum(not load.equal for each in loads for load in each)
    return [*found, goal("loads with another bit anywhere", "<=", 0, differ)]


def table(rounds: list[Round], overlapped: list[Stalls], size: int) -> str:
    """What each way took, for people."""
    lines = [f"{'':24}{'stall':>12}{'min to max':>18}{'beside a step':>16}{'until on disk':>16}{'rate':>14}{'processor':>12}"]
    for name in rounds[0]:
        of = [each[name] for each in rounds]
        stalls, whole = [saved.stall for saved in of], median(saved.whole for saved in of)
        beside = f"{1000 * median(each[name] for each in overlapped):.1f} ms" if name in BESIDE else ""
        cells = [f"{median(stalls):.3f} s", f"{min(stalls):.3f} to {max(stalls):.3f}", beside, f"{whole:.2f} s"]
        cells += [f"{size / whole / 1e9:.2f} GB/s", f"{median(saved.processor for saved in of):.2f} s"]
        lines.append(
            f"{name:24}" + "".join(f"{cell:>{width}}" for cell, width in zip(cells, (12, 18, 16, 16, 14, 12), strict=True))
        )
    return "\n".join(lines)


def loads_table(loads: list[list[Loaded]]) -> str:
    """What each shape took, for people."""
    rows = [
        (each[0].shape, f"{median(load.seconds for load in each):.3f} s", f"{each[0].read:.3f} x")
        for each in zip(*loads, strict=True)
    ]
    return "\n".join(f"{shape:24}{took:>20}{read:>14}" for shape, took, read in [("", "a replica, median", "bytes read"), *rows])


if __name__ == "__main__":
    raise SystemExit(main())
