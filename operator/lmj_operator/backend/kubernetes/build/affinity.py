"""Nodes that a pod stays away from."""

from typing import Any

Object = dict[str, Any]

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def away_from(spec: Object, nodes: tuple[str, ...]) -> Object:
    """A pod's ``spec`` that no node of ``nodes`` (names) takes, besides what its template asks for.

    By the node's name and not by the label ``kubernetes.io/hostname``, which some clouds set to something else. Terms are alternatives,
    so each of them gets the requirement; a field allows one value a requirement.
    """
    if not nodes:
        return spec
    away = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in nodes]
    affinity = spec.get("affinity") or {}
    of_node = affinity.get("nodeAffinity") or {}
    terms = (of_node.get(_REQUIRED) or {}).get("nodeSelectorTerms") or [{}]
    required = {"nodeSelectorTerms": [{**term, "matchFields": [*(term.get("matchFields") or []), *away]} for term in terms]}
    return {**spec, "affinity": {**affinity, "nodeAffinity": {**of_node, _REQUIRED: required}}}
