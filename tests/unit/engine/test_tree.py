"""The sum over shards: the same for every cut of the shards into replicas."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lmj_api.shards import halves, most_beside, nodes, share, sibling, under_way, waiting
from lmj_trainer.strategy.pipeline.blocks import BLOCK
from lmj_trainer.strategy.pipeline.exchange import span_size
from lmj_trainer.strategy.pipeline.sums import ShardSums
from lmj_trainer.strategy.pipeline.tree import total, total_loss
from lmj_trainer.transport.inbox import BOUND

SHARDS = st.integers(1, 40)


def tree_of(shards: int) -> str:
    """Its additions, as text."""

    def text(node: tuple[int, int]) -> str:
        return str(node[0]) if node[1] - node[0] == 1 else "(" + " + ".join(map(text, halves(node))) + ")"

    return text((0, shards))


def test_the_tree_is_balanced_with_the_larger_half_first() -> None:
    assert tree_of(1) == "0"
    assert tree_of(4) == "((0 + 1) + (2 + 3))"
    assert tree_of(5) == "(((0 + 1) + 2) + (3 + 4))"


@given(SHARDS, st.integers(1, 40))
def test_replicas_share_all_shards(shards: int, replicas: int) -> None:
    shares = [share(shards, replicas, replica) for replica in range(replicas)]
    assert [shard for held in shares for shard in held] == list(range(shards))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@given(SHARDS, st.data())
def test_nodes_of_any_range_are_in_the_tree_and_as_large_as_can_be(shards: int, data: st.DataObject) -> None:
    begin, end = sorted((data.draw(st.integers(0, shards)), data.draw(st.integers(0, shards))))
    found = nodes(range(begin, end), (0, shards))
    assert [shard for node in found for shard in range(*node)] == list(range(begin, end))
    assert not any(sibling(right, (0, shards)) == left for left, right in pairwise(found)), "two halves would be their sum"
    depth = shards.bit_length() + 1
    assert len(found) <= 2 * depth


@given(SHARDS, st.data())
def test_a_sibling_is_the_left_half(shards: int, data: st.DataObject) -> None:
    node, way = (0, shards), []
    while node[1] - node[0] > 1 and data.draw(st.booleans()):
        left, right = halves(node)
        node = data.draw(st.sampled_from([left, right]))
        way.append((node, left if node == right else None))
    assert sibling(node, (0, shards)) == (way[-1][1] if way else None)


@given(SHARDS, st.integers(1, 40), st.integers(0, 1000))
def test_the_sum_is_the_same_for_any_number_of_replicas(shards: int, replicas: int, seed: int) -> None:
    """Every replica's sums, put together: the bits of the tree in one place, which plain summing does not have."""
    replicas = min(shards, replicas)
    values = torch.randn(shards, 7, generator=torch.Generator().manual_seed(seed))
    root = (0, shards)
    expected, result, double = torch.empty(7), torch.empty(7), torch.empty(1, dtype=torch.float64)
    total({(shard, shard + 1): values[shard] for shard in range(shards)}, root, expected)
    parts = {}
    for replica in range(replicas):
        gradient = torch.zeros(7)
        sums = ShardSums(gradient, shards)
        held = share(shards, replicas, replica)
        for _ in range(2):  # the second time in buffers that were used before
            sums.begin(held)
            gradient.zero_()
            for shard in held:
                sums.reach(shard)
                gradient += values[shard]
            # By spans, as they are exchanged.
            spans = [sums.of(slice(start, start + 3)) for start in (3, 0, 6)]
            found = {node: torch.cat([span[node] for span in (spans[1], spans[0], spans[2])]) for node in spans[0]}
            assert all(list(span) == nodes(held, root) for span in spans)
        parts |= {node: tensor.clone() for node, tensor in found.items()}
    total(parts, root, result)
    assert torch.equal(result, expected)
    # Into one of its own parts, too.
    total(parts, root, next(iter(parts.values())))
    assert torch.equal(next(iter(parts.values())), expected)
    losses = {shard: float(values[shard, 0]) for shard in range(shards)}
    total({(shard, shard + 1): values[shard, :1].double() for shard in range(shards)}, root, double)
    assert total_loss(losses, root) == double.item()


@pytest.mark.parametrize(("shards", "replicas", "buffers"), [(4, 4, 0), (4, 2, 1), (8, 1, 3), (5, 1, 2), (1, 1, 0)])
def test_buffers_beside_the_gradient(shards: int, replicas: int, buffers: int) -> None:
    assert waiting(shards, replicas, 0) == buffers


@given(SHARDS, st.data())
def test_as_many_sums_wait_as_are_counted_beforehand(shards: int, data: st.DataObject) -> None:
    replicas = data.draw(st.integers(1, shards))
    replica = data.draw(st.integers(0, replicas - 1))
    sums, held = ShardSums(torch.zeros(3), shards), share(shards, replicas, replica)
    most = 0
    for _ in range(2):  # buffers are used again
        sums.begin(held)
        for shard in held:
            sums.reach(shard)
            most = max(most, len(sums._waiting) + len(sums._free))
    assert waiting(shards, replicas, replica) == most


@given(SHARDS, st.data())
def test_a_run_is_at_most_two_nodes_of_each_size(shards: int, data: st.DataObject) -> None:
    """What is taken for granted where not all numbers of replicas are tried."""
    begin = data.draw(st.integers(0, shards - 1))
    end = data.draw(st.integers(begin + 1, shards))
    assert len(nodes(range(begin, end), (0, shards))) <= 2 * (end - begin).bit_length()


@given(st.integers(1, 24), st.data())
def test_the_most_memory_is_that_of_the_worst_number_of_replicas(shards: int, data: st.DataObject) -> None:
    least = data.draw(st.integers(1, shards))
    most = data.draw(st.integers(least, shards))
    each = {
        count: max(waiting(shards, count, replica) + under_way(shards, count)[replica] for replica in range(count))
        for count in range(least, most + 1)
    }
    found, replicas = most_beside(shards, least, most)
    assert (found, each[replicas]) == (max(each.values()), max(each.values()))


@given(st.integers(1, 1 << 36), st.integers(1, 256))
def test_spans_are_enough_for_all_replicas_and_few_enough_to_wait(elements: int, replicas: int) -> None:
    size = span_size(elements, replicas)
    spans = -(-elements // size)
    assert size % BLOCK == 0
    assert size <= max(1 << 20, elements // (512 * replicas) + BLOCK)
    assert spans >= min(4 * replicas // 2, elements // BLOCK)
    # A sender has room in an inbox for those of a part and for the answers to it.
    assert -(-spans // replicas) <= BOUND / 8
