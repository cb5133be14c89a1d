"""What a pod's object means to the plan."""

import json
from dataclasses import replace
from typing import Any

import pytest
from cluster_jobs import SETTINGS, job, pod_body, running

from lmj_api.cut import Cut
from lmj_api.spec import Recovery
from lmj_api.status import RankStatus
from lmj_operator.backend.kubernetes import cache
from lmj_operator.backend.kubernetes.build.pod import build_pod
from lmj_operator.backend.kubernetes.cache import slim
from lmj_operator.backend.kubernetes.pod_state import NodeState, misplaced, node_state, pod_address, pod_observed
from lmj_operator.plan import PodPhase
from lmj_operator.plan.failures.failures import find_failures
from lmj_operator.plan.observe.facts import RankFacts

NODE = NodeState(ready=True, since=0.0)
NEW_YEAR = 1767225600.0


def ended(**terminated: Any) -> dict[str, Any]:
    return {"phase": "Failed", "containerStatuses": [{"name": "trainer", "state": {"terminated": terminated}}]}


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    state = {"waiting": {"reason": reason, "message": message}}
    return {"phase": "Pending", "containerStatuses": [{"name": "trainer", "image": "x:1", "state": state}]}


def test_a_running_pod() -> None:
    seen = pod_observed(running("tiny-r1-4"), NODE)
    assert (seen.name, seen.rank, seen.serial, seen.phase, seen.node) == ("tiny-r1-4", 1, 4, PodPhase.RUNNING, "node-1")
    assert seen.created == NEW_YEAR
    assert seen.vouched
    assert not pod_observed(running(), NodeState(ready=False, since=0.0)).vouched


def test_a_standby_has_no_rank_and_says_until_when() -> None:
    pod = running("tiny-s-4")
    pod["metadata"]["labels"]["lmj.dev/role"] = "standby"
    seen = pod_observed(pod, NODE)
    assert (seen.name, seen.rank, seen.serial, seen.unlisted) == ("tiny-s-4", None, 4, True)
    pod["metadata"]["labels"]["lmj.dev/role"] = "member"
    assert not pod_observed(pod, NODE).unlisted
    assert not pod_observed(running("tiny-r1-4"), NODE).unlisted


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        (ended(exitCode=1, message="Traceback\nValueError: x\n"), 1, "ValueError: x"),
        (ended(exitCode=2, message="noise\nerror: no column 'text'\nmore"), 2, "no column 'text'"),
        (ended(exitCode=137, reason="Error"), -9, None),
        (ended(exitCode=137, reason="Error", message="INFO lmj.worker: view 1 trains from step 0 on\n"), -9, None),
        (ended(exitCode=137, reason="OOMKilled"), -9, "killed for want of memory (OOMKilled): give the trainer container more"),
        (
            {"phase": "Failed", "reason": "Evicted", "message": "The node was low on\nmemory."},
            None,
            "Evicted: The node was low on memory.",
        ),
        (ended(exitCode=0, reason="Completed"), 0, None),
    ],
)
def test_a_pod_that_ended_says_how(status: dict[str, Any], code: int | None, message: str | None) -> None:
    seen = pod_observed(pod_body(**status), NODE)
    assert (seen.phase, seen.exit_code) == (PodPhase.GONE, code)
    assert (seen.exit_message or "").startswith(message or "")
    assert (seen.exit_message is None) == (message is None)


@pytest.mark.parametrize("reason", ["ImagePullBackOff", "ErrImagePull", "InvalidImageName", "CreateContainerConfigError"])
def test_what_another_pod_would_wait_for_too(reason: str) -> None:
    seen = pod_observed(pod_body(**waiting(reason, "manifest unknown")), NODE)
    assert seen.phase is PodPhase.PENDING
    assert seen.waits is not None
    told = "ImagePullBackOff" if reason == "ErrImagePull" else reason
    assert (seen.waits.reason, seen.waits.message, seen.waits.since) == (told, "manifest unknown", NEW_YEAR)


def test_a_container_that_is_being_made_is_just_slow() -> None:
    assert pod_observed(pod_body(**waiting("ContainerCreating")), NODE).waits is None


def test_an_unschedulable_pod_says_why_and_since_when() -> None:
    scheduled = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims.",
        "lastTransitionTime": "2026-01-01T00:00:05Z",
    }
    seen = pod_observed(pod_body(phase="Pending", conditions=[scheduled]), None)
    assert seen.waits is not None
    assert (seen.waits.reason, seen.waits.since) == ("Unschedulable", NEW_YEAR + 5)
    assert "unbound immediate" in seen.waits.message


def test_a_pod_has_its_time_to_start_from_when_it_was_scheduled() -> None:
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T01:00:00Z"}
    assert pod_observed(pod_body(phase="Pending", conditions=[scheduled]), NODE).created == NEW_YEAR + 3600


def test_a_pod_that_was_told_to_go() -> None:
    pod = running()
    pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:00Z"
    assert pod_observed(pod, NODE).phase is PodPhase.TERMINATING


def test_a_pod_of_a_node_that_is_gone_is_gone() -> None:
    seen = pod_observed(running(), NodeState(ready=False, since=0.0, gone=True))
    assert (seen.phase, seen.exit_message) == (PodPhase.GONE, "its node node-1 is gone")
    assert pod_observed(running(), None).phase is PodPhase.RUNNING  # not seen yet is not gone


def disrupted(reason: str, **more: Any) -> dict[str, Any]:
    target = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": "what the\ncluster says", **more}
    return {"conditions": [{"type": "Ready", "status": "True"}, target]}


@pytest.mark.parametrize(
    ("reason", "why"),
    [
        ("PreemptionByScheduler", "a pod of higher priority took its place"),
        ("DeletionByTaintManager", "its node is tainted"),
        ("EvictionByEvictionAPI", "it was evicted"),
        ("DeletionByPodGC", "its node is gone"),
        ("TerminationByKubelet", "its node is shut down, or needs the place for a critical pod"),
        ("SomethingElse", "SomethingElse: what the cluster says"),
    ],
)
def test_what_takes_a_pod_away_is_said(reason: str, why: str) -> None:
    for pod in (running(**disrupted(reason)), pod_body(phase="Failed", **disrupted(reason))):
        assert pod_observed(slim(pod), NODE).disrupted == why


def test_a_pod_that_nothing_takes_away() -> None:
    assert pod_observed(running(), NODE).disrupted is None
    assert pod_observed(running(**disrupted("EvictionByEvictionAPI", status="False")), NODE).disrupted is None
    # It may have used up the memory itself.
    short = pod_body(phase="Failed", reason="Evicted", message="low on memory", **disrupted("TerminationByKubelet"))
    assert pod_observed(short, NODE).disrupted is None


def test_a_pod_ends_with_its_node_unless_it_had_ended_before() -> None:
    gone, unready = NodeState(ready=False, since=0.0, gone=True), NodeState(ready=False, since=0.0)
    assert pod_observed(running(), gone).disrupted == "its node node-1 is gone"
    assert pod_observed(running(), unready).disrupted == "its node node-1 is not ready"
    assert pod_observed(pod_body(**ended(exitCode=1, message="error: boom")), unready).disrupted is None


def tainted(*taints: tuple[str, ...], **spec: Any) -> NodeState:
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:09Z"}
    made = [dict(zip(("key", "effect", "value"), taint, strict=False)) for taint in taints]
    node = {"metadata": {"name": "node-1"}, "spec": {"taints": made, **spec}, "status": {"conditions": [ready]}}
    return node_state(node)


@pytest.mark.parametrize(
    ("node", "why"),
    [
        (tainted(), None),
        (tainted(("gpu", "NoSchedule")), None),
        (tainted(("spot", "PreferNoSchedule")), None),
        (tainted(("gpu", "NoSchedule"), ("spot", "NoSchedule")), "node node-1 is tainted spot:NoSchedule"),
        (tainted(("other", "NoExecute")), "node node-1 is tainted other:NoExecute"),
        (tainted(("node.kubernetes.io/unreachable", "NoExecute")), None),
        (tainted(("spot", "NoSchedule"), unschedulable=True), "node node-1 is cordoned"),
    ],
)
def test_what_says_of_a_node_that_it_is_about_to_be_taken_away(node: NodeState, why: str | None) -> None:
    assert pod_observed(running(), node, ["spot", "maintenance"]).node_leaving == why


@pytest.mark.parametrize(
    ("toleration", "stays"),
    [
        ({"key": "dedicated", "operator": "Equal", "value": "ml", "effect": "NoExecute"}, True),
        ({"key": "dedicated", "value": "ml"}, True),
        ({"key": "dedicated", "operator": "Exists"}, True),
        ({"operator": "Exists"}, True),
        ({"key": "dedicated", "operator": "Exists", "tolerationSeconds": 300}, False),
        ({"key": "dedicated", "operator": "Equal", "value": "web"}, False),
        ({"key": "dedicated", "operator": "Exists", "effect": "NoSchedule"}, False),
        ({"key": "other", "operator": "Exists"}, False),
    ],
)
def test_a_taint_that_the_pod_tolerates_for_ever_is_no_reason_to_leave(toleration: dict[str, Any], stays: bool) -> None:
    pod, node = running(), tainted(("dedicated", "NoExecute", "ml"))
    pod["spec"]["tolerations"] = [{"key": "x", "operator": "Exists"}, toleration]
    for seen in (pod, slim(pod)):
        why = None if stays else "node node-1 is tainted dedicated:NoExecute"
        assert pod_observed(seen, node).node_leaving == why
    pod["spec"]["tolerations"] = [{"operator": "Exists"}]
    assert pod_observed(pod, replace(node, cordoned=True)).node_leaving == "node node-1 is cordoned"


@pytest.mark.parametrize("effect", ["NoSchedule", "NoExecute"])
def test_a_chosen_taint_is_tolerated_by_its_key_alone(effect: str) -> None:
    """What tolerates everything was not written for a node that is about to be taken away."""
    pod, node = running(), tainted(("spot", effect))
    pod["spec"]["tolerations"] = [{"operator": "Exists"}]
    assert pod_observed(pod, node, ["spot"]).node_leaving == f"node node-1 is tainted spot:{effect}"
    pod["spec"]["tolerations"] = [{"key": "spot", "operator": "Exists"}]
    assert pod_observed(pod, node, ["spot"]).node_leaving is None


def test_what_is_tolerated_for_some_time_is_not_kept() -> None:
    pod = running()
    pod["spec"]["tolerations"] = [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "tolerationSeconds": 300}]
    assert "tolerations" not in slim(pod)["spec"]


def test_well_known_taints_are_chosen_unless_others_are() -> None:
    node = tainted(("karpenter.sh/disrupted", "NoSchedule"))
    assert pod_observed(running(), node, job().spec.migration.on_taints).node_leaving is not None
    assert pod_observed(running(), node, job(migration={"onTaints": []}).spec.migration.on_taints).node_leaving is None


def test_a_pod_is_misplaced_when_its_placement_was_changed_and_its_node_lacks_the_labels() -> None:
    node, pod = replace(NODE, labels={"pool": "a", "zone": "z"}), running()
    assert misplaced(pod, node, {}) is None
    assert misplaced(pod, node, {"pool": "a"}) is None
    assert misplaced(pod, node, {"zone": "y", "pool": "b"}) == "its placement asks for pool=b, zone=y"
    assert misplaced(pod, replace(node, gone=True), {"pool": "b"}) is None
    pod["spec"]["nodeSelector"] = {"pool": "b"}
    assert misplaced(pod, node, {"pool": "b"}) is None, "its node's labels changed, not its placement"


def test_addresses_and_nodes() -> None:
    assert pod_address(running(ip="fd00::1")) == "[fd00::1]"
    assert pod_address(pod_body()) is None
    ready = {"type": "Ready", "status": "Unknown", "lastTransitionTime": "2026-01-01T00:00:09Z"}
    node = {"metadata": {"name": "n", "creationTimestamp": "2026-01-01T00:00:00Z"}, "status": {"conditions": [ready]}}
    assert node_state(node) == NodeState(False, NEW_YEAR + 9)


@pytest.mark.parametrize(
    ("vouched", "silent", "gone"), [(False, 29, False), (False, 31, True), (True, 599, False), (True, 601, True)]
)
def test_a_silent_agent_that_its_node_vouches_for_is_waited_for(vouched: bool, silent: float, gone: bool) -> None:
    """An operator that is cut off from the pods must not replace them: they train on."""
    pod = replace(pod_observed(running(), NODE), vouched=vouched, unreachable_since=NEW_YEAR)
    known = RankStatus(rank=0, pod=pod.name, state="Running", incarnation=1)
    facts = RankFacts(rank=0, serial=1, pod=pod, seen=True, incarnation=1, known=known)
    assert bool(find_failures("tiny", (facts,), None, Recovery(), NEW_YEAR + silent)) is gone


@pytest.mark.parametrize("layers", [None, [1, 3]])
def test_the_cut_is_that_of_the_job_that_the_pod_carries(layers: list[int] | None) -> None:
    made = build_pod(job(pipeline={"stages": 2, "microBatches": 2, "layers": layers}), SETTINGS, 0, 1)
    pod = running()
    pod["metadata"]["annotations"] = made["metadata"]["annotations"]
    assert pod_observed(slim(pod), NODE).cut == Cut(stages=2, layers=layers)


def test_large_jobs_that_pods_carry_are_not_remembered() -> None:
    cache._remembered.cache_clear()
    for number in range(300):
        text = json.dumps({"spec": {"pipeline": {"stages": number % 64 + 1}}, "x": "x" * (1 << 16)})
        assert cache.cut_of(text) == Cut(stages=number % 64 + 1)
    assert cache._remembered.cache_info().currsize == 0
    assert cache.cut_of('{"spec": {"pipeline": {"stages": 3}}}') == Cut(stages=3)
    assert cache._remembered.cache_info().currsize == 1


@pytest.mark.parametrize("text", ["", "{", "[]", '{"spec": {"pipeline": {"stages": "many"}}}', "[" * 100_000])
def test_a_pod_whose_job_somebody_has_changed_is_of_no_cut_that_is_known(text: str) -> None:
    pod = running()
    pod["metadata"]["annotations"] = {"lmj.dev/job-spec": text}
    assert pod_observed(slim(pod), NODE).cut is None
