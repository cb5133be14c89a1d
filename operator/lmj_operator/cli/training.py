"""A job that trains, for commands that ask it for something: on this machine, or on a cluster."""

import json
import subprocess
import time
from pathlib import Path
from typing import Any, Protocol

from pydantic import ValidationError

from lmj_api.names import GROUP, MIGRATE, PLURAL
from lmj_api.spec import DataParallel
from lmj_api.status import JobStatus
from lmj_operator.backend.local.lock import lock_holder
from lmj_operator.backend.local.store import RunStore, Scale, StoreError
from lmj_operator.cli.errors import FAILED, CommandError
from lmj_operator.plan.report.phases import TERMINAL

KUBECTL_SECONDS = 30.0
"""Longest time of a call."""


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
            raise _refused(error) from error
        self._store.write_scale(Scale(replicas=replicas, stages=stages))

    def _none(self) -> CommandError:
        return CommandError(f"{self._store.folder.parent}: no job runs here: start it with lmj run", code=FAILED)


class ClusterTraining:
    """Of the job ``name`` on the cluster that kubectl speaks to."""

    poll_seconds = 1.0

    def __init__(self, name: str, namespace: str, kubectl: str = "kubectl") -> None:
        self._what = (f"{PLURAL}.{GROUP}", name, f"--namespace={namespace}")
        self._name = f"{namespace}/{name}"
        self._kubectl = kubectl

    def status(self) -> JobStatus:
        """As the protocol says."""
        found = self._object()
        try:
            return JobStatus.model_validate(found.get("status") or {}, extra="ignore")
        except ValidationError as error:
            wrong = ".".join(str(part) for part in error.errors(include_url=False)[0]["loc"])
            raise CommandError(f"{self._name}: its status is not one of this version's ({wrong})", code=FAILED) from error

    def runs(self) -> bool:
        """As the protocol says."""
        return self.status().phase not in TERMINAL

    def ask(self, request: str) -> None:
        """As the protocol says."""
        if not self.runs():
            raise CommandError(f"{self._name}: the job has ended", code=FAILED)
        self._call("annotate", *self._what, f"{MIGRATE}={request}", "--overwrite")

    def scale(self, replicas: int | None, stages: int | None) -> None:
        """As the protocol says."""
        if not self.runs():
            raise CommandError(f"{self._name}: the job has ended", code=FAILED)
        # The server refuses it too, in more words.
        known = (self._object().get("spec") or {}).get("dataParallel") or {}
        try:
            if replicas is not None:
                DataParallel.model_validate({**known, "replicas": replicas}, extra="ignore")
        except ValidationError as error:
            raise _refused(error) from error
        if stages is None:
            # Its subresource: who may scale need not be allowed to change the job.
            self._call("scale", *self._what, f"--replicas={replicas}")
            return
        parts: dict[str, dict[str, int]] = {"pipeline": {"stages": stages}}
        if replicas is not None:
            parts["dataParallel"] = {"replicas": replicas}
        self._call("patch", *self._what, "--type=merge", f"--patch={json.dumps({'spec': parts}, sort_keys=True)}")

    def _object(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._call("get", *self._what, "--output=json"))
        return found

    def _call(self, *arguments: str) -> str:
        try:
            done = subprocess.run(
                [self._kubectl, *arguments], capture_output=True, text=True, timeout=KUBECTL_SECONDS, check=False
            )
        except FileNotFoundError as error:
            raise CommandError("kubectl is not installed here: it is what speaks to the cluster", code=FAILED) from error
        except subprocess.TimeoutExpired as error:
            raise CommandError(f"kubectl {arguments[0]} did not end within {KUBECTL_SECONDS:g} s", code=FAILED) from error
        if done.returncode != 0:
            said = done.stderr.strip().splitlines()
            raise CommandError(f"kubectl: {said[-1] if said else f'exit code {done.returncode}'}", code=FAILED)
        return done.stdout


def _refused(error: ValidationError) -> CommandError:
    """Why a job cannot have so many replicas, in a line."""
    return CommandError(str(error.errors(include_url=False)[0]["msg"]).removeprefix("Value error, "))


def move_request(ranks: list[int], node: str | None) -> str:
    """A request to move ``ranks`` that differs from all before it."""
    to = f" to={node}" if node is not None else ""
    return f"{','.join(map(str, ranks))}{to} {time.time_ns()}"
