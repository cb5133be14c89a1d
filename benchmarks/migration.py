"""A rank moves to another pod while training goes on: what that costs, beside the ways that restart something. ``--help`` tells the options."""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from killable import Killable, Ours, StopAndCopy, Torchrun
from report import goal, quantile, report
from steps import median_step, repeated

from lmj_api.status import JobStatus
from lmj_operator.backend.local.store import RunStore

NEVER_SECONDS = 180.0
POLL_SECONDS = 0.05
BEFORE = 20
"""Steps before a move that say how long one takes."""
QUIET_SECONDS = 6.0
"""After a move its old pod ends, and the new one gets ready to start its next worker: that is not part of the step before the next move."""
AFTER = 8
"""Steps after it that belong to it."""
AT_SWITCH = 2
"""Steps before and after the switch, of which the longest counts: the operator tells the step that it saw."""
MICRO_BATCHES = 4
LIVE, STOP = "live move", "stop and copy"
RESTART, GROUP = "restart from a checkpoint", "torchrun, the whole group"


@dataclass(frozen=True)
class Size:
    """A BERT of two stages."""

    name: str
    layers: int
    hidden: int
    batch: int = 8
    vocabulary: int = 1000

    @property
    def sets(self) -> dict[str, object]:
        """Fields of a job's spec."""
        model = {
            "layers": self.layers,
            "hiddenSize": self.hidden,
            "heads": self.hidden // 64,
            "intermediateSize": 4 * self.hidden,
            "vocabulary": self.vocabulary,
        }
        return {
            **{f"model.scratch.{name}": value for name, value in model.items()},
            "training.batchSize": self.batch,
            "training.learningRate": 1e-4,
            "pipeline.microBatches": MICRO_BATCHES,
            "checkpoint.everySteps": 200,
            # Batches of one length: else a step's time says more of its texts than of what is measured.
            "dataset.maxLength": 12,
            "recovery.backoffSeconds": 0.1,
        }

    @property
    def megabytes(self) -> float:
        """Weights and moments of a stage: what a move sends, before the gradients."""
        return 3 * 4 * (12 * self.hidden**2 * self.layers / 2 + self.vocabulary * self.hidden / 2) / 1e6


TINY, ONE, FOUR = Size("tiny", 4, 128), Size("1x", 4, 256), Size("4x", 4, 512)
BASE = Size("BERT-base", 12, 768, batch=4)


@dataclass(frozen=True)
class Move:
    """What one move cost."""

    way: str
    size: str
    rank: int
    pause: float
    """Seconds: the longest gap between two steps at the switch, less the median step before it."""
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
    """What ``pause`` says of as many steps before it, when nothing happened: so much of it is the machine's."""
    around: list[float] | None = None
    """Seconds of the steps at the switch, the first new one in the middle; None: it is not known where that was."""

    def __str__(self) -> str:
        step, unrest, longest = (round(value * 1000) for value in (self.step, self.unrest, self.longest))
        pause = f"paused {self.pause * 1000:.0f} ms (a step: {step} ms, unrest {unrest}; longest {longest})"
        whole = f"{self.total:.1f} s in all at {self.rate:.0%} of the speed, {self.again} steps done again"
        return f"rank {self.rank}: {pause}, {whole}; {self.around}"


def first_times(seen: Iterable[tuple[int, float]]) -> list[tuple[float, int]]:
    """When each step was first done, in that order."""
    first: dict[int, float] = {}
    for step, at in sorted(seen, key=lambda entry: entry[1]):
        first.setdefault(step, at)
    return sorted((at, step) for step, at in first.items())


def judge(
    seen: Iterable[tuple[int, float]], begun: float, switch: int | None
) -> tuple[float, float, float, float, float, int] | None:
    """``pause``, ``longest``, ``total``, ``rate``, ``step`` and ``again`` of what was asked for at ``begun``; None: it is not over yet.

    ``switch``: the step after which the group changed; None: that is where the longest gap is.
    """
    seen = list(seen)
    times = first_times(seen)
    before = [(at, step) for at, step in times if at <= begun][-BEFORE:]
    after = [before[-1], *((at, step) for at, step in times if at > begun)]
    usual = median_step([(step, at) for at, step in before])
    gaps = [(b - a, step, b) for (a, _), (b, step) in pairwise(after)]
    if not gaps:
        return None
    if switch is None:
        # A slow step is no change of the group, and what came just before the request's effect is none either.
        switch = max(gaps)[1] - 1
    there = [gap for gap in gaps if switch + 1 - AT_SWITCH <= gap[1] <= switch + 1 + AT_SWITCH]
    whole = [gap for gap in gaps if gap[1] <= switch + AFTER]
    if not there or after[-1][1] < switch + AFTER:
        return None
    end = next(at for _, step, at in gaps if step > switch)
    during = sum(at <= end for _, _, at in gaps) / (end - begun)
    again = repeated(entry for entry in seen if entry[1] > before[0][0])
    return max(there)[0] - usual, max(whole)[0] - usual, end - begun, during * usual, usual, again


def unrest(seen: Iterable[tuple[int, float]], begun: float) -> float:
    """The longest gap in a row of as many as count at a switch, less the median step: the median of all rows before ``begun``."""
    times = [at for at, _ in first_times(seen) if at <= begun][-BEFORE:]
    gaps = [b - a for a, b in pairwise(times)]
    row = 2 * AT_SWITCH + 1
    longest = [max(gaps[first : first + row]) for first in range(len(gaps) - row + 1)]
    return statistics.median(longest) - statistics.median(gaps)


def wait(job: Killable, what: str, holds: Callable[[], bool]) -> None:
    """Until ``holds``, looking at the job meanwhile. Raises RuntimeError when it takes too long."""
    deadline = time.monotonic() + NEVER_SECONDS
    while not holds():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{job.name}: {what}: not within {NEVER_SECONDS:g} s")
        time.sleep(POLL_SECONDS)
        job.look()


def settle(job: Killable) -> None:
    """Wait until nothing is left of what came before, and for as many steps as tell what one takes."""
    quiet = time.monotonic() + QUIET_SECONDS
    wait(job, "a quiet machine", lambda: time.monotonic() > quiet)
    target = job.look() + BEFORE + 5
    wait(job, f"step {target}", lambda: job.look() >= target)


def measured(job: Killable, way: str, size: Size, rank: int, begun: float, switch: int | None) -> Move:
    """Wait for the end of what was asked for at ``begun``."""
    wait(job, f"{AFTER} steps after the {way}", lambda: judge(job.seen, begun, switch) is not None)
    found = judge(job.seen, begun, switch)
    assert found is not None
    pause, longest, total, rate, usual, again = found
    around = None
    if switch is not None:
        firsts = {step: at for at, step in first_times(job.seen)}
        around = [round(firsts[step] - firsts[step - 1], 4) for step in range(switch + 1 - AT_SWITCH, switch + 2 + AT_SWITCH)]
    return Move(way, size.name, rank, pause, longest, total, rate, again, usual, unrest(job.seen, begun), around)


def live(job: Ours, size: Size, rank: int, number: int, way: str = LIVE) -> Move:
    """Move the rank, and see what it costs. Stopped for the copy, it pauses at the longest gap of all, not at the switch."""
    store = RunStore(job.folder / ".lmj")
    settle(job)
    before = _status(store).migrations
    begun = time.time()
    store.write_request(f"{rank} {number}")
    wait(job, f"the move of rank {rank}", lambda: _status(store).migrations > before)
    incident = next(i for i in reversed(_status(store).incidents) if i.kind == "Moved")
    move = measured(job, way, size, rank, begun, incident.step)
    return move if way == LIVE else replace(move, pause=move.longest)


def restart(job: Ours, size: Size, rank: int) -> Move:
    """End the rank's pod as a cluster does: it has time for a last checkpoint. Another takes its place, from that."""
    store = RunStore(job.folder / ".lmj")
    settle(job)
    pods = [entry.pod for entry in _status(store).ranks]
    pod = pods[rank]
    assert pod is not None
    begun = time.time()
    os.kill(job.agent(pod), signal.SIGTERM)
    highest = job.look()
    wait(job, f"another pod of rank {rank}", lambda: [entry.pod for entry in _status(store).ranks] != pods)
    wait(job, "new steps", lambda: job.look() > highest + BEFORE)
    return measured(job, RESTART, size, rank, begun, None)


def group(job: Torchrun, size: Size, rank: int) -> Move:
    """End a worker just after a checkpoint, so that nothing has to be done again: all workers are started anew."""
    settle(job)
    checkpoint, workers = job.folder / "checkpoint.pt", job.workers()
    newest = checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0
    wait(job, "a checkpoint", lambda: checkpoint.exists() and checkpoint.stat().st_mtime_ns > newest)
    highest, begun = job.look(), time.time()
    os.kill(workers[rank], signal.SIGTERM)
    wait(job, "new workers", lambda: len(job.workers()) == 2 and not set(job.workers().values()) & set(workers.values()))
    wait(job, "new steps", lambda: job.look() > highest + BEFORE)
    return measured(job, GROUP, size, rank, begun, None)


def row(moves: list[Move], megabytes: float) -> str:
    """A line of the table."""
    pauses, longest = [m.pause * 1000 for m in moves], [m.longest * 1000 for m in moves]
    cells = [
        str(len(moves)),
        f"{megabytes:.0f}",
        f"{statistics.median(m.step for m in moves) * 1000:.0f}",
        f"{statistics.median(pauses):.0f}",
        f"{quantile(pauses, 0.99):.0f}",
        f"{statistics.median(m.unrest for m in moves) * 1000:.0f}",
        f"{statistics.median(longest):.0f}",
        f"{statistics.median(m.total for m in moves):.1f}",
        f"{statistics.median(m.rate for m in moves):.0%}",
        str(max(m.again for m in moves)),
    ]
    return f"{moves[0].way + ', ' + moves[0].size:38}" + "".join(f"{cell:>11}" for cell in cells)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--moves", type=int, default=5, help="live moves of each size, of rank 1 and 0 in turns (default %(default)s)"
    )
    parser.add_argument(
        "--restarts", type=int, default=5, help="restarts through a checkpoint, and of torchrun (default %(default)s)"
    )
    parser.add_argument("--base", action="store_true", help="a model of the size of BERT-base alone (8 GB of memory)")
    options = parser.parse_args()
    if sys.platform != "linux":
        print("needs Linux: processes are found in /proc", file=sys.stderr)
        return 3
    started = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - started:6.0f} s  {text}", file=sys.stderr, flush=True)

    sizes = (BASE,) if options.base else (TINY, ONE, FOUR)
    beside = BASE if options.base else ONE
    done: dict[tuple[str, str], list[Move]] = {}

    def note(move: Move) -> None:
        done.setdefault((move.way, move.size), []).append(move)
        say(f"{move.way}, {move.size}: {move}")

    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DISK")) as temporary:
        for size in sizes:
            ours = Ours(Path(temporary) / size.name, size.sets)
            say(f"{size.name}: {size.layers} layers of {size.hidden}, {size.megabytes:.0f} MB a stage")
            ours.start()
            try:
                for number in range(options.moves):
                    note(live(ours, size, (number + 1) % 2, number))
                for number in range(options.restarts if size == beside else 0):
                    note(restart(ours, size, (number + 1) % 2))
            finally:
                ours.stop()
            if size == beside:
                stopping = StopAndCopy(Path(temporary) / f"{size.name}-stopping", size.sets)
                stopping.start()
                try:
                    for number in range(options.restarts):
                        note(live(stopping, size, (number + 1) % 2, number, STOP))
                finally:
                    stopping.stop()
            if size == beside and not options.base:
                theirs = Torchrun(Path(temporary) / "torchrun", ours.data(), size.sets)
                theirs.start()
                try:
                    for number in range(options.restarts):
                        note(group(theirs, size, (number + 1) % 2))
                finally:
                    theirs.stop()

    names = ("times", "MB", "step, ms", "pause p50", "p99", "unrest", "longest", "total, s", "speed", "again")
    print(f"\n{'':38}" + "".join(f"{name:>11}" for name in names))
    megabytes = {size.name: size.megabytes for size in sizes}
    for (_, name), moves in done.items():
        print(row(moves, megabytes[name]))
    print(
        "pause: the longest gap between two steps at the switch, longest: during the move; both in ms, less the median step before."
    )
    print("unrest: what the pause is where nothing happens, for steps are not all of one length.")
    print("speed: steps a second during the move, of those before; the new process imports and copies on the same cores.")
    print("stop and copy: the same program, but training waits until the target has the state; its pause is the longest gap.")
    print("torchrun's worker ends just after a checkpoint, so that it has nothing to do again.")
    return report(
        _name(options), judged(done), {"moves": [asdict(m) for moves in done.values() for m in moves], "MB a stage": megabytes}
    )


def judged(done: dict[tuple[str, str], list[Move]]) -> list[Any]:
    """The goals, for what was measured."""
    pause = {key: statistics.median(m.pause for m in moves) for key, moves in done.items()}
    largest = max(
        (size for way, size in done if way == LIVE),
        key=lambda name: next(s for s in (TINY, ONE, FOUR, BASE) if s.name == name).megabytes,
    )
    moves = [m for (way, _), moves in done.items() if way == LIVE for m in moves]
    goals = [
        goal("live move: steps done again, at most", "<=", 0, max(m.again for m in moves)),
        goal(f"live move: pause at {largest}, p50", "<=", 50, pause[LIVE, largest] * 1000, " ms"),
    ]
    for way in (RESTART, GROUP):
        for size in [size for other, size in done if other == way]:
            ratio = pause[way, size] / max(pause[LIVE, size], 0.001)
            goals.append(goal(f"pause of {way} over the live move's, medians", ">=", 20, ratio))
    if (LIVE, FOUR.name) in pause:
        ratio = pause[LIVE, FOUR.name] / max(pause[LIVE, ONE.name], 0.001)
        goals.append(goal("pause with 4 times the state over that with 1, medians", "<=", 1.3, ratio))
    return goals


def _name(options: argparse.Namespace) -> str:
    whole = options.moves >= 5 and options.restarts >= 5
    return ("migration-base" if options.base else "migration") + ("" if whole else "-short")


def _status(store: RunStore) -> JobStatus:
    status = store.read_status()
    if status is None:
        raise RuntimeError(f"{store.status_file} is not there")
    return status


if __name__ == "__main__":
    raise SystemExit(main())
