"""A job as the API server has it, made ready to run in pods."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from lmj_api.base import Message
from lmj_api.load import load_job
from lmj_api.names import API_VERSION, KIND
from lmj_api.spec import LiveMigrationJob
from lmj_operator.backend.kubernetes import labels
from lmj_operator.backend.kubernetes.build.pod import build_pod
from lmj_operator.backend.kubernetes.job_object import refuse
from lmj_operator.backend.kubernetes.settings import Settings

_METADATA = ("name", "namespace", "uid", "generation", "creationTimestamp")


def read_job(body: Mapping[str, Any]) -> LiveMigrationJob:
    """The job in ``body`` with its paths as pods see them; it is to be checked yet. Raises SpecError for what the schema cannot refuse."""
    spec = dict(body.get("spec") or {})
    refuse(spec)
    storage = spec.get("storage") or {}
    base = labels.DATA if storage.get("data") else labels.EXAMPLES
    metadata = {key: value for key, value in body["metadata"].items() if key in _METADATA}
    document = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}
    job = load_job(document, base=Path(base), outputs=Path(labels.OUTPUT), here=False)
    return job if job.spec.strategy.stateless else _with_threads(job)


def checked_job(job: LiveMigrationJob, settings: Settings) -> LiveMigrationJob:
    """``job`` as it is kept, of which a pod can be made. Raises SpecError."""
    build_pod(job, settings, 0, 1)  # what it refuses is refused before anything is made
    sections = {name: _one_of_a_kind(value) for name, value in job.spec if isinstance(value, Message)}
    return job.model_copy(update={"spec": job.spec.model_copy(update=sections)})


def _with_threads(job: LiveMigrationJob) -> LiveMigrationJob:
    # Settled here and not by a pod: the template, and the nodes, may change while the job trains, and its bits must not.
    training = job.spec.training.model_copy(update={"threads": job.spec.training.computing_threads})
    return job.model_copy(update={"spec": job.spec.model_copy(update={"training": training})})


_sections: WeakValueDictionary[tuple[type[Message], str], Message] = WeakValueDictionary()


def _one_of_a_kind(section: Message) -> Message:
    """``section``, or an equal one of another job: thousands of jobs differ in little, and no section ever changes."""
    return _sections.setdefault((type(section), section.to_json()), section)
