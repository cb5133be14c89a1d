"""Times in the stored status, which an operator on another machine may have written, by a clock that was ahead of this one's."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from lmj_api.base import Message
from lmj_api.status import RecutStatus
from lmj_operator.plan.failures.budget import backoff
from lmj_operator.plan.failures.stragglers import rest_seconds
from lmj_operator.plan.observe.observed import Observed

Bound = Callable[[Any], Any]


def with_bounded_times(observed: Observed, now: float) -> Observed:
    """``observed``, where nothing began after ``now``, and nothing waits for longer than its back-off from now on."""
    status, recovery = observed.status, observed.spec.recovery

    def past(time: float | None) -> float | None:
        return None if time is None else min(time, now)

    def due(failures: int) -> Bound:
        return lambda time: None if time is None else min(time, now + backoff(recovery, failures))

    def unknown(time: float | None) -> float | None:
        # A pod that waits was made since then, for all that can be known.
        return time if time is None or time <= now else 0.0

    def times(row: list[float]) -> list[float]:
        return [min(time, now) for time in row]

    def rest(moves: int) -> Bound:
        return lambda time: min(time, now + rest_seconds(moves))

    slow = [_bounded(s, since=past, not_before=rest(s.moves)) for s in status.stragglers]
    changes = {
        **_bounded(status, phase_since=past, left_since=past, look_since=past, started=past),
        **_bounded(status, not_before=due(max(status.restarts_without_progress, status.disruptions_without_progress))),
        **_all("followers", status.followers, [_bounded(f, since=past, not_before=due(f.failures)) for f in status.followers]),
        **_recut(status.recut, past, due),
        **_all("moves", status.moves, [_bounded(m, since=past) for m in status.moves]),
        **_all("stragglers", status.stragglers, slow),
        **_all("nodes", status.nodes, [_bounded(n, avoided_since=unknown, times=times) for n in status.nodes]),
        **_all("standbys", status.standbys, [_bounded(s, not_before=due(s.failures)) for s in status.standbys]),
    }
    return replace(observed, status=status.model_copy(update=changes)) if changes else observed


def _recut(recut: RecutStatus | None, past: Bound, due: Callable[[int], Bound]) -> dict[str, Any]:
    if recut is None:
        return {}
    changes = [_bounded(f, since=past, not_before=due(f.failures)) for f in recut.followers]
    after = {**_bounded(recut, since=past), **_all("followers", recut.followers, changes)}
    return {"recut": recut.model_copy(update=after)} if after else {}


def _bounded(thing: Message, **bounds: Bound) -> dict[str, Any]:
    """The fields of ``thing`` that are others when they are bounded."""
    bounded = {name: bound(getattr(thing, name)) for name, bound in bounds.items()}
    return {name: value for name, value in bounded.items() if value != getattr(thing, name)}


def _all(name: str, things: Sequence[Message], changes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The field ``name``, which is the list ``things``, with ``changes`` of each; nothing when there are none."""
    if not any(changes):
        return {}
    return {name: [thing.model_copy(update=change) for thing, change in zip(things, changes, strict=True)]}
