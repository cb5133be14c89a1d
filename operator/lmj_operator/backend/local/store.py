"""A run's bookkeeping on disk: the job, its status and the token that its agents ask for."""

import os
import secrets
from pathlib import Path

from pydantic import ValidationError

from lmj_api.spec.job import LiveMigrationJob
from lmj_api.status import JobStatus


class StoreError(Exception):
    """A file of the bookkeeping cannot be used; the text says which and what to do."""


class RunStore:
    """The files in a run's folder (``OUTPUT/.lmj``)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.job_file = folder / "job.json"
        self.status_file = folder / "status.json"
        self.token_file = folder / "token"
        self.lock_file = folder / "lock"
        self.pods = folder / "pods"
        self.request_file = folder / "migrate"

    def read_status(self) -> JobStatus | None:
        """The stored status; None: nothing ran here yet. Raises :class:`StoreError` when it cannot be read."""
        try:
            return JobStatus.model_validate_json(self.status_file.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not a job's status"
            raise StoreError(f"{self.status_file}: {reason}; remove it to start from the checkpoints alone") from error

    def write_status(self, status: JobStatus) -> None:
        """Store ``status``: readers see the old one or the new one, also after a power cut."""
        write_atomically(self.status_file, status.model_dump_json(by_alias=True, indent=1).encode())

    def read_request(self) -> str | None:
        """The newest request to move ranks; None: there was none."""
        try:
            return self.request_file.read_text(errors="replace")[:200]
        except FileNotFoundError:
            return None

    def write_request(self, text: str) -> None:
        """Ask the run in this folder to move ranks."""
        write_atomically(self.request_file, text.encode())

    def write_job(self, job: LiveMigrationJob) -> None:
        """Store the job for the agents to read."""
        write_atomically(self.job_file, job.to_json().encode())

    def new_token(self) -> str:
        """A fresh secret, readable by this user alone."""
        token = secrets.token_urlsafe(32)
        write_atomically(self.token_file, token.encode(), mode=0o600)
        return token


def write_atomically(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Write ``data`` beside ``path``, make it durable, and move it into place."""
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
