"""The user's pod template over the one that the operator makes: named things merge by name, other lists are the user's."""

from collections.abc import Mapping, Sequence
from typing import Any

Object = dict[str, Any]

KEYS = {
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
    key = KEYS.get(name)
    if key is None:
        return list(over)
    merged = {item[key]: item for item in base}
    for item in over:
        old = merged.get(item[key])
        # A volume has one source and a variable one value: another one replaces it and is not added to it.
        merge_items = old is not None and name in ("containers", "initContainers", "topologySpreadConstraints")
        merged[item[key]] = merge(old or {}, item) if merge_items else merge({}, item)
    return list(merged.values())
