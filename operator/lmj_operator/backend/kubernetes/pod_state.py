"""What a pod's object says, as the plan understands it."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from lmj_api.names import parse_pod_name
from lmj_operator.backend.kubernetes.labels import CONTAINER, ROLE, STANDBY
from lmj_operator.plan import PodObserved, PodPhase, PodWait

Object = Mapping[str, Any]

_NOT_ITS_FAULT = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "CreateContainerConfigError",
        "CreateContainerError",
    }
)
_FAILED = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_PULL = ("ImagePullBackOff", "ErrImagePull")
_LONGEST = 300
"""Characters of a message; the kubelet's can be pages."""


@dataclass(frozen=True, slots=True)
class NodeState:
    """A node, as far as it matters to its pods."""

    ready: bool
    since: float
    """Since when, seconds since the epoch."""
    gone: bool = False
    """There is no such node any more."""
    leaving: str | None = None
    """Why its pods are to leave it, in one clause; None: they may stay."""
    closed: tuple[str, ...] = ()
    """Keys of the taints that keep new pods away, in order."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Its labels."""


def node_state(node: Object) -> NodeState:
    """What the node's object says."""
    found = _condition(node, "Ready")
    if found is None:
        return NodeState(False, seconds(node["metadata"].get("creationTimestamp")))
    ready = found.get("status") == "True"
    taints = (node.get("spec") or {}).get("taints") or []
    closed = sorted({str(taint.get("key")) for taint in taints if taint.get("effect") == "NoSchedule"})
    labels = dict(node["metadata"].get("labels") or {})
    since = seconds(found.get("lastTransitionTime"))
    return NodeState(ready, since, leaving=_leaving(node), closed=tuple(closed), labels=labels)


def _leaving(node: Object) -> str | None:
    """A node that is cordoned, or whose taint ends pods, is about to be taken away; the taints of one that failed say nothing new."""
    name, spec = node["metadata"]["name"], node.get("spec") or {}
    if spec.get("unschedulable"):
        return f"node {name} is cordoned"
    for taint in spec.get("taints") or []:
        if taint.get("effect") == "NoExecute" and taint.get("key") not in _FAILED:
            return f"node {name} is tainted {taint.get('key')}:NoExecute"
    return None


def misplaced(pod: Object, node: NodeState, wanted: Mapping[str, str]) -> str | None:
    """Why ``pod`` is not where its placement, which asks for the labels ``wanted``, would put it now; None: it is.

    A node whose labels change is not left for it: what the pod asked for when it was made counts.
    """
    missing = sorted(f"{key}={value}" for key, value in wanted.items() if node.labels.get(key) != value)
    made_for = (pod.get("spec") or {}).get("nodeSelector") or {}
    if node.gone or not missing or made_for == wanted:
        return None
    return f"its placement asks for {', '.join(missing)}"


def pod_observed(pod: Object, node: NodeState | None, taints: Collection[str] = ()) -> PodObserved:
    """The pod without what its agent says. ``node``: the node that it is bound to; None: to none, or to one not seen yet.

    ``taints``: keys of taints against new pods that say of a node that it is about to be taken away.
    """
    metadata, status = pod["metadata"], pod.get("status") or {}
    _, rank, serial = parse_pod_name(metadata["name"])
    bound = (pod.get("spec") or {}).get("nodeName")
    scheduled = _condition(pod, "PodScheduled")
    created = seconds(metadata.get("creationTimestamp"))
    if scheduled is not None and scheduled.get("status") == "True":
        # Its time to start counts from here: a pod that no node had room for was not slow.
        created = max(created, seconds(scheduled.get("lastTransitionTime")))
    unlisted = (metadata.get("labels") or {}).get(ROLE) == STANDBY
    seen = PodObserved(metadata["name"], rank, serial, PodPhase.PENDING, created, bound, unlisted=unlisted)
    if node is not None:
        chosen = next((key for key in node.closed if key in taints), None)
        tainted = f"node {bound} is tainted {chosen}:NoSchedule" if chosen is not None else None
        seen = replace(seen, node_leaving=node.leaving or tainted)
    container = _container(status)
    ended = (container.get("state") or {}).get("terminated")
    if status.get("phase") in ("Failed", "Succeeded") or (ended is not None and "deletionTimestamp" not in metadata):
        return _ended(seen, status, ended)
    if "deletionTimestamp" in metadata:
        return replace(seen, phase=PodPhase.TERMINATING)
    if node is not None and node.gone:
        return replace(seen, phase=PodPhase.GONE, exit_message=f"its node {bound} is gone")
    if status.get("phase") in ("Running", "Unknown") and (container.get("state") or {}).get("running"):
        # The kubelet probes the agent, and ends a pod whose agent does not answer it.
        return replace(seen, phase=PodPhase.RUNNING, vouched=node is not None and node.ready)
    return replace(seen, waits=_wait(pod, scheduled, container, created))


def pod_address(pod: Object) -> str | None:
    """The pod's address, as a URL has it; None: it has none yet."""
    ip = (pod.get("status") or {}).get("podIP")
    return f"[{ip}]" if ip and ":" in ip else ip


def terminating_since(pod: Object) -> float | None:
    """When the pod's time to leave ended or ends; None: it was not told to go."""
    stamp = pod["metadata"].get("deletionTimestamp")
    return seconds(stamp) if stamp else None


def owner_uid(thing: Object) -> str | None:
    """Uid of the object's controller."""
    return next((str(ref.get("uid")) for ref in thing["metadata"].get("ownerReferences") or [] if ref.get("controller")), None)


def seconds(stamp: str | None) -> float:
    """An RFC 3339 time as seconds since the epoch; 0 for none."""
    return datetime.fromisoformat(stamp).timestamp() if stamp else 0.0


def _ended(seen: PodObserved, status: Object, ended: Object | None) -> PodObserved:
    code = ended.get("exitCode") if ended is not None else None
    # A shell's way to say that a signal ended it; the plan says it with a minus.
    code = 128 - code if code is not None and 128 < code < 160 else code
    said = _last_line(str(ended.get("message") or "")) if ended is not None else ""
    why = str((ended or {}).get("reason") or "")
    if status.get("reason"):  # Evicted, NodeShutdown, ...: said of the pod, and nearer to the cause
        message = f"{status['reason']}: {_one_line(status.get('message'))}".rstrip(": ")
    elif why == "OOMKilled":
        message = "killed for want of memory (OOMKilled): give the trainer container more, or use less"
    else:
        message = said.removeprefix("error: ") or (why if why not in ("Error", "Completed") else "")
    return replace(seen, phase=PodPhase.GONE, exit_code=code, exit_message=message or None)


def _wait(pod: Object, scheduled: Object | None, container: Object, created: float) -> PodWait | None:
    if scheduled is not None and scheduled.get("status") == "False":
        since = seconds(scheduled.get("lastTransitionTime")) or created
        message = _one_line(scheduled.get("message"))
        if "PersistentVolumeClaims" in message:  # the scheduler does not say which
            volumes = (pod.get("spec") or {}).get("volumes") or []
            claims = [v["persistentVolumeClaim"]["claimName"] for v in volumes if v.get("persistentVolumeClaim")]
            message = f"claim {' or '.join(claims)} is not bound: {message}" if claims else message
        return PodWait(_word(scheduled.get("reason"), "Unschedulable"), message, since)
    waiting = (container.get("state") or {}).get("waiting") or {}
    reason = waiting.get("reason")
    if reason in _NOT_ITS_FAULT:
        message = _one_line(waiting.get("message"))
        if reason in _PULL:
            # The kubelet goes to and fro between the two; what keeps the image away is the same.
            reason, message = _PULL[0], message.rpartition(f"{_PULL[1]}: ")[2]
        return PodWait(reason, message or f"image {container.get('image')}", created)
    return None


def _container(status: Object) -> Object:
    return next((c for c in status.get("containerStatuses") or [] if c.get("name") == CONTAINER), {})


def _condition(thing: Object, kind: str) -> Object | None:
    return next((c for c in (thing.get("status") or {}).get("conditions") or [] if c.get("type") == kind), None)


def _word(text: object, default: str) -> str:
    word = str(text or "")
    return word if word.isalnum() and word[0].isalpha() else default


def _one_line(text: object) -> str:
    line = " ".join(str(text or "").split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error: ")]
    return (errors or lines or [""])[-1][:_LONGEST]
