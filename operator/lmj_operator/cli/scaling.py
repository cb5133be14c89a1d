"""What asking a job for other numbers of replicas and stages comes to: pure functions of its status, for whoever asks and waits."""

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

from lmj_api.spec import DataParallel, Strategy
from lmj_api.status import JobStatus
from lmj_api.view import MOST_RANKS
from lmj_operator.cli.errors import FAILED, CommandError


def check_replicas(spec: Mapping[str, Any], replicas: int | None) -> None:
    """Raises CommandError when a job with ``spec``, as an API server has it, cannot have so many. (The server refuses it too, in more words.)"""
    known = spec.get("dataParallel") or {}
    try:
        if replicas is not None:
            # A script has no shards, and as many replicas as maxReplicas allows.
            shards = {"shards": MOST_RANKS} if spec.get("strategy") == Strategy.COMMAND else {}
            DataParallel.model_validate({**known, **shards, "replicas": replicas}, extra="ignore")
    except ValidationError as error:
        raise refused(error) from error


def refused(error: ValidationError) -> CommandError:
    """Why a job cannot have so many replicas, in a line."""
    return CommandError(str(error.errors(include_url=False)[0]["msg"]).removeprefix("Value error, "))


def asked_for(replicas: int | None, stages: int | None) -> str:
    """``2 replicas of 3 stages``. Raises CommandError for neither."""
    if replicas is None and stages is None:
        raise CommandError("give --replicas, --stages, or both")
    return " of ".join(f"{count} {what}" for count, what in ((replicas, "replicas"), (stages, "stages")) if count is not None)


def has_scaled(status: JobStatus, replicas: int | None, stages: int | None, runs: Callable[[], bool]) -> bool:
    """Whether so many train. Raises CommandError when that will not come.

    ``runs``: whether somebody acts on what the job is asked.
    """
    if status.replicas == (replicas or status.replicas) and status.stages == (stages or status.stages):
        return True
    if not runs():
        raise CommandError(f"the run ended before {asked_for(replicas, stages)} trained", code=FAILED)
    if stages is not None and (given_up := _given_up(status, stages)) is not None:
        raise CommandError(f"the layers stay in {status.cut}: {given_up}", code=FAILED)
    return False


def late(status: JobStatus, seconds: float) -> CommandError:
    """They do not train after ``seconds``."""
    return CommandError(
        f"{status.replicas} replicas of {status.stages} stages train after {seconds:g} s: {status.message}", code=FAILED
    )


def _given_up(status: JobStatus, stages: int) -> str | None:
    """Why the layers are not cut into so many."""
    recut = status.recut
    return recut.given_up if recut is not None and recut.cut.stages == stages else None
