"""Standing facts in Kubernetes' style."""

from typing import Literal

from lmj_api.status import Condition, Phase
from lmj_operator.plan.times import rfc3339

_ACTIVE = frozenset({Phase.PENDING, Phase.RUNNING, Phase.RECOVERING})

_HOLDS: dict[str, frozenset[Phase]] = {
    "Available": frozenset({Phase.RUNNING}),
    "Progressing": _ACTIVE | {Phase.SUSPENDING},
    "Suspended": frozenset({Phase.SUSPENDED}),
    "Succeeded": frozenset({Phase.SUCCEEDED}),
    "Failed": frozenset({Phase.FAILED}),
}
"""In which phases each condition is true."""


def conditions(old: list[Condition], phase: Phase, message: str, generation: int | None, now: float) -> list[Condition]:
    """All conditions of a job in ``phase``; the time of one changes only with its status."""
    before = {c.type: c for c in old}
    made = []
    for name, phases in _HOLDS.items():
        status: Literal["True", "False"] = "True" if phase in phases else "False"
        previous = before.get(name)
        same = previous is not None and previous.status == status
        made.append(
            Condition(
                type=name,
                status=status,
                reason=phase.value,
                message=message,
                last_transition_time=previous.last_transition_time if previous is not None and same else rfc3339(now),
                observed_generation=generation,
            )
        )
    return made
