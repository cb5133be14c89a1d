"""What the watches told: jobs, their pods and the nodes. Reading it costs no call."""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from lmj_api.cut import Cut
from lmj_api.names import parse_pod_name
from lmj_operator.backend.kubernetes.child_cache import ChildCache
from lmj_operator.backend.kubernetes.labels import CONTAINER, DIGEST, JOB, ROLE, SPEC
from lmj_operator.backend.kubernetes.pod_state import NodeState, node_state
from lmj_operator.backend.kubernetes.trust import shows_token, trusted_by

Object = Mapping[str, Any]
Key = tuple[str, str]
"""Namespace and name of a job."""


def job_key(pod: Object) -> Key | None:
    """The job that a pod is of. Its name says so for good; a label can be changed by anybody. None: it is no job's."""
    try:
        return pod["metadata"]["namespace"], parse_pod_name(pod["metadata"]["name"])[0]
    except ValueError:
        return None


def slim(pod: Object) -> Object:
    """What is read of a pod; all of it is ten times as large, and there are thousands."""
    metadata, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    claims = [v for v in spec.get("volumes") or [] if v.get("persistentVolumeClaim")]
    # All pods tolerate a failed node for some time: what is tolerated for ever matters.
    tolerated = [_only(t, _TOLERATION) for t in spec.get("tolerations") or [] if t.get("tolerationSeconds") is None]
    owners = [_only(owner, ("uid", "controller")) for owner in metadata.get("ownerReferences") or []]
    images = [_only(c, ("name", "image")) for c in spec.get("containers") or [] if c.get("name") == CONTAINER]
    containers = [_container(c) for c in status.get("containerStatuses") or [] if c.get("name") == CONTAINER]
    return {
        "metadata": _only(
            metadata, ("name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds")
        )
        | {"ownerReferences": owners}
        | {
            "labels": _only(metadata.get("labels") or {}, (JOB, ROLE)),
            "annotations": _only(metadata.get("annotations") or {}, (DIGEST,)),
        },
        "spec": _only(spec, ("nodeName", "nodeSelector"))
        | ({"containers": images} if images else {})
        | ({"volumes": claims} if claims else {})
        | ({"tolerations": tolerated} if tolerated else {}),
        "status": _only(status, ("phase", "reason", "message", "podIP"))
        | {"containerStatuses": containers}
        | {"conditions": [_only(c, _CONDITION) for c in status.get("conditions") or [] if c.get("type") in _CONDITIONS]},
        # Of the job that it carries, which is long.
        "cut": cut_of((metadata.get("annotations") or {}).get(SPEC)),
        "trust": trusted_by(spec),
        "token": shows_token(spec),
    }


def cut_of(job: str | None) -> Cut | None:
    """How the layers are cut in the ``job`` that a pod carries; None: somebody has changed it."""
    # What is remembered of jobs is not to be as large as what they carry.
    return _cut(job) if job is None or len(job) > _LONG else _remembered(job)


def _cut(job: str | None) -> Cut | None:
    try:
        pipeline = json.loads(job or "")["spec"]["pipeline"]
        return Cut(stages=pipeline["stages"], layers=pipeline.get("layers"))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


_remembered = lru_cache(maxsize=256)(_cut)
_LONG = 16 << 10
"""Characters of a job whose cut is read again and again."""
_TOLERATION = ("key", "operator", "value", "effect")
_CONDITIONS = ("PodScheduled", "DisruptionTarget")
_CONDITION = ("type", "status", "reason", "message", "lastTransitionTime")
_RUNS = {"running": {"since": "then"}}


def _container(status: Object) -> Object:
    """Since when it runs nobody asks, so all that run say the same."""
    state = status.get("state") or {}
    return {"name": CONTAINER, "image": sys.intern(str(status.get("image"))), "state": _RUNS if "running" in state else state}


def _only(thing: Object, names: tuple[str, ...]) -> dict[str, Any]:
    """Some parts of ``thing``; words and times that many have are there once."""
    found = {name: thing[name] for name in names if name in thing}
    return {name: sys.intern(part) if type(part) is str and len(part) < 64 else part for name, part in found.items()}


class Cache:
    """Filled by the watches; ``wake(job)`` is called when something changes that a job's pass would see."""

    def __init__(self, wake: Callable[[Key], None] = lambda key: None) -> None:
        self._wake = wake
        self.children = ChildCache(wake)
        self._pods: dict[Key, dict[str, Object]] = {}
        self._nodes: dict[str, NodeState] = {}

    def pods(self, job: Key) -> list[Object]:
        """The pods of a job, whichever object of this name made them."""
        return list(self._pods.get(job, {}).values())

    def pod(self, job: Key, name: str) -> Object | None:
        """One pod of a job."""
        return self._pods.get(job, {}).get(name)

    def node_of(self, pod: Object) -> NodeState | None:
        """The node that a pod is bound to; None: to none, or to one that was not seen yet."""
        return self._nodes.get((pod.get("spec") or {}).get("nodeName") or "")

    def node_names(self) -> frozenset[str]:
        """All nodes that there are."""
        return frozenset(name for name, node in self._nodes.items() if not node.gone)

    def known_pods(self, namespace: str | None) -> list[Object]:
        """All pods, of one namespace or (None) of all."""
        return [pod for job, pods in self._pods.items() if namespace in (None, job[0]) for pod in pods.values()]

    def known_nodes(self) -> list[Object]:
        """The names of all nodes that there are, as objects."""
        return [{"metadata": {"name": name}} for name in self.node_names()]

    def put_pod(self, pod: Object) -> None:
        """A pod is there, or changed; one of others that has our label is nothing to us."""
        key, name = job_key(pod), pod["metadata"]["name"]
        if key is None:
            return
        pod = slim(pod)
        before = self._pods.setdefault(key, {}).get(name)
        self._pods[key][name] = pod
        if before is None or _matters(before) != _matters(pod):
            self._wake(key)

    def add_pod(self, pod: Object) -> None:
        """A pod was just made, which is no news for who made it: known until the watch reports it."""
        if (key := job_key(pod)) is not None:
            self._pods.setdefault(key, {}).setdefault(pod["metadata"]["name"], slim(pod))

    def drop_pod(self, pod: Object) -> None:
        """A pod is gone; another that has its name by now stays."""
        key, name = job_key(pod), pod["metadata"]["name"]
        known = self.pod(key, name) if key is not None else None
        if key is not None and known is not None and known["metadata"]["uid"] == pod["metadata"]["uid"]:
            del self._pods[key][name]
            if not self._pods[key]:
                del self._pods[key]
            self._wake(key)

    def put_node(self, node: Object) -> None:
        """A node is there, or changed."""
        self._set_node(node["metadata"]["name"], node_state(node))

    def drop_node(self, node: Object) -> None:
        """A node is gone."""
        self._set_node(node["metadata"]["name"], NodeState(ready=False, since=0.0, gone=True))

    def _set_node(self, name: str, state: NodeState) -> None:
        before = self._nodes.get(name)
        self._nodes[name] = state
        if before is not None and replace(before, since=0.0) != replace(state, since=0.0):
            on_it = [key for key, pods in self._pods.items() for pod in pods.values() if pod["spec"].get("nodeName") == name]
            for key in dict.fromkeys(on_it):
                self._wake(key)


def _matters(pod: Object) -> Object:
    """What may call for an action. That it has a node does not: it is told with the next thing that does."""
    status = pod.get("status") or {}
    return {
        "uid": pod["metadata"]["uid"],
        "leaving": pod["metadata"].get("deletionTimestamp"),
        "labels": pod["metadata"]["labels"],
        "phase": status.get("phase"),
        "reason": status.get("reason"),
        "ip": status.get("podIP"),
        "containers": [c.get("state") for c in status.get("containerStatuses") or []],
        "scheduled": [
            c.get("message")
            for c in status.get("conditions") or []
            if c.get("type") == "PodScheduled" and c.get("status") == "False"
        ],
    }
