"""Nodes, as the backend sees them, and what a placement asks for."""

import pytest
from backend_fixture import Fixture
from cluster_jobs import error, job, running

from lmj_api.protocol import MachineNotice
from lmj_api.status import JobStatus, Promotion, RankStatus
from lmj_operator.plan import CreatePod, DeletePod, LeaveView, PodPhase


def node(ready: str, since: str = "1970-01-01T00:16:40Z") -> dict[str, object]:
    condition = {"type": "Ready", "status": ready, "lastTransitionTime": since}
    return {"metadata": {"name": "node-1"}, "status": {"conditions": [condition]}}


async def test_nodes_are_named_while_a_request_was_not_taken_up(at: Fixture) -> None:
    at.backend.move_request = "1 to=n1"
    assert (await at.backend.observe()).nodes == frozenset(), "where nodes may not be watched none is known"
    at.cache.put_node(node("True"))
    gone = {"metadata": {"name": "gone"}}
    at.cache.put_node(gone)
    at.cache.drop_node(gone)
    assert (await at.backend.observe()).nodes == {node("True")["metadata"]["name"]}  # type: ignore[index]
    await at.backend.write_status(JobStatus(move_request="1 to=n1", move_refused="no"))
    assert (await at.backend.observe()).nodes == frozenset()
    at.backend.move_request = None
    assert (await at.backend.observe()).nodes == frozenset()


@pytest.mark.parametrize("since", ["1970-01-01T00:00:00Z", "1970-01-01T02:00:00Z"])
async def test_pods_of_a_dead_node_are_removed_by_force_when_it_is_dead_for_long(at: Fixture, since: str) -> None:
    at.api.objects["pods", "tiny-r0-1"] = running()
    leaving = running()
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    at.cache.put_pod(leaving)
    # Since when is by the operator's own clock, whatever the node's condition says.
    at.cache.put_node(node("Unknown", since))
    await at.backend.observe()
    at.clock.now += 59
    await at.backend.apply(DeletePod("tiny-r0-1", "why"))
    assert at.api.deletions == []
    at.clock.now += 1
    await at.backend.apply(DeletePod("tiny-r0-1", "why"))
    assert at.api.deletions == [("tiny-r0-1", 0)]


async def test_a_pod_of_a_doomed_node_leaves_at_once(at: Fixture) -> None:
    await at.backend.write_status(JobStatus(ranks=[RankStatus(rank=0, state="Running", pod="tiny-r0-1")]))
    pod = running()
    pod["metadata"] |= {"deletionTimestamp": "1970-01-01T00:17:40Z", "deletionGracePeriodSeconds": 60}
    at.cache.put_pod(pod)
    doomed = node("True")
    doomed["spec"] = {"taints": [{"key": "spot", "effect": "NoExecute"}]}
    at.cache.put_node(doomed)
    assert (await at.backend.observe()).pods[0].phase is PodPhase.TERMINATING


async def test_nodes_wake_the_jobs_that_run_there(at: Fixture) -> None:
    at.cache.put_pod(running())
    at.cache.put_node(node("True"))
    at.woken.clear()
    at.cache.put_node(node("True", "2026-01-01T00:00:00Z"))
    assert at.woken == []
    at.cache.put_node(node("Unknown"))
    at.cache.drop_node(node("Unknown"))
    assert at.woken == [("team", "tiny")] * 2
    assert (await at.backend.observe()).pods[0].phase is PodPhase.GONE


async def test_a_pod_that_does_not_run_yet_is_outdated_when_its_node_is_dead_for_long(at: Fixture) -> None:
    """Nobody would start it, and the API server takes minutes to end it."""
    pod = running()
    pod["status"] = {"phase": "Pending"}
    at.cache.put_pod(pod)
    at.cache.put_node(node("True"))
    assert not (await at.backend.observe()).pods[0].outdated
    at.cache.put_node(node("Unknown"))
    assert not (await at.backend.observe()).pods[0].outdated
    at.clock.now += 59
    assert not (await at.backend.observe()).pods[0].outdated
    at.clock.now += 1
    assert (await at.backend.observe()).pods[0].outdated


async def test_a_standby_that_became_a_rank_is_where_that_may_be(at: Fixture) -> None:
    pod, body = running("tiny-s-1"), node("True")
    pod["spec"]["nodeSelector"] = {"pool": "a"}
    body["metadata"]["labels"] = {"pool": "a"}  # type: ignore[index]
    at.cache.put_pod(pod)
    at.cache.put_node(body)
    at.backend.job = job(placement={"stages": [{"stage": 1, "nodeSelector": {"pool": "b"}}]})
    for rank, why in ((0, None), (1, "its placement asks for pool=b")):
        await at.backend.write_status(JobStatus(promotions=[Promotion(pod="tiny-s-1", rank=rank, serial=2)]))
        assert (await at.backend.observe()).pods[0].misplaced == why


async def test_a_changed_placement_or_taint_is_seen_in_the_next_pass(at: Fixture) -> None:
    pod, body = running(), node("True")
    pod["spec"]["nodeSelector"] = {"pool": "a"}
    body["metadata"]["labels"] = {"pool": "a"}  # type: ignore[index]
    at.cache.put_pod(pod)
    at.cache.put_node(body)
    at.backend.job = job(placement={"stages": [{"stage": 0, "nodeSelector": {"pool": "a"}}]})
    assert (await at.backend.observe()).pods[0].misplaced is None
    at.backend.job = job(placement={"stages": [{"stage": 0, "nodeSelector": {"pool": "b"}}]})
    assert (await at.backend.observe()).pods[0].misplaced == "its placement asks for pool=b"
    at.woken.clear()
    at.cache.put_node({**body, "spec": {"taints": [{"key": "kubevirt.io/drain", "effect": "NoSchedule"}]}})
    assert at.woken == [("team", "tiny")]
    assert (await at.backend.observe()).pods[0].node_leaving == "node node-1 is tainted kubevirt.io/drain:NoSchedule"


async def test_a_node_is_left_when_its_agent_has_heard_from_the_cloud(at: Fixture) -> None:
    """By the operator's clock, whatever the agent's says."""
    await at.backend.apply(CreatePod(0, 1))
    at.cache.put_pod(running())
    at.cache.put_node(node("True"))
    assert [(p.node_leaving, p.node_goes_at) for p in (await at.backend.observe()).pods] == [(None, None)]
    notice = MachineNotice(reason="EC2 is to stop it", at=500_090.0)
    at.state = at.state.model_copy(update={"clock": 500_000.0, "notice": notice})
    await at.backend.apply(LeaveView("tiny-r0-1", 1))  # its answer is its state
    (pod,) = (await at.backend.observe()).pods
    assert pod.node_leaving == "node node-1 is about to be taken away: EC2 is to stop it"
    assert pod.node_goes_at == pytest.approx(at.clock.now + 90.0, abs=5.0)


async def test_what_may_be_evicted_follows_the_spec_without_a_new_pod(at: Fixture) -> None:
    await at.backend.apply(CreatePod(0, 1))
    await at.backend.write_status(JobStatus(started=at.clock.now))
    budgets = at.calls("patch", "poddisruptionbudgets")
    await at.backend.observe()
    assert at.calls("patch", "poddisruptionbudgets") == budgets
    at.backend.job = job(migration={"strategy": "Never"})
    await at.backend.observe()
    await at.backend.observe()
    assert at.calls("patch", "poddisruptionbudgets") == budgets + 1
    assert at.api.objects["poddisruptionbudgets", "tiny-trainers"]["spec"]["minAvailable"] == 1


async def test_a_pod_that_was_refused_is_made_on_the_node_that_was_named_all_the_same(at: Fixture) -> None:
    at.api.refuse["create", "pods"] = [error(403, "Forbidden", "exceeded quota")]
    await at.backend.apply(CreatePod(1, 2, ("node-1",), "node-3"))
    at.clock.now += 60
    await at.backend.observe()
    made = at.api.objects["pods", "tiny-r1-2"]["spec"]["affinity"]["nodeAffinity"]
    fields = made["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"][0]["matchFields"]
    assert [(f["operator"], f["values"]) for f in fields] == [("NotIn", ["node-1"]), ("In", ["node-3"])]


@pytest.mark.parametrize("made", ["1970-01-01T00:00:00Z", "1970-01-01T02:00:00Z"])
async def test_a_pods_time_to_start_counts_from_when_it_was_seen(at: Fixture, made: str) -> None:
    """The API server's clock may be an hour ahead of the operator's, or behind."""
    pod = running()
    pod["metadata"]["creationTimestamp"] = made
    at.cache.put_pod(pod)
    assert (await at.backend.observe()).pods[0].created == 1000.0
    at.clock.now += 7
    assert (await at.backend.observe()).pods[0].created == 1000.0
