"""A value with parts of it replaced, taken away, doubled or put elsewhere."""

import copy
from random import Random
from typing import Any

from hostile.values import anything, scalar

Path = tuple[str | int, ...]


def paths(value: Any, path: Path = ()) -> list[Path]:
    """To every part of ``value``, itself first."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, part in items for found in paths(part, (*path, key)))]


def at(value: Any, path: Path) -> Any:
    """What is at ``path``. Raises LookupError or TypeError when there is nothing any more."""
    for step in path:
        value = value[step]
    return value


def put(value: Any, path: Path, part: Any) -> None:
    """Put ``part`` at ``path``, as far as that is still there."""
    try:
        place = at(value, path[:-1])
    except (LookupError, TypeError):
        return
    last: Any = path[-1]
    if isinstance(place, dict) or (isinstance(place, list) and isinstance(last, int) and last < len(place)):
        place[last] = part


def take(value: Any, path: Path) -> None:
    """Take away what is at ``path``, if that is still there."""
    try:
        del at(value, path[:-1])[path[-1]]
    except (LookupError, TypeError):
        return


def mutated(random: Random, value: Any, times: int = 1) -> Any:
    """A copy of ``value``, a list or an object, with so many changes."""
    value = copy.deepcopy(value)
    for _ in range(times):
        there = [path for path in paths(value) if path]
        if not there:
            return anything(random)
        path = random.choice(there)
        match random.randrange(6):
            case 0:
                take(value, path)
            case 1:
                put(value, path, copy.deepcopy(at(value, random.choice(there))))
            case 2:
                put(value, path, [copy.deepcopy(at(value, path))] * random.randint(1, 3))
            case 3:
                put(value, path, scalar(random))
            case _:
                put(value, path, anything(random))
    return value
