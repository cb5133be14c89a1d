"""A job's pod template, kept as text: parsed it takes four times as much memory, and it is read only when a pod is made or compared."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic_core import from_json

from lmj_api.spec import LiveMigrationJob
from lmj_operator.backend.kubernetes.packed import is_packed, packed, unpacked


class KeptTemplate(Mapping[str, Any]):
    """The template in ``spec``, packed JSON of a job's spec that has one. It is parsed for each question; :func:`template_of` parses it once."""

    __slots__ = ("_node_selector", "_spec")

    def __init__(self, spec: str) -> None:
        self._spec = spec
        self._node_selector: str | None = None
        """As packed JSON; None: nobody has asked for it."""

    def parsed(self) -> dict[str, Any]:
        """The template itself."""
        template: dict[str, Any] = from_json(unpacked(self._spec))["template"]
        return template

    @property
    def node_selector(self) -> dict[str, Any]:
        """The pod's: each pass over a job asks for it, of each pod that runs, so that it is parsed by itself."""
        if self._node_selector is None:
            self._node_selector = packed(json.dumps(_node_selector(self.parsed())))
        selector: dict[str, Any] = from_json(unpacked(self._node_selector))
        return selector

    def share(self, spec: str) -> None:
        """``spec`` is kept by others too: of two that are equal it is the one to keep."""
        if spec == self._spec:
            self._spec = spec

    def __getitem__(self, key: str) -> Any:
        return self.parsed()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.parsed())

    def __len__(self) -> int:
        return len(self.parsed())


def with_kept_template(job: LiveMigrationJob, spec: str) -> LiveMigrationJob:
    """``job`` with the template as ``spec`` has it, the JSON that ``job`` was made of, where that was long enough to be packed."""
    if not job.spec.template or not is_packed(spec):
        return job
    return job.model_copy(update={"spec": job.spec.model_copy(update={"template": KeptTemplate(spec)})})


def share_text(job: LiveMigrationJob, spec: str) -> None:
    """The template of ``job`` has the text ``spec`` that others keep, if it is the same."""
    if isinstance(template := job.spec.template, KeptTemplate):
        template.share(spec)


def with_parsed_template(job: LiveMigrationJob) -> LiveMigrationJob:
    """``job`` with its template parsed, for one who asks more than one question of it."""
    if not is_large(job):
        return job
    return job.model_copy(update={"spec": job.spec.model_copy(update={"template": template_of(job)})})


def is_large(job: LiveMigrationJob) -> bool:
    """Whether the template of ``job`` is kept as text."""
    return isinstance(job.spec.template, KeptTemplate)


def template_of(job: LiveMigrationJob) -> Mapping[str, Any]:
    """The template of ``job``, empty where it has none."""
    template: Mapping[str, Any] | None = job.spec.template
    return template.parsed() if isinstance(template, KeptTemplate) else template or {}


def node_selector_of(job: LiveMigrationJob) -> Mapping[str, Any]:
    """What the template of ``job`` says of its pods' nodes, empty where it says nothing."""
    template: Mapping[str, Any] | None = job.spec.template
    return template.node_selector if isinstance(template, KeptTemplate) else _node_selector(template or {})


def _node_selector(template: Mapping[str, Any]) -> dict[str, Any]:
    selector: dict[str, Any] = (template.get("spec") or {}).get("nodeSelector", {})
    return selector
