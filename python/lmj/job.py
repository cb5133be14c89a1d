"""A job, built in Python or read from its file."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pydantic import Field, PrivateAttr, ValidationError

from lmj.errors import JobError
from lmj.words import told, written
from lmj_api.fields import field_type
from lmj_api.load import load_job, read_document
from lmj_api.names import API_VERSION, KIND
from lmj_api.problems import SpecError
from lmj_api.spec import JobSpec, LiveMigrationJob

_METADATA = ("name", "namespace", "labels", "annotations")


class Job(JobSpec):
    """One training job: the fields of a job's file, in snake_case, and its name beside them.

    Parts are models (``lmj.Training``) or mappings. Relative paths are of the folder in which it is made, or of its file's.
    Raises :class:`lmj.JobError` with a line for each mistake.

    >>> job = Job(
    ...     name="tiny",
    ...     model={"scratch": {"layers": 2, "hidden_size": 32, "heads": 2}},
    ...     dataset={"source": "reviews.csv", "text": ["review"], "label": "sentiment"},
    ...     training={"epochs": 2, "batch_size": 8},
    ...     output={"path": "runs/tiny"},
    ... )
    >>> job.training.batch_size
    8
    >>> print(job.to_yaml())
    apiVersion: lmj.dev/v1alpha1
    kind: LiveMigrationJob
    metadata:
      name: tiny
    spec:
      model:
        scratch:
          layers: 2
          hiddenSize: 32
          heads: 2
      dataset:
        source: reviews.csv
        text:
        - review
        label: sentiment
      training:
        epochs: 2
        batchSize: 8
      output:
        path: runs/tiny
    <BLANKLINE>
    >>> Job(name="tiny", model={"source": "bert-base-uncased"}, dataset=job.dataset, output=job.output, training={"epochs": "2"})
    Traceback (most recent call last):
    lmj.errors.JobError: training.epochs: '2' is text; a whole number is needed
    """

    name: str
    """Name of the job; pods are called after it."""
    namespace: str | None = None
    """Namespace of the job on a cluster."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Labels of the job on a cluster."""
    annotations: dict[str, str] = Field(default_factory=dict)
    """Annotations of the job on a cluster."""
    _folder: Path = PrivateAttr()

    if not TYPE_CHECKING:  # a type checker knows the fields

        def __init__(self, **fields: Any) -> None:
            document = _document(fields)
            try:
                job = read_document(document)
                super().__init__(**document["metadata"], **{name: getattr(job.spec, name) for name in job.spec.model_fields_set})
            except SpecError as error:
                raise JobError(*map(told, error.lines)) from None
            except ValidationError as error:  # of what a file's metadata may have and a job does not look at
                raise JobError(*map(_line, error.errors(include_url=False))) from None
            self._folder = Path.cwd()

    @classmethod
    def from_yaml(cls, path: str | os.PathLike[str], sets: Sequence[str] = ()) -> Self:
        """The job in the file ``path``. ``sets``: fields to change, as ``--set`` says: ``["training.epochs=1"]``.

        Raises :class:`lmj.JobError` with a line for each mistake.
        """
        from lmj_operator.cli.errors import CommandError
        from lmj_operator.cli.load import written_job

        file = Path(path)
        try:
            document, job = written_job(file, sets)
        except CommandError as error:
            raise JobError(*error.lines) from None
        metadata = {key: value for key, value in document["metadata"].items() if key in _METADATA and value is not None}
        return cls(**metadata, **{name: getattr(job.spec, name) for name in job.spec.model_fields_set})._in(
            file.absolute().parent
        )

    @classmethod
    def from_object(cls, body: Mapping[str, Any]) -> Self:
        """The job that an API server has, as ``kubectl get -o json`` prints it. Fields that this version does not know are left out."""
        job = LiveMigrationJob.model_validate(body, extra="ignore")
        metadata = {key: value for key, value in body["metadata"].items() if key in _METADATA}
        return cls(**metadata, **{name: getattr(job.spec, name) for name in job.spec.model_fields_set})

    @property
    def folder(self) -> Path:
        """The folder that relative paths are of, on this machine."""
        return self._folder

    def to_object(self) -> dict[str, Any]:
        """The job as an API server takes it. Paths are as they were written."""
        metadata = {name: getattr(self, name) for name in _METADATA if getattr(self, name)}
        spec = self.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude=set(_METADATA))
        return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}

    def to_yaml(self) -> str:
        """The job as its file. Paths are as they were written: relative ones are of the folder that the file is put into."""
        import yaml

        return yaml.safe_dump(self.to_object(), sort_keys=False, allow_unicode=True)

    def to_json(self) -> str:
        """The job as its file, as one line of JSON."""
        import json

        return json.dumps(self.to_object(), ensure_ascii=False)

    def scaled(self, replicas: int | None = None, stages: int | None = None) -> Self:
        """With so many replicas and stages; None: as many as it has. Raises :class:`lmj.JobError` when it cannot have them."""
        parts = {name: getattr(self, name) for name in self.model_fields_set}
        if replicas is not None:
            parts["data_parallel"] = {**_set(self.data_parallel), "replicas": replicas}
        if stages is not None:
            parts["pipeline"] = {**_set(self.pipeline), "stages": stages}
        return type(self)(**parts)._in(self._folder)

    def here(self) -> LiveMigrationJob:
        """The job as this machine runs it, with absolute paths. Raises :class:`lmj.JobError` for those that cannot be used."""
        try:
            return load_job(self.to_object(), base=self._folder)
        except SpecError as error:
            raise JobError(*map(told, error.lines)) from None

    def _in(self, folder: Path) -> Self:
        self._folder = folder
        return self


def _document(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The file that says the same as the arguments ``fields``."""
    kind = field_type(LiveMigrationJob)
    metadata = {name: fields[name] for name in _METADATA if name in fields and fields[name] is not None}
    spec = {name: value for name, value in fields.items() if name not in _METADATA}
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": written(metadata, kind.child("metadata")),
        "spec": written(spec, kind.child("spec")),
    }


def _set(part: Any) -> dict[str, Any]:
    return {name: getattr(part, name) for name in part.model_fields_set}


def _line(item: Any) -> str:
    return f"{'.'.join(map(str, item['loc']))}: {item['msg']}"
