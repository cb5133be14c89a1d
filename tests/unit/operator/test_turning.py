"""When the next cut takes over, and when it does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from planned import job_spec

from lmj_api.cut import Cut
from lmj_api.protocol import AgentState, Holding, WorkerPhase, WorkerState
from lmj_api.status import IncidentKind, JobStatus, Phase, RankStatus, RecutFollower, RecutStatus
from lmj_api.view import Member, Resume, View
from lmj_operator.plan import LeaveView, Observed, PodObserved, PodPhase
from lmj_operator.plan.moves.moved import FOLLOWER_SECONDS
from lmj_operator.plan.recut.cuts import with_cut
from lmj_operator.plan.recut.turning import NO_TURN, Turn, turned
from lmj_operator.plan.scene import scene_of

ONE, TWO = Cut(stages=1), Cut(stages=2)
NOW, STEP = 1000.0, 9
READY, FOLLOWING, RUNNING = WorkerPhase.READY, WorkerPhase.FOLLOWING, WorkerPhase.RUNNING


def pod(rank: int, serial: int, cut: Cut, phase: WorkerPhase, *, step: int | None = STEP, **more: Any) -> PodObserved:
    name = f"j-r{rank}-{serial}"
    prepared, handover, lost = more.get("prepared", False), more.get("handover", 0), more.get("lost")
    held = Holding(step=step, prepared=prepared) if step is not None else None
    view = 7 if cut == ONE else 0
    worker = WorkerState(incarnation=1, phase=phase, view=view, address=name, holding=held, since=NOW, lost_rank=lost)
    agent = AgentState(pod=name, rank=rank, started=0.0, worker=worker, handover=handover)
    return PodObserved(name, rank, serial, PodPhase.RUNNING, 0.0, agent=agent, cut=cut)


LEFT = pod(0, 1, ONE, READY, handover=7)
TAKES = (pod(0, 2, TWO, READY), pod(1, 1, TWO, READY))


def turn(*pods: PodObserved, old: PodObserved = LEFT, since: float = NOW, wanted: int = 2, **changes: Any) -> Turn:
    """One stage trained in view 7, and two are to take over."""
    entries = [RecutFollower(rank=0, serial=2, pod="j-r0-2", state="InSync"), RecutFollower(rank=1, serial=1, pod="j-r1-1")]
    status = JobStatus(
        phase=Phase.RUNNING,
        cut=ONE,
        serials={"0": 1},
        made={"0": 2, "1": 1},
        left_since=since,
        view=View(
            number=7,
            members=[Member(rank=0, pod="j-r0-1", incarnation=1, address="j-r0-1")],
            cut=ONE,
            resume=Resume(step=3),
            reason="test",
        ),
        ranks=[RankStatus(rank=0, pod="j-r0-1", node="node-1", state="Running", incarnation=1)],
        recut=RecutStatus(cut=TWO, state="InSync", followers=entries),
    ).model_copy(update=changes)
    seen = with_cut(Observed("j", job_spec(wanted), status, (old, *(pods or TAKES))))
    return turned(scene_of(seen, NOW))


def test_the_next_view_is_of_the_next_cut_once_all_have_the_step() -> None:
    made = turn()
    assert made.scene is not None
    assert made.choice is not None
    view = made.choice.view
    assert view is not None
    assert (view.number, view.cut, [m.pod for m in view.members]) == (8, TWO, ["j-r0-2", "j-r1-1"])
    assert (view.resume.step, view.resume.goes_on) == (STEP, True)
    assert made.choice.reason == "the layers are in 2 stages now; goes on from step 9, which all have in memory"
    seen = made.scene.observed
    assert (seen.spec.pipeline.cut, seen.wanted_cut, seen.status.cut) == (TWO, None, TWO)
    assert [f.pod.name for f in made.scene.ranks if f.pod is not None] == ["j-r0-2", "j-r1-1"]
    assert [pod.name for pod in seen.apart] == ["j-r0-1"]
    assert seen.status.serials == {"0": 2, "1": 1}
    (incident,) = made.scene.changes["incidents"]
    assert (incident.kind, incident.rank, incident.pod, incident.node) == (IncidentKind.RECUT, 0, "j-r0-1", "node-1")
    assert incident.message == "recut from 1 stage to 2 stages at step 9"


def test_one_that_has_not_heard_of_the_commit_hears_it_from_the_other() -> None:
    behind = pod(1, 1, TWO, READY, step=STEP - 1, prepared=True)
    made = turn(TAKES[0], behind)
    assert made.choice is not None
    assert made.choice.view is not None
    assert made.choice.view.resume == Resume(step=STEP, told_by=0)


def test_one_that_still_follows_is_told_to_leave_and_waited_for() -> None:
    follows = pod(1, 1, TWO, FOLLOWING)
    made = turn(TAKES[0], follows, since=NOW - 0.5)
    assert made == Turn(wait=FOLLOWER_SECONDS - 0.5, actions=(LeaveView("j-r1-1", 7),))
    assert turn(TAKES[0], follows, since=NOW - FOLLOWER_SECONDS) == NO_TURN, "the old cut trains on"


@pytest.mark.parametrize(
    "why",
    [
        {"old": pod(0, 1, ONE, READY)},
        {"old": pod(0, 1, ONE, READY, handover=7, lost=1)},
        {"old": pod(0, 1, ONE, RUNNING, handover=7)},
        {"old": pod(0, 1, ONE, READY, handover=7, step=None)},
        {"wanted": 3},
        {"wanted": 1},
        {"phase": Phase.SUSPENDING},
        {"recut": None},
        {"old": pod(0, 5, ONE, READY, handover=7), "serials": {"0": 5}},
        {"restarts_without_progress": 4, "restart_step": STEP, "since": NOW - FOLLOWER_SECONDS},
    ],
    ids=[
        "nobody asked",
        "a peer was lost",
        "it trains",
        "no state",
        "another cut",
        "as it is",
        "it stops",
        "none",
        "overtaken",
        "no belief",
    ],
)
def test_else_the_old_cut_trains_on(why: dict[str, Any]) -> None:
    assert turn(**why) == NO_TURN


@pytest.mark.parametrize(
    "other",
    [
        pod(1, 1, TWO, READY, step=STEP - 1),
        pod(1, 1, TWO, READY, step=STEP + 1),
        pod(1, 1, TWO, READY, step=None),
        pod(1, 1, TWO, RUNNING),
        replace(pod(1, 1, TWO, READY), phase=PodPhase.GONE, agent=None),
    ],
    ids=["behind", "ahead", "empty", "elsewhere", "gone"],
)
def test_one_that_lacks_the_step_is_not_gone_on_with(other: PodObserved) -> None:
    assert turn(TAKES[0], other).scene is None
    assert turn(TAKES[0], other, since=NOW - FOLLOWER_SECONDS) == NO_TURN
