"""The order of work in a stage: zero-bubble 1F1B, as data.

Each stage runs forwards (F) ahead of its first backward to fill the pipeline, then alternates, then drains. The last backwards are cut in
two: the gradient by the stage's input (B), which the stage before waits for, and the gradients by its weights (W), which nobody waits for:
they are done when the next F or B is not ready yet. The idea is that of "Zero Bubble Pipeline Parallelism" (Qi et al., 2023). The order of F
and B is fixed, only W fills in, and W is first in, first out, so the sums of gradients are the same bits at every speed.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum


class Work(StrEnum):
    """A piece of work on one micro-batch."""

    FORWARD = "F"
    BACKWARD = "B"
    WEIGHTS = "W"


@dataclass(frozen=True)
class Op:
    """One piece of work."""

    work: Work
    micro_batch: int


def window(stage: int, stages: int) -> int:
    """Forwards that ``stage`` is ahead of its backwards: a round trip to the last stage, in units of F = B = W."""
    return 2 * (stages - stage) - 1


def order(stage: int, stages: int, micro_batches: int) -> Iterator[Op]:
    """F and B of ``stage`` in order; W fills in between."""
    ahead = min(window(stage, stages), micro_batches)
    for i in range(ahead):
        yield Op(Work.FORWARD, i)
    for i in range(micro_batches):
        yield Op(Work.BACKWARD, i)
        if ahead + i < micro_batches:
            yield Op(Work.FORWARD, ahead + i)


def first_cut(stages: int, micro_batches: int) -> int:
    """The first micro-batch whose backward is cut: at the end the stages before wait for gradients, and have up to ``2 * (stages - 1)`` units
    of work left when they get the last one. Earlier on they are ahead, and a backward in two halves takes longer than a whole one.
    """
    return max(0, micro_batches - 2 * (stages - 1))


def draw(stages: int, micro_batches: int, cost: Callable[[int, Work], int]) -> list[str]:
    """One line a stage, one character a unit of time: what runs when, if work takes ``cost(stage, work)`` units and messages none.

    A stage that never cuts its backward has a cost of 0 for W. Idle is a dot.
    """
    queues = [list(order(s, stages, micro_batches)) for s in range(stages)]
    lines = [""] * stages
    done: dict[tuple[int, Op], int] = {}
    deferred: list[list[int]] = [[] for _ in range(stages)]
    cut = first_cut(stages, micro_batches)
    for time in range(10_000):
        if not any(queues) and not any(deferred) and all(len(line) <= time for line in lines):
            return [line + "." * (time - len(line)) for line in lines]
        for s in range(stages):
            if len(lines[s]) > time:
                continue

            def ready(op: Op, s: int = s, now: int = time) -> bool:
                if op.work is Work.FORWARD:
                    return s == 0 or done.get((s - 1, op), now + 1) <= now
                return s == stages - 1 or done.get((s + 1, op), now + 1) <= now

            op = None
            if queues[s] and ready(queues[s][0]):
                op = queues[s].pop(0)
            elif deferred[s]:
                op = Op(Work.WEIGHTS, deferred[s].pop(0))
            if op is None:
                lines[s] += "."
                continue
            lines[s] += op.work.value * cost(s, op.work)
            if op.work is Work.BACKWARD and cost(s, Work.WEIGHTS):
                if op.micro_batch >= cut:
                    deferred[s].append(op.micro_batch)
                else:
                    lines[s] += Work.WEIGHTS.value * cost(s, Work.WEIGHTS)
            done[s, op] = len(lines[s])
    raise RuntimeError("the schedule does not end: a dependency is circular")
