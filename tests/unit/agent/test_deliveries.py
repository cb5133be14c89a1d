"""What an agent has done beside its worker: trackers are fed while it leads, and told the rest at the end; none of it is training's."""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from jobs import job_document

from lmj_api.protocol import EventKind, WorkerPhase
from lmj_api.spec import LiveMigrationJob
from lmj_api.tokens import HUB, STORE_FOLDER, STORE_SECRET, references, tracker_token
from lmj_api.view import Member, Resume, View
from lmj_trainer.agent import deliveries as deliveries_module
from lmj_trainer.agent.deliveries import Deliveries, leads, of_store, without_tokens
from lmj_trainer.agent.helper import Helper
from lmj_trainer.agent.starting import hub_environment, tracker_environment

pytestmark = pytest.mark.integration

PUSHED = '{"url": "http://hub/me/tiny", "commit": "c1"}'
FAKE = str(Path(__file__).with_name("fake_helper.py"))
POD = "job-r0-1"
RUN = "0a1b2c3d-1111-2222-3333-444455556666"
MLFLOW = {"kind": "MLflow", "project": "p", "uri": "http://127.0.0.1:1", "token": {"name": "tracking", "key": "token"}}
SPACE = {"kind": "Trackio", "project": "p", "space": "me/board", "token": {"name": "hub", "key": "write"}}
WORKS = "ready view commit:3 wait"
COMPLETES = 'ready view commit:3 say:{"time":1,"kind":"completed"} wait'

Make = Callable[..., Any]


def job(output: Path, *trackers: dict[str, Any], hub: dict[str, Any] | None = None) -> LiveMigrationJob:
    document = job_document(output)
    document["metadata"] |= {"uid": RUN, "creationTimestamp": "2026-11-24T00:00:00Z"}
    document["spec"]["output"]["trackers"] = list(trackers)
    document["spec"]["output"]["hub"] = hub
    return LiveMigrationJob.model_validate(yaml.safe_load(yaml.safe_dump(document)))


def of(number: int, *pods: str) -> View:
    """A view whose last member is this pod's rank 2."""
    members = [Member(rank=2 if pod == POD else 0, pod=pod, incarnation=1, address="127.0.0.1:1") for pod in pods]
    return View(number=number, members=members, resume=Resume(step=0), reason="for the test")


class Delivered:
    """A supervisor's deliveries, whose helpers do as ``acts`` say, the last one again after that."""

    def __init__(self, it: Any, folder: Path, *acts: str, trackers: int = 1, push: str | None = None) -> None:
        self.it, self.log, self.folder = it, folder / "heard", folder
        self.acts = list(acts)
        made = job(folder, *[MLFLOW] * trackers, hub=None if push is None else {"repository": "me/tiny"})
        self.deliveries = Deliveries(made, it.supervisor, self.start, lambda: self.push(push or ""))
        self.task = asyncio.create_task(self.deliveries.run())

    def start(self, number: int) -> Helper:
        act = self.acts.pop(0) if len(self.acts) > 1 else self.acts[0]
        return Helper.start([sys.executable, "-S", FAKE, str(self.log), act], {}, self.it.children)

    def push(self, says: str) -> Helper:
        return Helper.start([sys.executable, "-S", "-c", f"print({says!r})"], {}, self.it.children)

    def heard(self) -> list[str]:
        return [line.split()[0] for line in self.log.read_text().splitlines()] if self.log.exists() else []

    def warned(self) -> list[str]:
        return [e.message for e in self.it.supervisor.log.after(0) if e.kind is EventKind.WARNING]

    async def until(self, holds: Callable[[], object], seconds: float = 20.0) -> None:
        async with asyncio.timeout(seconds):
            while not holds():
                assert not self.task.done() or not self.task.exception()
                await asyncio.sleep(0.01)


@pytest.fixture
async def make(rig: Make, make_view: Make, tmp_path: Path) -> AsyncIterator[Make]:
    made: list[Delivered] = []

    async def begin(
        *acts: str, worker: str = WORKS, view: View | None = None, rank: int = 0, trackers: int = 1, push: str | None = None
    ) -> Delivered:
        it = rig(worker, rank=rank)
        made.append(Delivered(it, tmp_path, *acts, trackers=trackers, push=push))
        await it.supervisor.put_worker(1)
        await it.until(lambda s: s.worker.phase is WorkerPhase.READY)
        it.supervisor.put_view(view or make_view(1))
        await it.until(lambda s: s.worker.progress and s.worker.progress.step == 3)
        return made[-1]

    yield begin
    for each in made:
        each.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await each.task
        await each.deliveries.close()


async def test_a_tracker_is_fed_while_its_pod_leads_and_told_the_rest_at_the_end(make: Make) -> None:
    it = await make("warns", worker=COMPLETES)
    await it.until(lambda: it.it.state.delivered)
    assert it.heard()[-1] == "end"
    assert it.warned() == ["it is slow"]
    (line,) = [json.loads(text) for text in (it.folder / ".views.jsonl").read_text().splitlines()]
    assert (line["run"], line["view"], line["step"], line["reason"]) == (RUN, 1, 0, "for the test")


async def test_another_s_view_is_not_this_pod_s_to_show(make: Make) -> None:
    it = await make("good", view=of(1, "job-r0-7", POD), rank=2)
    await it.it.until(lambda s: s.worker.progress.step == 3)
    assert leads(it.it.state) is None
    assert it.heard() == []
    assert not (it.folder / ".views.jsonl").exists()


async def test_who_leads_no_more_holds_and_lets_go(make: Make) -> None:
    it = await make("good", view=of(1, POD), rank=2, worker="ready view commit:3 leave view wait")
    await it.until(lambda: it.heard() == ["begins", "go"])
    it.it.supervisor.leave_view(1)
    await it.until(lambda: it.heard() == ["begins", "go", "hold"])
    it.it.supervisor.put_view(of(2, "job-r0-7", POD))
    await it.until(lambda: it.heard() == ["begins", "go", "hold", "let"])
    assert not it.it.state.delivered


async def test_a_process_that_dies_is_started_again_and_told_of_once(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliveries_module, "PAUSES", (0.01, 0.01, 0.01))
    it = await make("dies", "dies", "good")
    await it.until(lambda: it.heard()[:3] == ["begins"] * 3)
    assert it.warned() == ["output.trackers[0] (MLflow): its process died with exit code 7; another is started"]


async def test_one_that_always_dies_is_left_out_and_the_job_ends_all_the_same(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliveries_module, "PAUSES", (0.01, 0.01))
    it = await make("dies", worker="ready view commit:3 drain exit:0")
    await it.until(lambda: len(it.warned()) == 2)
    assert (
        it.warned()[1] == "output.trackers[0] (MLflow) is left out: its process died, at last with exit code 7; see the pod's log"
    )
    assert it.it.state.worker.phase is WorkerPhase.RUNNING


async def test_one_whose_library_is_missing_is_left_out_at_once(make: Make) -> None:
    it = await make("missing", worker=COMPLETES)
    await it.until(lambda: it.it.state.delivered)
    assert it.heard() == ["begins"]
    assert it.warned() == ["output.trackers[0] (MLflow) is left out: what it needs is missing in this image; see the pod's log"]


async def test_one_that_does_not_end_is_killed_and_the_job_is_delivered(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliveries_module, "END_SECONDS", 0.2)
    monkeypatch.setattr(deliveries_module, "LEAVE_SECONDS", 0.2)
    it = await make("deaf", worker=COMPLETES)
    await it.until(lambda: it.it.state.delivered)
    assert it.warned() == [f"output.trackers[0] did not end in time: lmj track {it.folder} sends what it lacks"]


@pytest.mark.parametrize(
    ("says", "came"),
    [
        (PUSHED, ("http://hub/me/tiny", "c1", None)),
        ('{"problem": "the hub answers 403"}', (None, None, "the hub answers 403")),
        ("nothing of ours", (None, None, "the process that pushes it ended with exit code 0; see the pod's log")),
    ],
)
async def test_what_came_of_a_push_is_known_before_the_results_are_delivered(
    make: Make, says: str, came: tuple[str | None, ...]
) -> None:
    it = await make("good", worker=COMPLETES, trackers=0, push=says)
    state = await it.it.until(lambda s: s.delivered)
    told = state.publication
    assert (told.url, told.commit, told.problem) == came


def test_a_credential_reaches_the_process_that_it_is_for_and_no_other(tmp_path: Path) -> None:
    it = job(tmp_path, MLFLOW, SPACE)
    assert {name: (key.name, key.key) for name, key in references(it.spec.output).items()} == {
        tracker_token(0): ("tracking", "token"),
        tracker_token(1): ("hub", "write"),
    }
    pod = {"PATH": "/bin", tracker_token(0): "first\n", tracker_token(1): "second"}
    assert without_tokens(pod) == {"PATH": "/bin"}
    assert tracker_environment(it, 0, pod) == {"PATH": "/bin", "MLFLOW_TRACKING_TOKEN": "first"}
    assert tracker_environment(it, 1, pod) == {"PATH": "/bin", "HF_TOKEN": "second"}
    assert hub_environment({**pod, HUB: "third"}) == {"PATH": "/bin", "HF_TOKEN": "third"}
    bucket = {STORE_FOLDER: "/etc/lmj/store", STORE_SECRET: "bucket"}
    assert of_store({**pod, **bucket}) == bucket, "that one is the worker's"
    assert without_tokens({**pod, **bucket}) == {"PATH": "/bin"}
    # lmj run: the environment's own.
    assert tracker_environment(it, 0, {"MLFLOW_TRACKING_TOKEN": "mine"}) == {"MLFLOW_TRACKING_TOKEN": "mine"}
