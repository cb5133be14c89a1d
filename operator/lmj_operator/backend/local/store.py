"""A run's bookkeeping on disk: the job, its status and the key whose signature its agents obey."""

import contextlib
import os
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated
from uuid import uuid4

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lmj_api.spec.job import LiveMigrationJob, Metadata
from lmj_api.status import JobStatus


class StoreError(Exception):
    """A file of the bookkeeping cannot be used; the text says which and what to do."""


class _Stored(BaseModel):
    """Of a stored job, what a command of another version can read too."""

    model_config = ConfigDict(extra="ignore")
    metadata: Metadata


class Scale(BaseModel):
    """How many of each are asked for; None: as many as the job's file says."""

    model_config = ConfigDict(extra="ignore", frozen=True)
    replicas: Annotated[int, Field(ge=1)] | None = None
    stages: Annotated[int, Field(ge=1)] | None = None


class RunStore:
    """The files in a run's folder (``OUTPUT/.lmj``)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.job_file = folder / "job.json"
        self.status_file = folder / "status.json"
        self.key_file = folder / "key"
        self.lock_file = folder / "lock"
        self.pods = folder / "pods"
        self.request_file = folder / "migrate"
        self.scale_file = folder / "scale"

    def read_status(self) -> JobStatus | None:
        """The stored status; None: nothing ran here yet. Raises :class:`StoreError` when it cannot be read."""
        try:
            return JobStatus.model_validate_json(self.status_file.read_bytes())
        except FileNotFoundError:
            return None
        except PermissionError as error:
            raise StoreError(f"{self.status_file}: {error.strerror}; a run is its owner's alone") from error
        except (OSError, ValidationError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not a job's status"
            raise StoreError(f"{self.status_file}: {reason}; remove it to start from the checkpoints alone") from error

    def write_status(self, status: JobStatus) -> None:
        """Store ``status``: readers see the old one or the new one, also after a power cut."""
        write_atomically(self.status_file, status.model_dump_json(by_alias=True, indent=1).encode())
        # A file's time is that of the newest tick of a clock that people set: one that comes later may have the same time, or an earlier one.
        with contextlib.suppress(OSError):
            _set_time(self.status_file, at_least=self.lock_file.stat().st_mtime_ns)

    def refuse(self) -> None:
        """Leave word that a newer status could not be written: the time of the lock's file needs no room."""
        with contextlib.suppress(OSError):
            os.utime(self.lock_file)
            _set_time(self.lock_file, at_least=self.status_file.stat().st_mtime_ns + 1)

    @property
    def stale_since(self) -> float | None:
        """When the status was stored that a newer one could not replace, seconds since the epoch; None: it is the newest, as far as is known."""
        try:
            stored, refused = self.status_file.stat().st_mtime_ns, self.lock_file.stat().st_mtime_ns
        except OSError:
            return None
        return stored / 1e9 if stored < refused else None

    def read_request(self) -> str | None:
        """The newest request to move ranks; None: there was none."""
        try:
            return self.request_file.read_text(errors="replace")[:200]
        except FileNotFoundError:
            return None

    def write_request(self, text: str) -> None:
        """Ask the run in this folder to move ranks."""
        write_atomically(self.request_file, text.encode())

    def read_scale(self) -> Scale:
        """What was asked for since the run began."""
        try:
            return Scale.model_validate_json(self.scale_file.read_bytes())
        except (OSError, ValidationError):
            return Scale()

    def write_scale(self, wanted: Scale | None) -> None:
        """Ask the run in this folder for ``wanted``, and for what was asked before where that says nothing; None: for what its file says."""
        if wanted is None:
            self.scale_file.unlink(missing_ok=True)
            return
        known = self.read_scale()
        both = Scale(replicas=wanted.replicas or known.replicas, stages=wanted.stages or known.stages)
        write_atomically(self.scale_file, both.model_dump_json().encode())

    def identified(self, job: LiveMigrationJob, now: datetime, *, anew: bool) -> LiveMigrationJob:
        """``job`` with the identity of the run in this folder, or (``again``: its views are counted from 1) a new one. A later run is later
        by its time too, whatever the clock says. The identity is kept by :meth:`write_job`.
        """
        stored = self._read_metadata()
        known = stored.creation_timestamp if stored is not None else None
        if stored is not None and stored.uid is not None and known is not None and not anew:
            identity = {"uid": stored.uid, "creation_timestamp": known}
        else:
            begun = now if known is None else max(now, known + timedelta(seconds=1))
            identity = {"uid": str(uuid4()), "creation_timestamp": begun}
        return job.model_copy(update={"metadata": job.metadata.model_copy(update=identity)})

    def job_name(self) -> str | None:
        """The name of the stored job; None: there is none that can be read."""
        stored = self._read_metadata()
        return stored.name if stored is not None else None

    def _read_metadata(self) -> Metadata | None:
        """Of the stored job; None: there is none, or nobody can read it, so that what runs now is another run, in views with higher numbers."""
        try:
            return _Stored.model_validate_json(self.job_file.read_bytes()).metadata
        except (OSError, ValidationError):
            return None

    def read_job(self) -> LiveMigrationJob | None:
        """The stored job; None: there is none that can be read."""
        try:
            return LiveMigrationJob.model_validate_json(self.job_file.read_bytes(), extra="ignore")
        except (OSError, ValidationError):
            return None

    def write_job(self, job: LiveMigrationJob) -> None:
        """Store the job for the agents to read."""
        write_atomically(self.job_file, job.to_json().encode())

    def write_key(self, pem: bytes) -> None:
        """Store the private key of this run, for its owner alone, who can ask an agent with it."""
        write_atomically(self.key_file, pem, mode=0o600)


def _set_time(path: Path, *, at_least: int) -> None:
    """Have ``path`` be of the time ``at_least`` (ns since the epoch) or later."""
    if path.stat().st_mtime_ns < at_least:
        os.utime(path, ns=(at_least, at_least))


def write_atomically(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Write ``data`` beside ``path``, make it durable, move it into place, and make that durable too."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(file, "wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in ``folder`` durable: without this a power cut may bring an old one back."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)
