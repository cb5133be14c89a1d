"""The job's phases and the ways between them."""

from lmj_api.status import Phase

LEGAL: dict[Phase, frozenset[Phase]] = {
    Phase.PENDING: frozenset(
        {Phase.RUNNING, Phase.RECOVERING, Phase.SUSPENDING, Phase.SUSPENDED, Phase.SUCCEEDED, Phase.FAILED},
    ),
    Phase.RUNNING: frozenset({Phase.RECOVERING, Phase.SUSPENDING, Phase.SUCCEEDED, Phase.FAILED}),
    Phase.RECOVERING: frozenset({Phase.RUNNING, Phase.SUSPENDING, Phase.SUCCEEDED, Phase.FAILED}),
    # A suspension is finished before it is taken back: half-drained pods are of no use.
    Phase.SUSPENDING: frozenset({Phase.SUSPENDED, Phase.SUCCEEDED, Phase.FAILED}),
    Phase.SUSPENDED: frozenset({Phase.PENDING}),
    Phase.SUCCEEDED: frozenset(),
    Phase.FAILED: frozenset(),
}
"""Where a job may go from each phase; it may always stay."""

TERMINAL = frozenset({Phase.SUCCEEDED, Phase.FAILED})
AT_REST = TERMINAL | {Phase.SUSPENDED}
"""Nothing of a job trains, or is to, until somebody asks for it."""


class IllegalTransition(Exception):  # noqa: N818 - it names what happened
    """A phase that cannot follow the one before."""


def transition(old: Phase, new: Phase) -> Phase:
    """``new``, when it may follow ``old``. Raises :class:`IllegalTransition` when not."""
    if new is not old and new not in LEGAL[old]:
        ways = ", ".join(sorted(LEGAL[old])) or "nowhere"
        raise IllegalTransition(f"a job cannot go from {old} to {new}; from {old} it can go to {ways}")
    return new
