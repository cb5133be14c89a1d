"""The user's pod template over the one that the operator makes: named things merge by name, other lists are the user's."""

from collections.abc import Mapping, Sequence
from typing import Any

from lmj_api.nearest import did_you_mean
from lmj_api.problems import SpecError, kind_of
from lmj_operator.backend.kubernetes.labels import CONTAINER

Object = dict[str, Any]

_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "volumeMounts": "mountPath",
    "ports": "containerPort",
    "topologySpreadConstraints": "topologyKey",
    "hostAliases": "ip",
}
"""Lists whose items merge, and by what."""
_APPENDED = frozenset({"envFrom", "tolerations"})


def check_template(template: Mapping[str, Any] | None) -> None:
    """Refuse what would be ignored or misread. Raises SpecError with a line for each mistake."""
    if template is None:
        return
    wrong = [
        f"spec.template.{key}: unknown field{did_you_mean(key, ('metadata', 'spec'))}; known here: metadata, spec"
        for key in template
        if key not in ("metadata", "spec")
    ]
    wrong += [
        f"spec.template.{key}: a mapping is needed, not {kind_of(template[key])}"
        for key in ("metadata", "spec")
        if not isinstance(template.get(key, {}), Mapping)
    ]
    if wrong:
        raise SpecError(*wrong)
    metadata, spec = template.get("metadata", {}), template.get("spec", {})
    wrong += [
        f"spec.template.metadata.{key}: only labels and annotations can be set"
        for key in metadata
        if key not in ("labels", "annotations")
    ]
    if spec.get("restartPolicy", "Never") != "Never":
        wrong.append("spec.template.spec.restartPolicy: must be Never: the operator replaces pods that end")
    for name, list_key in _KEYS.items():
        wrong += _unnamed(f"spec.template.spec.{name}", spec.get(name), list_key)
    containers = spec.get("containers")
    if not wrong and containers:
        names = [container["name"] for container in containers]
        if CONTAINER not in names:
            near = did_you_mean(names[0], [CONTAINER])
            wrong.append(f"spec.template.spec.containers: the trainer's container is called {CONTAINER}{near}")
        for container in containers:
            if container["name"] == CONTAINER:
                wrong += [
                    f"spec.template.spec.containers[{CONTAINER}].{key}: the operator sets it"
                    for key in ("command", "args", "workingDir")
                    if key in container
                ]
    if wrong:
        raise SpecError(*wrong)


def _unnamed(path: str, items: object, key: str) -> list[str]:
    if items is None:
        return []
    if not isinstance(items, Sequence) or isinstance(items, str):
        return [f"{path}: a list is needed, not {kind_of(items)}"]
    return [
        f"{path}[{index}]: {key} is missing"
        for index, item in enumerate(items)
        if not isinstance(item, Mapping) or key not in item
    ]


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> Object:
    """``base`` with ``over`` on top; a null in ``over`` takes a field away."""
    result = dict(base)
    for key, value in over.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping):
            below = result.get(key)
            result[key] = merge(below if isinstance(below, Mapping) else {}, value)
        elif isinstance(value, Sequence) and not isinstance(value, str):
            result[key] = _merge_list(key, result.get(key) or [], value)
        else:
            result[key] = value
    return result


def _merge_list(name: str, base: Sequence[Any], over: Sequence[Any]) -> list[Any]:
    if name in _APPENDED:
        return [*base, *over]
    key = _KEYS.get(name)
    if key is None:
        return list(over)
    merged = {item[key]: item for item in base}
    for item in over:
        old = merged.get(item[key])
        # A volume has one source and a variable one value: another one replaces it and is not added to it.
        merge_items = old is not None and name in ("containers", "initContainers", "topologySpreadConstraints")
        merged[item[key]] = merge(old or {}, item) if merge_items else merge({}, item)
    return list(merged.values())
