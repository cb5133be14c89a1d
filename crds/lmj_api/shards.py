"""The shards of a step's batch: which replica computes which, the tree in which their gradients are added, and the memory that this takes.

The tree is binary and balanced, and the same whichever ranks hold the shards. A node is a run of shards, ``(first, one past the last)``; its
left half is the larger one. Of five shards the sum is ``((0 + 1) + 2) + (3 + 4)``.
"""

Node = tuple[int, int]


def share(shards: int, replicas: int, replica: int) -> range:
    """The shards that ``replica`` of ``replicas`` computes."""
    return range(shards * replica // replicas, shards * (replica + 1) // replicas)


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


def waiting(shards: int, replicas: int, replica: int) -> int:
    """Buffers beside the gradient, each of its size, in which sums wait while ``replica`` of ``replicas`` computes its shards: the most that
    are taken at once.

    Shards add up in the gradient one after the other. When the next one begins, the largest nodes of those before it lie in buffers, so the
    last shard's own node needs none.
    """
    held = share(shards, replicas, replica)
    return _most_nodes(held.start, held.stop - 1, (0, shards))


def _most_nodes(begin: int, end: int, root: Node) -> int:
    """The most that :func:`nodes` finds of any run of shards from ``begin`` on, up to ``end`` at most."""
    begin, end = max(begin, root[0]), min(end, root[1])
    if end - begin <= 1:
        return max(0, end - begin)
    if (begin, end) == root:
        end -= 1  # all of them are one node
    left, right = halves(root)
    beyond = _most_nodes(begin, end, right)
    return max(_most_nodes(begin, end, left), beyond and beyond + len(nodes(range(begin, left[1]), left)))


def under_way(shards: int, replicas: int) -> list[float]:
    """What each of ``replicas`` has in messages when they exchange their sums, in gradients: the most there can be, should nothing that is
    sent arrive before all is sent.

    To each other replica it sends its sums of the elements which that one adds up, and gets of each its sums of its own; the total of its
    elements goes to all of them, and theirs come back.
    """
    if replicas == 1:
        return [0.0]
    sums = [len(nodes(share(shards, replicas, replica), (0, shards))) for replica in range(replicas)]
    return [(mine * (replicas - 1) + sum(sums) - mine) / replicas + 1.0 for mine in sums]


def most_beside(shards: int, least: int, most: int) -> tuple[float, int]:
    """Memory of a rank for sums of shards, in gradients of its stage: the most that any has, of from ``least`` to ``most`` replicas in the
    view; and how many these are then.
    """
    worst = (0.0, least)
    for replicas in range(least, most + 1):
        # No run is more than two nodes of each size. So where many replicas share, less is needed, and a thousand need not be tried.
        if 6 * (-(-shards // replicas)).bit_length() + 1 < worst[0]:
            break
        for replica, messages in enumerate(under_way(shards, replicas)):
            worst = max(worst, (waiting(shards, replicas, replica) + messages, replicas))
    return worst
