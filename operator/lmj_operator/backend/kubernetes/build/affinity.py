"""Nodes that a pod stays away from, or is bound to."""

from typing import Any

Object = dict[str, Any]

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def placed(spec: Object, avoid: tuple[str, ...], node: str | None) -> Object:
    """A pod's ``spec`` that no node of ``avoid`` (names) takes, and none but ``node`` if that is one, besides what its template asks for.

    The scheduler binds it, so room and taints of ``node`` count. By the node's name and not by the label ``kubernetes.io/hostname``, which
    some clouds set to something else. Terms are alternatives, so each of them gets the requirement; a field allows one value a requirement.
    """
    if not avoid and node is None:
        return spec
    fields = [{"key": "metadata.name", "operator": "NotIn", "values": [name]} for name in avoid]
    if node is not None:
        fields.append({"key": "metadata.name", "operator": "In", "values": [node]})
    affinity = spec.get("affinity") or {}
    of_node = affinity.get("nodeAffinity") or {}
    terms = (of_node.get(_REQUIRED) or {}).get("nodeSelectorTerms") or [{}]
    required = {"nodeSelectorTerms": [{**term, "matchFields": [*(term.get("matchFields") or []), *fields]} for term in terms]}
    return {**spec, "affinity": {**affinity, "nodeAffinity": {**of_node, _REQUIRED: required}}}
