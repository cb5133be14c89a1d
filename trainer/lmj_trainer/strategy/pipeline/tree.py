"""The sum over the shards of a step: one balanced binary tree, whichever ranks hold them.

A node is a run of shards, ``(first, one past the last)``; its left half is the larger one. Float addition is not associative, so what is
added to what is a function of the number of shards alone: a replica adds up the largest nodes within its shards, and the rest of the
tree is added where both halves are. Of five shards it is ``((0 + 1) + 2) + (3 + 4)``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

Node = tuple[int, int]


def halves(node: Node) -> tuple[Node, Node]:
    """The two nodes of which ``node``, of two shards or more, is the sum."""
    first, end = node
    middle = first + (end - first + 1) // 2
    return (first, middle), (middle, end)


def nodes(held: range, root: Node) -> list[Node]:
    """The largest nodes below ``root`` of which all shards are ``held``, in order."""
    first, end = root
    if held.start <= first and end <= held.stop:
        return [root] if end > first else []
    if end <= held.start or held.stop <= first:
        return []
    left, right = halves(root)
    return nodes(held, left) + nodes(held, right)


def sibling(node: Node, root: Node) -> Node | None:
    """The left half that ``node`` is added to; None: it is a left half itself, or the ``root``."""
    while node != root:
        left, right = halves(root)
        if node == right:
            return left
        if node == left:
            return None
        root = left if node[1] <= left[1] else right
    return None


def total(parts: Mapping[Node, Tensor], root: Node) -> Tensor:
    """The sum of ``root``, of which ``parts`` are nodes that cover it. A part that is the root itself is given back, not copied."""
    if root in parts:
        return parts[root]
    left, right = halves(root)
    return total(parts, left) + total(parts, right)


def total_loss(losses: Mapping[int, float], root: Node) -> float:
    """The same of one number for each shard."""
    first, end = root
    if end - first == 1:
        return losses[first]
    left, right = halves(root)
    return total_loss(losses, left) + total_loss(losses, right)
