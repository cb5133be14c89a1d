"""A job as a cluster has it."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from lmj.errors import ClusterError, JobError
from lmj.job import Job
from lmj.result import Result
from lmj_api.spec import LiveMigrationJob
from lmj_api.status import JobStatus, Phase
from lmj_operator.plan.report.phases import AT_REST, TERMINAL


@dataclass(frozen=True)
class ClusterJob:
    """What was asked for, and what the operator last saw."""

    job: Job
    """The job."""
    status: JobStatus
    """Its status."""
    uid: str
    """Which one of this name."""
    created: datetime | None
    """When it was made."""

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> "ClusterJob":
        """What an API server has. Raises :class:`lmj.ClusterError` when this version cannot read it."""
        name = f"{body['metadata'].get('namespace')}/{body['metadata'].get('name')}"
        try:
            metadata = LiveMigrationJob.model_validate(body, extra="ignore").metadata
            status = JobStatus.model_validate(body.get("status") or {}, extra="ignore")
            job = Job.from_object(body)
        except ValidationError as error:
            wrong = ".".join(str(part) for part in error.errors(include_url=False)[0]["loc"])
            raise ClusterError(f"{name}: it is not one of this version's ({wrong})") from error
        except JobError as error:
            raise ClusterError(f"{name}: {error}") from error
        return cls(job, status, metadata.uid or "", metadata.creation_timestamp)

    @property
    def name(self) -> str:
        """Its name."""
        return self.job.name

    @property
    def namespace(self) -> str:
        """Its namespace."""
        return self.job.namespace or "default"

    @property
    def phase(self) -> Phase:
        """The one-word summary."""
        return self.status.phase

    @property
    def ended(self) -> bool:
        """It has succeeded or failed."""
        return self.phase in TERMINAL

    @property
    def at_rest(self) -> bool:
        """It has ended, or is suspended."""
        return self.phase in AT_REST

    @property
    def result(self) -> Result:
        """What it came to, or where it is by now."""
        return Result(self.status)
