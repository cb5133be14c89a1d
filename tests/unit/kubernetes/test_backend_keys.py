"""Pods and keys: each is signed for with the key that it trusts; one whose key is not there is replaced, with its last checkpoint."""

from typing import Any

import pytest
from backend_fixture import Fixture
from cluster_jobs import KEY, SETTINGS, pod_body, running

from lmj_operator.backend.kubernetes.backend import KEYLESS
from lmj_operator.backend.port import ActionError
from lmj_operator.backend.signing_key import SigningKey
from lmj_operator.plan import CreatePod, DeletePod, Drain, PodObserved, PodPhase

NEXT = SigningKey.generate()
NODE: dict[str, Any] = {"metadata": {"name": "node-1"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}
OLD = "registry.example/lmj-trainer:0"


@pytest.fixture
def on_node(at: Fixture) -> Fixture:
    at.cache.put_node(NODE)
    return at


def command(at: Fixture, name: str) -> list[str]:
    found: list[str] = at.api.objects["pods", name]["spec"]["containers"][0]["command"]
    return [word for word in found if word.startswith("--trust=")]


async def only(at: Fixture) -> PodObserved:
    (pod,) = (await at.backend.observe()).pods
    return pod


async def test_a_key_is_changed_while_a_job_runs(on_node: Fixture) -> None:
    at = on_node
    await at.backend.apply(CreatePod(0, 1))
    assert command(at, "tiny-r0-1") == [f"--trust={KEY.public}"]
    at.cache.put_pod(running())
    assert (await only(at)).agent is not None
    at.keys.have(KEY, NEXT)
    await at.backend.observe()
    await at.backend.apply(CreatePod(1, 1))
    assert command(at, "tiny-r1-1") == [f"--trust={NEXT.public}"]
    at.cache.put_pod(running("tiny-r1-1", "pod-2", trust=NEXT.public))
    await at.backend.apply(Drain("tiny-r0-1"))
    assert [(p.phase, p.agent is not None, p.keyless) for p in (await at.backend.observe()).pods] == [
        (PodPhase.RUNNING, True, False)
    ] * 2
    at.keys.have(NEXT)
    old, new = (await at.backend.observe()).pods
    assert (old.phase, old.disrupted, old.keyless, old.agent) == (PodPhase.TERMINATING, KEYLESS, True, None)
    assert (new.phase, new.keyless, new.agent is not None) == (PodPhase.RUNNING, False, True)


async def test_an_agent_whose_pod_has_a_token_is_not_believed_in_the_clear(on_node: Fixture) -> None:
    at, pod = on_node, running()
    pod["spec"]["containers"][0]["command"].append("--token=/etc/lmj/token/token")
    at.cache.put_pod(pod)
    seen = await only(at)
    assert (seen.phase, seen.agent, seen.keyless) == (PodPhase.RUNNING, None, False)
    with pytest.raises(ActionError, match="it is not known whose certificate this is"):
        await at.backend.apply(Drain("tiny-r0-1"))
    assert at.told == []


async def test_a_pod_of_a_version_with_tokens_is_ended_in_good_order_and_nobody_asks_it(on_node: Fixture) -> None:
    at = on_node
    pod = running(trust="")
    at.api.objects["pods", "tiny-r0-1"] = pod
    at.cache.put_pod(pod)
    seen = await only(at)
    assert (seen.phase, seen.keyless, seen.disrupted, seen.unreachable_since) == (PodPhase.TERMINATING, True, KEYLESS, None)
    with pytest.raises(ActionError, match="does not listen"):
        await at.backend.apply(Drain("tiny-r0-1"))
    await at.backend.apply(DeletePod("tiny-r0-1", "why"))
    assert at.api.deletions == [("tiny-r0-1", None)], "with all of its time"
    pod["metadata"] |= {"deletionTimestamp": "1970-01-01T00:17:40Z", "deletionGracePeriodSeconds": 60}
    at.cache.put_pod(pod)
    assert (await only(at)).keyless, "until it is gone"
    assert at.told == []


async def test_one_that_waits_is_made_anew(at: Fixture) -> None:
    at.cache.put_pod(pod_body(trust=NEXT.public, phase="Pending"))
    seen = await only(at)
    assert (seen.phase, seen.outdated, seen.keyless) == (PodPhase.PENDING, True, False)


async def test_one_that_waits_and_trusts_nobody_is_not_made_again_and_again(on_node: Fixture) -> None:
    """A webhook that takes the words away does so with the next one too: once it runs, its replacement waits as after any disruption."""
    on_node.cache.put_pod(pod_body(trust="", phase="Pending"))
    seen = await only(on_node)
    assert (seen.phase, seen.outdated, seen.keyless) == (PodPhase.PENDING, False, False)
    on_node.cache.put_pod(running(trust=""))
    seen = await only(on_node)
    assert (seen.phase, seen.disrupted, seen.keyless) == (PodPhase.TERMINATING, KEYLESS, True)


async def test_one_whose_node_is_lost_is_not_waited_for(at: Fixture) -> None:
    at.cache.put_pod(running(trust=NEXT.public))
    for status in ("Unknown", "False"):
        at.cache.put_node({**NODE, "status": {"conditions": [{"type": "Ready", "status": status}]}})
        seen = await only(at)
        assert (seen.phase, seen.keyless) == (PodPhase.TERMINATING, False)
        assert seen.disrupted == "its node node-1 is not ready"


async def test_one_that_ended_is_what_it_is(at: Fixture) -> None:
    ended = {"name": "trainer", "state": {"terminated": {"exitCode": 2, "message": "error: no such column"}}}
    at.cache.put_pod(pod_body(trust=NEXT.public, phase="Failed", containerStatuses=[ended]))
    seen = await only(at)
    assert (seen.phase, seen.exit_code, seen.exit_message, seen.keyless) == (PodPhase.GONE, 2, "no such column", False)


async def test_the_image_of_one_that_is_replaced_binds_nobody(at: Fixture) -> None:
    """It is of a version that would not know what the operator tells it."""
    for trust, image in ((NEXT.public, SETTINGS.trainer_image), (KEY.public, OLD)):
        pod = running(trust=trust)
        pod["spec"]["containers"][0]["image"] = OLD
        at.cache.put_pod(pod)
        await at.backend.observe()
        await at.backend.apply(CreatePod(1, 1))
        made = at.api.objects.pop(("pods", "tiny-r1-1"))
        assert made["spec"]["containers"][0]["image"] == image
        at.cache.drop_pod(made)


async def test_another_key_is_no_reason_to_make_a_pod_again_that_waits(at: Fixture) -> None:
    await at.backend.apply(CreatePod(1, 2))
    waiting = at.api.objects["pods", "tiny-r1-2"]
    waiting["status"] = {"phase": "Pending"}
    at.cache.put_pod(waiting)
    metadata = at.backend.job.metadata.model_copy(update={"generation": 2})
    at.backend.job = at.backend.job.model_copy(update={"metadata": metadata})
    at.keys.have(KEY, NEXT)
    assert not (await only(at)).outdated
