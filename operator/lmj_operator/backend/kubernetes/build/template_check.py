"""What is refused of a user's pod template: what would be ignored or misread, and what nobody could merge."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from lmj_api.complaints import dotted
from lmj_api.nearest import did_you_mean
from lmj_api.problems import MOST, SpecError, kind_of, shown_key
from lmj_operator.backend.kubernetes.build.template import KEYS
from lmj_operator.backend.kubernetes.labels import CONTAINER

_MAPPINGS = (
    ("metadata", "labels"),
    ("metadata", "annotations"),
    ("spec", "nodeSelector"),
    ("spec", "affinity"),
    ("spec", "affinity", "nodeAffinity"),
    ("spec", "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution"),
)
"""What the operator reads as a mapping; a null takes it away."""
_OF_TEXT = _MAPPINGS[:3]
_Path = tuple[str | int, ...]
_TERMS = (*_MAPPINGS[-1], "nodeSelectorTerms")


def check_template(template: Mapping[str, Any] | None) -> None:
    """Refuse what is wrong. Raises SpecError with a line for each of the first mistakes.

    The API server takes whatever is in a template; what of it is wrong in a pod it says when the pod is made.
    """
    if template is None:
        return
    for check in (_check_parts, _check_types, _check_fields):
        wrong = list(islice(check(template), MOST))
        if wrong:
            raise SpecError(*wrong)


def _check_parts(template: Mapping[str, Any]) -> Iterator[str]:
    for key in template:
        if key not in ("metadata", "spec"):
            near = did_you_mean(key, ("metadata", "spec"))
            yield f"spec.template.{shown_key(key)}: unknown field{near}; known here: metadata, spec"
    for key in ("metadata", "spec"):
        if not isinstance(template.get(key, {}), Mapping):
            yield f"spec.template.{key}: a mapping is needed, not {kind_of(template[key])}"


def _check_types(template: Mapping[str, Any]) -> Iterator[str]:
    """Everything has the type that it is merged and read as."""
    for path in _MAPPINGS:
        value, where = _at(template, path), f"spec.template.{'.'.join(path)}"
        if value is None:
            continue
        if not isinstance(value, Mapping):
            yield f"{where}: a mapping is needed, not {kind_of(value)}"
        elif path in _OF_TEXT:
            for key, text in value.items():
                if not isinstance(text, str | None):
                    yield f"{where}.{shown_key(key)}: text is needed, not {kind_of(text)}; put it in quotes"
    terms, where = _at(template, _TERMS), f"spec.template.{'.'.join(_TERMS)}"
    if terms is not None and not _is_list(terms):
        yield f"{where}: a list is needed, not {kind_of(terms)}"
    for index, term in enumerate(terms if _is_list(terms) else ()):
        if not isinstance(term, Mapping):
            yield f"{where}[{index}]: a mapping is needed, not {kind_of(term)}"
        elif not _is_list(term.get("matchFields") or []):
            yield f"{where}[{index}].matchFields: a list is needed, not {kind_of(term['matchFields'])}"
    yield from _check_lists(("spec", "template", "spec"), template.get("spec", {}))


def _check_lists(path: _Path, value: Mapping[str, Any]) -> Iterator[str]:
    """Each list that merges by a key of its items has it in all of them, wherever it is."""
    for name, part in value.items():
        where, key = (*path, name), KEYS.get(name)
        if isinstance(part, Mapping):
            yield from _check_lists(where, part)
        if key is None or part is None:
            continue
        if not _is_list(part):
            yield f"{dotted(where)}: a list is needed, not {kind_of(part)}"
            continue
        for index, item in enumerate(part):
            yield from _check_item((*where, index), key, item)


def _check_item(path: _Path, key: str, item: object) -> Iterator[str]:
    """An item of a list that merges by ``key``."""
    if not isinstance(item, Mapping):
        yield f"{dotted(path)}: a mapping is needed, not {kind_of(item)}"
        return
    # A mount is known by its path, and names the volume that it is of.
    for needed in (key, "name") if key == "mountPath" else (key,):
        found, (kind, word) = item.get(needed), (int, "a number") if needed == "containerPort" else (str, "text")
        if found is None:
            yield f"{dotted(path)}: {needed} is missing"
        elif not isinstance(found, kind) or isinstance(found, bool):
            yield f"{dotted((*path, needed))}: {word} is needed, not {kind_of(found)}"
    yield from _check_lists(path, item)


def _check_fields(template: Mapping[str, Any]) -> Iterator[str]:
    """What the operator sets itself."""
    metadata, spec = template.get("metadata", {}), template.get("spec", {})
    for key in metadata:
        if key not in ("labels", "annotations"):
            yield f"spec.template.metadata.{shown_key(key)}: only labels and annotations can be set"
    if spec.get("restartPolicy", "Never") != "Never":
        yield "spec.template.spec.restartPolicy: must be Never: the operator replaces pods that end"
    containers = spec.get("containers", [])
    if containers is None:
        yield f"spec.template.spec.containers: the trainer's container, {CONTAINER}, cannot be taken away"
        return
    names = [container["name"] for container in containers]
    if names and CONTAINER not in names:
        near = did_you_mean(names[0], [CONTAINER])
        yield f"spec.template.spec.containers: the trainer's container is called {CONTAINER}{near}"
    for container in containers:
        if container["name"] == CONTAINER:
            for key in ("command", "args", "workingDir"):
                if key in container:
                    yield f"spec.template.spec.containers[{CONTAINER}].{key}: the operator sets it"
            yield from _check_resources(container.get("resources"))


def _check_resources(resources: object) -> Iterator[str]:
    """What the trainer's container asks for is read: a limit of memory counts for what its processes share."""
    where = f"spec.template.spec.containers[{CONTAINER}].resources"
    if resources is None:
        return
    if not isinstance(resources, Mapping):
        yield f"{where}: a mapping is needed, not {kind_of(resources)}"
    elif not isinstance(limits := resources.get("limits"), Mapping | None):
        yield f"{where}.limits: a mapping is needed, not {kind_of(limits)}"


def _at(value: Any, path: Sequence[str]) -> Any:
    """What is at ``path``; None: nothing."""
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)
