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
_DISRUPTIONS = {
    "PreemptionByScheduler": "a pod of higher priority took its place",
    "DeletionByTaintManager": "its node is tainted",
    "EvictionByEvictionAPI": "it was evicted",
    "DeletionByPodGC": "its node is gone",
    "TerminationByKubelet": "its node is shut down, or needs the place for a critical pod",
}
_PULL = ("ImagePullBackOff", "ErrImagePull")
_LONGEST = 300
"""Characters of a message; the kubelet's can be pages."""


@dataclass(frozen=True, slots=True, order=True)
class Taint:
    """A taint that keeps new pods away, or ends those that are there."""

    key: str
    value: str
    effect: str


@dataclass(frozen=True, slots=True)
class NodeState:
    """A node, as far as it matters to its pods."""

    ready: bool
    since: float
    """Since when, seconds since the epoch."""
    gone: bool = False
    """There is no such node any more."""
    cordoned: bool = False
    taints: tuple[Taint, ...] = ()
    """Those that keep new pods away or end pods, in order; not those that end pods because it failed, which say nothing new."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Its labels."""


def node_state(node: Object) -> NodeState:
    """What the node's object says."""
    found = _condition(node, "Ready")
    if found is None:
        return NodeState(False, seconds(node["metadata"].get("creationTimestamp")))
    ready = found.get("status") == "True"
    spec = node.get("spec") or {}
    taints = {Taint(str(t.get("key")), str(t.get("value") or ""), str(t.get("effect"))) for t in spec.get("taints") or []}
    kept = sorted(t for t in taints if t.effect == "NoSchedule" or (t.effect == "NoExecute" and t.key not in _FAILED))
    labels = dict(node["metadata"].get("labels") or {})
    since = seconds(found.get("lastTransitionTime"))
    return NodeState(ready, since, cordoned=bool(spec.get("unschedulable")), taints=tuple(kept), labels=labels)


def _leaving(pod: Object, name: str, node: NodeState, chosen: Collection[str]) -> str | None:
    """Why ``pod`` is to leave ``node``: it is cordoned, or has a taint that ends pods, or one of ``chosen``. None: it may stay.

    What the pod tolerates for ever is no reason: so nodes are set apart. But who tolerates everything did not mean ``chosen``.
    """
    if node.cordoned:
        return f"node {name} is cordoned"
    for taint in sorted(node.taints, key=lambda t: t.effect):
        if taint.effect != "NoExecute" and taint.key not in chosen:
            continue
        by = [t for t in (pod.get("spec") or {}).get("tolerations") or [] if _tolerates(t, taint)]
        if not any(t.get("key") or taint.key not in chosen for t in by):
            return f"node {name} is tainted {taint.key}:{taint.effect}"
    return None


def _tolerates(toleration: Object, taint: Taint) -> bool:
    """Whether the pod may stay on a node with ``taint`` for as long as it likes."""
    if toleration.get("tolerationSeconds") is not None or toleration.get("effect") not in (None, "", taint.effect):
        return False
    key = toleration.get("key") or None
    if toleration.get("operator") == "Exists":
        return key in (None, taint.key)
    return (
        toleration.get("operator") in (None, "", "Equal") and key == taint.key and (toleration.get("value") or "") == taint.value
    )


def with_notice(seen: PodObserved) -> PodObserved:
    """``seen``, on a node that is to be left where its agent has heard from the cloud that it is taken away."""
    notice = seen.agent.notice if seen.agent is not None else None
    if notice is None:
        return seen
    reason = seen.node_leaving or f"node {seen.node} is about to be taken away: {notice.reason}"
    return replace(seen, node_leaving=reason, node_goes_at=notice.at)


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

    ``taints``: keys of taints that say of a node that it is about to be taken away, also when they only keep new pods from it.
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
    seen = PodObserved(metadata["name"], rank, serial, PodPhase.PENDING, created, bound, unlisted=unlisted, cut=pod.get("cut"))
    if node is not None:
        seen = replace(seen, node_leaving=_leaving(pod, str(bound), node, taints))
    seen = replace(seen, disrupted=_disrupted(pod))
    container = _container(status)
    ended = (container.get("state") or {}).get("terminated")
    if status.get("phase") in ("Failed", "Succeeded") or (ended is not None and "deletionTimestamp" not in metadata):
        return _ended(seen, status, ended)
    if node is not None and not node.ready and seen.disrupted is None:
        # What ends from now on ends with it; what had ended before said how.
        seen = replace(seen, disrupted=f"its node {bound} is {'gone' if node.gone else 'not ready'}")
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


def is_started(pod: Object) -> bool:
    """Whether its container runs."""
    return bool((_container(pod.get("status") or {}).get("state") or {}).get("running"))


def owner_uid(thing: Object) -> str | None:
    """Uid of the object's controller."""
    return next((str(ref.get("uid")) for ref in thing["metadata"].get("ownerReferences") or [] if ref.get("controller")), None)


def seconds(stamp: str | None) -> float:
    """An RFC 3339 time as seconds since the epoch; 0 for none."""
    return datetime.fromisoformat(stamp).timestamp() if stamp else 0.0


def _disrupted(pod: Object) -> str | None:
    """Why the cluster takes ``pod`` away, as the cluster says; None: it does not.

    A node that evicts it because memory or disk is short does: but that may be what the pod itself has used up, so it does not count here.
    """
    found = _condition(pod, "DisruptionTarget")
    if found is None or found.get("status") != "True" or (pod.get("status") or {}).get("reason") == "Evicted":
        return None
    reason = str(found.get("reason") or "")
    return _DISRUPTIONS.get(reason) or one_line(f"{reason}: {found.get('message') or ''}".strip(": ")) or "it was disrupted"


def _ended(seen: PodObserved, status: Object, ended: Object | None) -> PodObserved:
    code = ended.get("exitCode") if ended is not None else None
    # A shell's way to say that a signal ended it; the plan says it with a minus.
    code = 128 - code if code is not None and 128 < code < 160 else code
    # One that was killed had no time to say why: its last line is of something else.
    said = _last_line(str(ended.get("message") or "")) if ended is not None and (code is None or code >= 0) else ""
    why = str((ended or {}).get("reason") or "")
    if status.get("reason"):  # Evicted, NodeShutdown, ...: said of the pod, and nearer to the cause
        message = f"{status['reason']}: {one_line(status.get('message'))}".rstrip(": ")
    elif why == "OOMKilled":
        message = "killed for want of memory (OOMKilled): give the trainer container more, or use less"
    else:
        message = said.removeprefix("error: ") or (why if why not in ("Error", "Completed") else "")
    return replace(seen, phase=PodPhase.GONE, exit_code=code, exit_message=message or None)


def _wait(pod: Object, scheduled: Object | None, container: Object, created: float) -> PodWait | None:
    if scheduled is not None and scheduled.get("status") == "False":
        since = seconds(scheduled.get("lastTransitionTime")) or created
        message = one_line(scheduled.get("message"))
        if "PersistentVolumeClaims" in message:  # the scheduler does not say which
            volumes = (pod.get("spec") or {}).get("volumes") or []
            claims = [v["persistentVolumeClaim"]["claimName"] for v in volumes if v.get("persistentVolumeClaim")]
            message = f"claim {' or '.join(claims)} is not bound: {message}" if claims else message
        return PodWait(word(scheduled.get("reason"), "Unschedulable"), message, since)
    waiting = (container.get("state") or {}).get("waiting") or {}
    reason = waiting.get("reason")
    if reason in _NOT_ITS_FAULT:
        message = one_line(waiting.get("message"))
        if reason in _PULL:
            # The kubelet goes to and fro between the two; what keeps the image away is the same.
            reason, message = _PULL[0], message.rpartition(f"{_PULL[1]}: ")[2]
        return PodWait(reason, message or f"image {container.get('image')}", created)
    return None


def _container(status: Object) -> Object:
    return next((c for c in status.get("containerStatuses") or [] if c.get("name") == CONTAINER), {})


def _condition(thing: Object, kind: str) -> Object | None:
    return next((c for c in (thing.get("status") or {}).get("conditions") or [] if c.get("type") == kind), None)


def word(text: object, default: str) -> str:
    """A reason as a condition may have it."""
    word = str(text or "")
    return word if word.isalnum() and word[0].isalpha() else default


def one_line(text: object) -> str:
    """A message as a condition may have it."""
    line = " ".join(str(text or "").split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error: ")]
    return (errors or lines or [""])[-1][:_LONGEST]
