"""Which layers each stage holds: a pure function."""

from collections.abc import Sequence
from itertools import accumulate, pairwise

# A layer costs 1. Looking up embeddings and normalising them, and the head on one position, measured on BERT-base: a few percent of a layer.
EMBEDDINGS_COST = 0.06
HEAD_COST = 0.02


def partition(layers: int, stages: int, given: Sequence[int] | None = None) -> list[range]:
    """The encoder layers of each stage, first to last; each stage has at least one.

    The first stage also has the embeddings, the last one the head. Balanced: the dearest stage is as cheap as possible, and among such
    cuts the later stages are the lighter ones (they wait longest for their first micro-batch). ``given`` fixes the number of layers of
    each stage. Raises ValueError when there are more stages than layers or ``given`` does not add up.
    """
    if stages > layers:
        raise ValueError(f"{stages} stages need at least {stages} layers, the model has {layers}")
    if given is not None:
        if len(given) != stages or sum(given) != layers or min(given) < 1:
            raise ValueError(f"layers {list(given)} must be {stages} positive numbers that add up to {layers}")
        counts = list(given)
    else:
        counts = _balanced(layers, stages)
    return [range(a, b) for a, b in pairwise([0, *accumulate(counts)])]


def _balanced(layers: int, stages: int) -> list[int]:
    # best[s][n]: (dearest stage, sizes) of the last s stages holding n layers; small enough to try all.
    def cost(stage: int, count: int) -> float:
        return count + EMBEDDINGS_COST * (stage == 0) + HEAD_COST * (stage == stages - 1)

    best: dict[int, tuple[float, list[int]]] = {n: (cost(stages - 1, n), [n]) for n in range(1, layers + 1)}
    for stage in range(stages - 2, -1, -1):
        after = stages - 1 - stage
        best = {
            n: min(
                ((max(cost(stage, k), best[n - k][0]), [k, *best[n - k][1]]) for k in range(1, n - after + 1)),
                key=lambda choice: (round(choice[0], 9), sum(size**2 for size in choice[1]), [-size for size in choice[1]]),
            )
            for n in range(after + 1, layers + 1)
        }
    return best[layers][1]
