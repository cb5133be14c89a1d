"""The job's status in the API server: compare-and-swap, and progress alone not too often."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from pydantic import ValidationError

from lmj_api.names import API_VERSION, KIND
from lmj_api.status import JobStatus, Phase
from lmj_operator.backend.kubernetes.api import CALL_SECONDS, Api, ApiError
from lmj_operator.backend.kubernetes.packed import packed, unpacked
from lmj_operator.backend.kubernetes.resources import JOBS
from lmj_operator.plan.report.report import without_ages

LONGEST_WRITE_SECONDS = 60.0
"""No server works longer at a call."""
LONG = 4 << 10
"""Characters of one that is kept packed: that of most jobs is shorter, and is read in every pass."""
START_SECONDS = 60.0
"""What is new of a job that does not train, and must not be stored at once, is written so often: its pods come one by one."""


class StatusConflict(Exception):  # noqa: N818 - it names what happened
    """Somebody else changed the job since it was last read; it was read again, and this pass must be made again."""


class JobGone(Exception):  # noqa: N818 - it names what happened
    """The job is not there any more."""


class StatusUnreadable(ValueError):  # noqa: N818 - it names what happened
    """A status is none that this operator can read; the text says what of it, in a line."""


def read_status(body: Mapping[str, Any]) -> JobStatus:
    """The status in a job's object. Raises :class:`StatusUnreadable`."""
    try:
        return JobStatus.model_validate(body.get("status") or {})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        text = f"status.{where} cannot be read ({first['msg']}): was it written by a newer operator?"
        raise StatusUnreadable(text) from error


_CAN_WAIT = {"message", "progress", "evaluations", "checkpoint", "ranks", "followers", "stragglers", "conditions"}
_STORED_AT_ONCE = sorted(JobStatus.model_fields.keys() - _CAN_WAIT)


def must_be_stored(status: JobStatus) -> tuple[Any, ...]:
    """What of ``status`` the next pass of another operator would miss, or people wait for: the rest is observed again."""
    # A rank's pod and its first worker are durable in the view that they join; before that nobody knows them.
    ranks = [(r.rank, max(r.incarnation, 1), r.restarts, r.exit_code, r.exit_message) for r in status.ranks]
    followers = [f.model_copy(update={"copied": None}) for f in status.followers]
    conditions = [(c.type, c.status, c.reason) for c in status.conditions]
    return (*(getattr(status, name) for name in _STORED_AT_ONCE), ranks, followers, conditions)


class Replicas(NamedTuple):
    """How many replicas a job has."""

    present: int
    """In the newest view."""
    wanted: int
    joining: int
    """On their way into the view."""


@dataclass(frozen=True, slots=True)
class _Text:
    """A status, a tenth of its size: thousands of jobs are at rest for long."""

    phase: Phase
    json: str
    """Packed where it is long."""
    news: int
    """Hash of all that is news: the same, and nothing is to be stored."""
    replicas: Replicas

    @classmethod
    def of(cls, status: JobStatus) -> "_Text":
        news = hash(without_ages(status).model_dump_json(exclude_defaults=True))
        replicas = Replicas(status.replicas, status.wanted_replicas, len(status.joins))
        return cls(status.phase, packed(status.model_dump_json(exclude_defaults=True), LONG), news, replicas)

    @property
    def status(self) -> JobStatus:
        return JobStatus.model_validate_json(unpacked(self.json), extra="ignore")


class StatusStore:
    """The status of the job in ``body``. One process writes it; another that does so too is noticed."""

    def __init__(self, api: Api, body: Mapping[str, Any], seconds: float, clock: Callable[[], float]) -> None:
        self._api = api
        self._clock = clock
        self._seconds = seconds
        self._patience = CALL_SECONDS
        """Seconds that a write may take. An object of thousands of levels costs a busy server more of them."""
        self.writes = 0
        """Writes that went through."""
        self._adopt(body)

    def _adopt(self, body: Mapping[str, Any]) -> None:
        metadata = body["metadata"]
        self._name, self._namespace, self._uid = metadata["name"], metadata["namespace"], metadata["uid"]
        self._version: str = metadata["resourceVersion"]
        self._stored = self._newest = _Text.of(read_status(body))
        self._written = 0.0

    @property
    def status(self) -> JobStatus:
        """The newest status; the stored one may be a little older."""
        return self._newest.status

    @property
    def phase(self) -> Phase:
        """The newest status' phase."""
        return self._newest.phase

    @property
    def replicas(self) -> Replicas:
        """The newest status' replicas."""
        return self._newest.replicas

    def seen(self, body: Mapping[str, Any]) -> None:
        """The watch told of a change: a newer version with our own status in it is the one to swap next."""
        version = body["metadata"]["resourceVersion"]
        newer = version.isdigit() and self._version.isdigit() and int(version) > int(self._version)
        if newer and (body.get("status") or {}) == self._body():
            self._version = version

    async def flush(self) -> None:
        """Store what was put off, if it is due by now. Raises as :meth:`write`."""
        # All that could not wait was stored when it came.
        if self._newest != self._stored and self._late(self._newest.phase):
            await self.write(self._newest.status)

    def write(self, status: JobStatus) -> Awaitable[None]:
        """Take ``status``, and store it unless it can wait; to be waited for at once. Raises ApiError, :class:`StatusConflict`,
        :class:`JobGone` and, where somebody else has written one, :class:`StatusUnreadable`.
        """
        # A call may take long: it has the text alone.
        text = _Text.of(status)
        return self._write(text, text.news != self._stored.news and self._due(status))

    async def _write(self, text: _Text, due: bool) -> None:
        if text.news == self._stored.news:
            self._newest = self._stored
            return
        if not due:
            self._newest = text
            return
        before, self._stored = self._stored, text
        self._newest = text
        try:
            # All of a job may be a megabyte, and it is known already.
            answer = await self._api.apply(
                JOBS, self._object(), subresource="status", force=True, metadata=True, seconds=self._patience
            )
        except ApiError as error:
            self._stored = self._newest = before
            if error.status == 404:
                raise JobGone(str(error)) from error
            if error.status == 409:
                await self._read_again()
                raise StatusConflict(str(error)) from error
            if error.unknown:
                if error.took > self._patience / 2:
                    self._patience = min(2 * self._patience, LONGEST_WRITE_SECONDS)
                # It may have been stored: what is there decides.
                await self._read_again()
            raise
        self._patience = CALL_SECONDS
        self._version = answer["metadata"]["resourceVersion"]
        self._written = self._clock()
        self.writes += 1

    async def _read_again(self) -> None:
        body = await self._api.get(JOBS, self._namespace, self._name)
        if body is None or body["metadata"]["uid"] != self._uid:
            raise JobGone(f"job {self._namespace}/{self._name} is gone")
        self._adopt(body)

    def _due(self, status: JobStatus) -> bool:
        if must_be_stored(status) != must_be_stored(self._stored.status):
            return True
        return self._late(status.phase)

    def _late(self, phase: Phase) -> bool:
        """Whether the last write was so long ago that what can wait has waited."""
        return self._clock() - self._written >= (self._seconds if phase is Phase.RUNNING else START_SECONDS)

    def _object(self) -> dict[str, Any]:
        metadata = {"name": self._name, "namespace": self._namespace, "uid": self._uid, "resourceVersion": self._version}
        return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "status": self._body()}

    def _body(self) -> dict[str, Any]:
        body: dict[str, Any] = self._stored.status.model_dump(mode="json", by_alias=True, exclude_none=True)
        return body
