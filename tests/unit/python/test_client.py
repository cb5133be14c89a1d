"""The client of a cluster, against an API server in memory: what it asks, what it hears, and what it raises."""

import asyncio
import inspect
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from api_server import EVENTS, JOBS, PODS, ApiServer

import lmj
from lmj_api.status import Incident, JobStatus, RankStatus
from lmj_operator.client import job_events, job_logs, jobs

pytestmark = pytest.mark.integration

PLACE = JOBS.format("team") + "/tiny"
UID = "00000000-0000-0000-0000-000000000001"
"""Of what is made first."""
SECONDS = 20.0
"""Deadline of what should be there at once."""


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as made:
        yield made


@pytest.fixture
def client(server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[lmj.Client]:
    for module, name in ((jobs, "RETRY_SECONDS"), (job_events, "RETRY_SECONDS"), (job_logs, "POLL_SECONDS")):
        monkeypatch.setattr(module, name, 0.05)
    with lmj.Client(kubeconfig=server.kubeconfig(tmp_path)) as made:
        yield made


def job(name: str = "tiny", **fields: Any) -> lmj.Job:
    return lmj.Job(
        name=name,
        model={"scratch": {}},
        dataset={"source": "data.csv", "text": ["text"], "label": "label"},
        pipeline={"stages": 1, "micro_batches": 4},
        data_parallel={"shards": 4, "max_replicas": 3},
        output={"path": "out"},
        **fields,
    )


def later(call: Callable[[], None], seconds: float = 0.2) -> None:
    threading.Timer(seconds, call).start()


def ranks(count: int) -> list[dict[str, Any]]:
    return [RankStatus(rank=rank, state="Running").model_dump(mode="json", by_alias=True) for rank in range(count)]


def test_a_job_is_made_read_listed_and_deleted(server: ApiServer, client: lmj.Client) -> None:
    made = client.create(job(labels={"queue": "night"}))
    assert (made.namespace, made.name, made.phase, made.uid) == ("team", "tiny", lmj.Phase.PENDING, UID)
    body = server.objects[PLACE]
    assert body["metadata"]["labels"] == {"queue": "night"}
    assert body["spec"] == job().to_object()["spec"], "no defaults, and paths as they were written"
    client.create(job("b", namespace="night"))
    client.create(job("a"), namespace="night")
    assert [found.name for found in client.list(namespace="night")] == ["a", "b"]
    assert [(found.namespace, found.name) for found in client.list(everywhere=True)] == [
        ("night", "a"),
        ("night", "b"),
        ("team", "tiny"),
    ]
    server.status(PLACE, phase="Running", progress={"step": 7, "steps": 9, "epoch": 0.1}, restarts=2)
    assert client.get("tiny").job == job(labels={"queue": "night"}, namespace="team")
    result = client.result("tiny")
    assert (result.steps, result.restarts, result.output, result.losses()) == (7, 2, None, {})
    assert client.delete("tiny")
    assert not client.delete("tiny")
    with pytest.raises(lmj.NotFound, match=r"^team/tiny: there is no such job$"):
        client.get("tiny")


def test_the_context_says_which_namespace(server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path)))
    with lmj.Client(context="other") as other:
        assert other.create(job()).namespace == "night"
    with lmj.Client(namespace="mine") as mine:
        assert mine.create(job()).namespace == "mine"
    with pytest.raises(RuntimeError, match=r"is closed"):
        mine.get("tiny")


def test_what_the_cluster_says_is_raised(server: ApiServer, client: lmj.Client, tmp_path: Path) -> None:
    client.create(job())
    with pytest.raises(lmj.ClusterError, match=r"409 there is one"):
        client.create(job())
    server.refuse["POST"] = [(422, {"message": "spec.training: no"})]
    with pytest.raises(lmj.JobError, match=r"422 training: no"):
        client.create(job())
    server.refuse["GET"] = [(403, {"message": "you may not"})]
    with pytest.raises(lmj.ClusterError, match=r"403 you may not"):
        client.get("tiny")
    server.refuse["GET"] = [(404, {"message": "page not found"})]
    with pytest.raises(lmj.ClusterError, match=r"is lmj.dev/v1alpha1 installed on the cluster\?"):
        client.list()
    server.status(PLACE, phase="Levitating")
    with pytest.raises(lmj.ClusterError, match=r"team/tiny: it is not one of this version's \(phase\)"):
        client.get("tiny")
    with lmj.Client(kubeconfig=tmp_path / "none") as lost, pytest.raises(lmj.ClusterError, match=r"no cluster: "):
        lost.list()


def test_a_job_is_waited_for_until_it_ends(server: ApiServer, client: lmj.Client) -> None:
    client.create(job())
    later(lambda: server.status(PLACE, phase="Succeeded", message="done"))
    assert client.wait("tiny", timeout=SECONDS).status.message == "done"
    watches = server.watches
    assert watches == 1, "it is told, and does not ask again and again"
    server.status(PLACE, phase="Failed", message="no such column")
    with pytest.raises(lmj.JobFailed, match=r"no such column") as failed:
        client.wait("tiny", timeout=SECONDS)
    assert failed.value.result.phase is lmj.Phase.FAILED
    server.status(PLACE, phase="Succeeded")
    with pytest.raises(lmj.ClusterError, match=r"team/tiny: ended as Succeeded"):
        client.wait("tiny", timeout=SECONDS, phases=[lmj.Phase.RUNNING])


def test_who_waits_has_a_deadline(server: ApiServer, client: lmj.Client) -> None:
    client.create(job())
    server.status(PLACE, phase="Pending", message="no room")
    with pytest.raises(lmj.WaitTimeout, match=r"^team/tiny: after 0.3 s not Succeeded but Pending: no room$"):
        client.wait("tiny", timeout=0.3)


def test_a_job_that_is_deleted_is_waited_for_no_more(server: ApiServer, client: lmj.Client) -> None:
    client.create(job())
    later(lambda: server.drop(PLACE))
    with pytest.raises(lmj.NotFound, match=r"team/tiny: the job was deleted"):
        client.wait("tiny", timeout=SECONDS)


def test_an_api_server_that_is_away_for_a_while_is_waited_for(server: ApiServer, client: lmj.Client) -> None:
    client.create(job())
    seen = client.watch("tiny")
    assert next(seen).phase is lmj.Phase.PENDING
    server.status(PLACE, phase="Running")
    assert next(seen).phase is lmj.Phase.RUNNING
    server.refuse["GET"] = [(500, {}), (503, {})]
    server.cut()
    later(lambda: server.status(PLACE, phase="Succeeded"), 0.5)
    assert [job.phase for job in seen][-1] is lmj.Phase.SUCCEEDED
    assert server.refuse["GET"] == []
    server.refuse["GET"] = [(503, {"message": "away"})]
    with pytest.raises(lmj.ClusterError, match=r"503 away"):
        client.wait("tiny", timeout=SECONDS)


def test_another_job_of_the_name_is_not_taken_for_it(server: ApiServer, client: lmj.Client) -> None:
    client.create(job())
    seen = client.watch("tiny")
    next(seen)
    server.cut()
    server.objects.pop(PLACE)
    server.put(PLACE, {**job().to_object(), "metadata": {"name": "tiny", "namespace": "team"}})
    with pytest.raises(lmj.NotFound, match=r"was deleted, and another one made"):
        next(seen)


def test_it_is_suspended_and_goes_on(server: ApiServer, client: lmj.Client) -> None:
    client.create(job())

    def operator(thing: dict[str, Any]) -> None:
        thing["status"] = {"phase": "Suspended" if thing["spec"]["suspend"] else "Running"}

    server.reacts = operator
    assert client.suspend("tiny", timeout=SECONDS).phase is lmj.Phase.SUSPENDED
    assert client.resume("tiny", timeout=SECONDS).phase is lmj.Phase.RUNNING
    server.reacts = lambda thing: None
    assert client.suspend("tiny", timeout=0).phase is lmj.Phase.RUNNING, "nobody waits"
    with pytest.raises(lmj.WaitTimeout, match=r"not Suspended but Running"):
        client.suspend("tiny", timeout=0.2)
    server.status(PLACE, phase="Failed", message="too late")
    with pytest.raises(lmj.ClusterError, match=r"ended as Failed: too late"):
        client.suspend("tiny", timeout=SECONDS)
    with pytest.raises(lmj.NotFound):
        client.resume("none", timeout=SECONDS)


def test_it_is_scaled_as_the_command_does(server: ApiServer, client: lmj.Client) -> None:
    client.create(job())

    def operator(thing: dict[str, Any]) -> None:
        thing["status"] = {"phase": "Running", "replicas": thing["spec"]["dataParallel"]["replicas"], "stages": 1}

    server.reacts = operator
    assert client.scale("tiny", 2, timeout=SECONDS).status.replicas == 2
    assert server.calls[-2][1].startswith(f"{PLACE}/scale")
    with pytest.raises(lmj.JobError, match=r"replicas 4 is more than max_replicas 3"):
        client.scale("tiny", 4)
    with pytest.raises(lmj.JobError, match=r"^give replicas, stages, or both$"):
        client.scale("tiny")
    with pytest.raises(lmj.WaitTimeout, match=r"after 0.2 s 2 replicas of 1 stages train, not 2 stages"):
        client.scale("tiny", stages=2, timeout=0.2)
    server.status(PLACE, phase="Succeeded")
    with pytest.raises(lmj.ClusterError, match=r"team/tiny: the job has ended"):
        client.scale("tiny", 2)


def moved(rank: int, request: str) -> dict[str, Any]:
    incident = Incident(
        time="2026-01-01T00:00:00Z", kind=lmj.IncidentKind.MOVED, rank=rank, pod="p", message="m", view=1, step=3, seconds=0.5
    )
    status = JobStatus(phase=lmj.Phase.RUNNING, migrations=1, incidents=[incident], move_request=request)
    return status.model_dump(mode="json", by_alias=True)


def test_ranks_move_as_the_command_has_them(server: ApiServer, client: lmj.Client) -> None:
    client.create(job())
    with pytest.raises(lmj.JobError, match=r"the job has no ranks yet"):
        client.migrate("tiny")
    server.status(PLACE, phase="Running", ranks=ranks(2))
    with pytest.raises(lmj.JobError, match=r"the job has no rank 2: its ranks are 0 to 1"):
        client.migrate("tiny", [2])

    def operator(thing: dict[str, Any]) -> None:
        thing["status"] = {**moved(1, thing["metadata"]["annotations"]["lmj.dev/migrate"]), "ranks": ranks(2)}

    server.reacts = operator
    assert client.migrate("tiny", [1], to="node-2", timeout=SECONDS).result.incidents[0].rank == 1
    assert server.objects[PLACE]["metadata"]["annotations"]["lmj.dev/migrate"].startswith("1 to=node-2 ")
    server.reacts = lambda thing: thing["status"].update(
        moveRequest=thing["metadata"]["annotations"]["lmj.dev/migrate"], moveRefused="migration.strategy is Never"
    )
    with pytest.raises(lmj.ClusterError, match=r"^migration.strategy is Never$"):
        client.migrate("tiny", [0], timeout=SECONDS)


def event(number: int, **fields: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": f"e{number}", "namespace": "team"},
        "involvedObject": {"uid": UID},
        "lastTimestamp": f"2026-01-01T00:00:0{number}Z",
        "reason": "Moved",
        "message": f"message {number}",
        "type": "Normal",
        **fields,
    }


def test_events_are_told_in_order_and_once(server: ApiServer, client: lmj.Client) -> None:
    client.create(job())
    for number in (2, 1):
        server.put(f"{EVENTS.format('team')}/e{number}", event(number))
    server.put(f"{EVENTS.format('team')}/other", event(3, involvedObject={"uid": "another"}))
    assert [str(told) for told in client.events("tiny")] == [
        "2026-01-01T00:00:01Z Moved: message 1",
        "2026-01-01T00:00:02Z Moved: message 2",
    ]
    following = client.events("tiny", follow=True)
    told = [next(following), next(following)]
    server.put(f"{EVENTS.format('team')}/e4", event(4, type="Warning"))
    told.append(next(following))
    server.cut()
    server.put(f"{EVENTS.format('team')}/e5", event(5))
    told.append(next(following))
    assert [(one.message, one.warning) for one in told] == [
        ("message 1", False),
        ("message 2", False),
        ("message 4", True),
        ("message 5", False),
    ]
    following.close()  # type: ignore[attr-defined]


def pod(server: ApiServer, name: str, rank: int | None) -> None:
    labels = {"lmj.dev/job": "tiny", **({} if rank is None else {"lmj.dev/rank": str(rank)})}
    server.put(f"{PODS.format('team')}/{name}", {"metadata": {"name": name, "namespace": "team", "labels": labels}})


def test_logs_are_those_of_all_ranks_or_of_one(server: ApiServer, client: lmj.Client) -> None:
    client.create(job())
    server.logs = {"tiny-r1-2": ["c"], "tiny-r0-1": ["1", "2", "3"], "tiny-r1-1": ["b"], "tiny-r0-3": None}
    for name, rank in (("tiny-r1-2", 1), ("tiny-r0-1", 0), ("tiny-r1-1", 1), ("tiny-r0-3", 0)):
        pod(server, name, rank)
    assert [str(line) for line in client.logs("tiny", tail=2)] == [
        "tiny-r0-1: 2",
        "tiny-r0-1: 3",
        "tiny-r1-1: b",
        "tiny-r1-2: c",
    ]
    assert [line.text for line in client.logs("tiny", rank=0, tail=0)] == ["1", "2", "3"]
    with pytest.raises(lmj.NotFound):
        list(client.logs("none"))


def test_logs_are_followed_into_pods_that_come_later(server: ApiServer, client: lmj.Client) -> None:
    client.create(job())
    server.status(PLACE, phase="Running")
    server.logs = {"tiny-r0-1": ["old"]}
    pod(server, "tiny-r0-1", 0)
    lines = client.logs("tiny", follow=True)
    assert next(lines).text == "old"
    server.logs["tiny-r0-1"] = ["old", "new"]
    assert next(lines).text == "new"
    server.logs["tiny-r0-2"] = None
    pod(server, "tiny-r0-2", 0)
    time.sleep(0.1)  # it has no container for some looks
    server.logs["tiny-r0-2"] = ["started"]
    line = next(lines)
    assert (line.pod, line.rank, line.text) == ("tiny-r0-2", 0, "started")
    server.status(PLACE, phase="Succeeded")
    server.logs["tiny-r0-1"] = ["old", "new", "last"]
    server.ended |= {"tiny-r0-1", "tiny-r0-2"}
    assert [line.text for line in lines] == ["last"]


async def test_the_client_for_loops_does_the_same(server: ApiServer, tmp_path: Path) -> None:
    async with lmj.AsyncClient(kubeconfig=server.kubeconfig(tmp_path)) as client:
        await client.create(job())
        server.status(PLACE, phase="Running")
        async with asyncio.timeout(SECONDS):
            async for seen in client.watch("tiny"):
                if seen.phase is lmj.Phase.RUNNING:
                    server.status(PLACE, phase="Succeeded")
        assert (await client.wait("tiny", timeout=SECONDS)).ended
        assert [line async for line in client.logs("tiny", follow=True)] == []


def test_in_a_program_that_runs_a_loop_the_client_without_one_works(client: lmj.Client) -> None:
    async def cell() -> str:
        return client.create(job()).name

    assert asyncio.run(cell()) == "tiny"


def test_both_clients_have_the_same_methods() -> None:
    def methods(kind: type) -> dict[str, list[tuple[str, Any]]]:
        found = inspect.getmembers(kind, lambda member: inspect.isfunction(member))
        shapes = {name: inspect.signature(method).parameters.values() for name, method in found if name[0] != "_"}
        return {name: [(str(p.replace(annotation=p.empty)), p.kind) for p in shape] for name, shape in shapes.items()}

    assert methods(lmj.Client) == methods(lmj.AsyncClient)
    for name in methods(lmj.Client):
        assert getattr(lmj.Client, name).__doc__
        assert getattr(lmj.AsyncClient, name).__doc__
