"""What asking a job to move ranks comes to: pure functions of its status, for whoever asks and waits."""

from collections.abc import Callable, Sequence

from lmj_api.status import IncidentKind, JobStatus
from lmj_operator.cli.errors import FAILED, CommandError


def ranks_to_move(status: JobStatus, asked: Sequence[int] | None) -> list[int]:
    """The ranks that are to move; without any asked for, all. Raises CommandError when the job does not have them."""
    if not status.ranks:
        raise CommandError("the job has no ranks yet: ask again when it trains")
    ranks = sorted(set(asked)) if asked else [rank.rank for rank in status.ranks]
    wrong = [rank for rank in ranks if not 0 <= rank < len(status.ranks)]
    if wrong:
        raise CommandError(f"the job has no rank {wrong[0]}: its ranks are 0 to {len(status.ranks) - 1}")
    return ranks


def has_moved(before: JobStatus, now: JobStatus, asked: str, ranks: Sequence[int], runs: Callable[[], bool]) -> bool:
    """Whether all of ``ranks``, which ``asked`` was to move when the status was ``before``, have moved, and trained on. Raises CommandError when
    one will not.

    ``runs``: whether somebody acts on what the job is asked.
    """
    fresh = [i for i in now.incidents if i not in before.incidents and i.kind is IncidentKind.MOVED]
    if now.migrations >= before.migrations + len(ranks) and all(i.seconds is not None for i in fresh):
        return True
    if now.move_request == asked and now.move_refused is not None:
        raise CommandError(now.move_refused, code=FAILED)
    # One that goes on through a checkpoint moves yet.
    failed = next((m for m in now.moves if m.rank in ranks and m.given_up is not None and m.strategy == "Live"), None)
    if failed is not None and now.move_request == asked:
        raise CommandError(f"rank {failed.rank}: {failed.given_up}", code=FAILED)
    if not runs():
        raise CommandError("the run ended before all ranks had moved", code=FAILED)
    return False
