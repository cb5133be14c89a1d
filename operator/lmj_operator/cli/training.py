"""A job that trains, for commands that ask it for something: on this machine, or on a cluster."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from pydantic import ValidationError

from lmj_api.status import JobStatus
from lmj_operator.backend.local.lock import lock_holder
from lmj_operator.backend.local.store import RunStore, Scale, StoreError
from lmj_operator.cli.errors import FAILED, CommandError
from lmj_operator.cli.scaling import check_replicas, refused
from lmj_operator.plan.report.phases import TERMINAL

if TYPE_CHECKING:
    from lmj_operator.client.jobs import Jobs

T = TypeVar("T")


class Training(Protocol):
    """The job."""

    poll_seconds: float
    """How often it may be looked at."""

    def status(self) -> JobStatus:
        """Its status now. Raises CommandError when there is none, or it cannot be read."""

    def runs(self) -> bool:
        """Whether somebody acts on what it is asked, as far as is known."""

    def ask(self, request: str) -> None:
        """Ask it to move ranks: see :data:`lmj_api.names.MIGRATE`. Raises CommandError."""

    def scale(self, replicas: int | None, stages: int | None) -> None:
        """Ask for so many replicas, stages, or both. Raises CommandError, also when the job cannot have them."""


class LocalTraining:
    """Of the run in ``folder`` (``OUTPUT/.lmj``)."""

    poll_seconds = 0.1

    def __init__(self, folder: Path) -> None:
        self._store = RunStore(folder)
        self._seen: JobStatus | None = None

    def status(self) -> JobStatus:
        """As the protocol says."""
        try:
            self._seen = self._store.read_status() or self._seen
        except StoreError as error:
            raise CommandError(str(error)) from error
        if self._seen is None:
            raise self._none()
        return self._seen

    def runs(self) -> bool:
        """As the protocol says."""
        return lock_holder(self._store.lock_file) is not None

    def ask(self, request: str) -> None:
        """As the protocol says."""
        if not self.runs():
            raise self._none()
        self._store.write_request(request)

    def scale(self, replicas: int | None, stages: int | None) -> None:
        """As the protocol says."""
        job = self._store.read_job()
        if not self.runs() or job is None:
            raise self._none()
        try:
            job.spec.scaled(replicas, stages)
        except ValidationError as error:
            raise refused(error) from error
        self._store.write_scale(Scale(replicas=replicas, stages=stages))

    def _none(self) -> CommandError:
        return CommandError(f"{self._store.folder.parent}: no job runs here: start it with lmj run", code=FAILED)


class ClusterTraining:
    """Of the job ``name`` on the cluster that kubectl speaks to."""

    poll_seconds = 1.0

    def __init__(self, name: str, namespace: str) -> None:
        self._name, self._namespace = name, namespace

    def status(self) -> JobStatus:
        """As the protocol says."""
        found = self._call(lambda jobs: jobs.get(self._namespace, self._name))
        try:
            return JobStatus.model_validate(found.get("status") or {}, extra="ignore")
        except ValidationError as error:
            wrong = ".".join(str(part) for part in error.errors(include_url=False)[0]["loc"])
            raise CommandError(f"{self}: its status is not one of this version's ({wrong})", code=FAILED) from error

    def runs(self) -> bool:
        """As the protocol says."""
        return self.status().phase not in TERMINAL

    def ask(self, request: str) -> None:
        """As the protocol says."""
        if not self.runs():
            raise CommandError(f"{self}: the job has ended", code=FAILED)
        self._call(lambda jobs: jobs.ask(self._namespace, self._name, request))

    def scale(self, replicas: int | None, stages: int | None) -> None:
        """As the protocol says."""
        if not self.runs():
            raise CommandError(f"{self}: the job has ended", code=FAILED)
        found = self._call(lambda jobs: jobs.get(self._namespace, self._name))
        check_replicas(found.get("spec") or {}, replicas)
        self._call(lambda jobs: jobs.scale(self._namespace, self._name, replicas, stages))

    def __str__(self) -> str:
        return f"{self._namespace}/{self._name}"

    def _call(self, call: "Callable[[Jobs], Awaitable[T]]") -> T:
        """What ``call`` comes to, by a connection of its own: a command makes few, and a token may have a short life."""
        from lmj_operator.backend.kubernetes.api import ApiError
        from lmj_operator.backend.kubernetes.connection import NoCluster
        from lmj_operator.client.jobs import NoSuchJob, connected

        async def connect() -> T:
            async with connected() as (jobs, _):
                return await call(jobs)

        try:
            return asyncio.run(connect())
        except (ApiError, NoCluster, NoSuchJob) as error:
            raise CommandError(str(error), code=FAILED) from error


def move_request(ranks: list[int], node: str | None) -> str:
    """A request to move ``ranks`` that differs from all before it."""
    to = f" to={node}" if node is not None else ""
    return f"{','.join(map(str, ranks))}{to} {time.time_ns()}"
