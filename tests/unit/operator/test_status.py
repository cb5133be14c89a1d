"""What the stored status says of a pass: of each rank, of the phase, and at a job's end."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.operator.seen import facts, observed, pod, view, worker

from lmj_api.cut import Cut
from lmj_api.protocol import DELIVERY_SECONDS, PUSH_SECONDS, CheckpointInfo, Progress, WorkerPhase
from lmj_api.spec import Hub, Tracker, TrackerKind
from lmj_api.status import Condition, JobStatus, Phase, RankStatus, RecutFollower, RecutStatus
from lmj_api.topology import Topology
from lmj_operator.cli.lines import changes
from lmj_operator.controller.notes import notes
from lmj_operator.plan import Drain, PodObserved, PodPhase, PodWait
from lmj_operator.plan.ending import COMPLETION_GRACE_SECONDS, completed
from lmj_operator.plan.observe.facts import rank_facts
from lmj_operator.plan.plan import CHANGING_SECONDS
from lmj_operator.plan.pods.wants import Want
from lmj_operator.plan.report.conditions import PUBLISHED, conditions
from lmj_operator.plan.report.report import is_stale, rank_table
from lmj_operator.plan.scene import scene_of
from lmj_operator.plan.status import status_of
from lmj_operator.plan.suspension import suspend, wake


@pytest.mark.parametrize(("heartbeat", "age"), [(97.46, 2.5), (100.0, 0.0), (100.4, 0.0), (0.0, None)])
def test_the_age_of_a_heartbeat_is_never_negative(heartbeat: float, age: float | None) -> None:
    """The pod's clock may be ahead."""
    ranks = (facts(0, pod(0, 1, worker(heartbeat=heartbeat))),)
    assert rank_table(Topology(1), ranks, {0: Want(1, 1)}, (), 100.0, {})[0].heartbeat_seconds == age


@pytest.mark.parametrize(("seconds", "told"), [(0.123456, 0.123), (123456.7, 123000.0), (0.0, 0.0), (None, None)])
def test_what_a_step_takes_has_three_digits(seconds: float | None, told: float | None) -> None:
    ranks = (facts(0, pod(0, 1, worker(compute_seconds=seconds))),)
    assert rank_table(Topology(1), ranks, {0: Want(1, 1)}, (), 100.0, {})[0].compute_seconds == told


def test_each_rank_is_told_with_its_place() -> None:
    ranks = tuple(facts(rank, pod(rank, 1, worker())) for rank in range(6))
    table = rank_table(Topology(3, 2), ranks, {rank: Want(1, 1) for rank in range(6)}, (), 100.0, {})
    assert [(entry.rank, entry.replica, entry.stage) for entry in table] == [
        (0, 0, 0),
        (1, 0, 1),
        (2, 0, 2),
        (3, 1, 0),
        (4, 1, 1),
        (5, 1, 2),
    ]


@pytest.mark.parametrize(
    ("seen", "known", "state"),
    [
        (None, RankStatus(rank=0, pod="j-r0-1", state="", incarnation=1), "NoPod"),
        (pod(0, 2), RankStatus(rank=0, pod="j-r0-2", state="", incarnation=1), "Unreachable"),
        (pod(0, 2), RankStatus(rank=0, pod="j-r0-2", state="", incarnation=0), "Pending"),
        (pod(0, 2), RankStatus(rank=0, pod="j-r0-1", state="", incarnation=1), "Pending"),
        (pod(0, 2, worker()), RankStatus(rank=0, state=""), "Running"),
    ],
)
def test_a_pod_that_has_not_answered_yet_is_not_unreachable(seen: PodObserved | None, known: RankStatus, state: str) -> None:
    table = rank_table(Topology(1), (facts(0, seen, known=known),), {0: Want(2, 1)}, (), 100.0, {})
    assert [rank.state for rank in table] == [state]


@pytest.mark.parametrize(
    ("before", "phase", "since"), [(50.0, Phase.PENDING, 50.0), (50.0, Phase.RUNNING, 100.0), (None, Phase.PENDING, 100.0)]
)
def test_a_phase_keeps_its_time_while_it_lasts(before: float | None, phase: Phase, since: float) -> None:
    scene = scene_of(observed(status=JobStatus(phase=Phase.PENDING, phase_since=before)), 100.0)
    assert status_of(scene, phase, "").phase_since == since


@pytest.mark.parametrize(("left", "wake"), [(5.0, CHANGING_SECONDS), (0.25, 0.25)])
def test_the_last_ranks_are_waited_for_no_longer_than_they_have(left: float, wake: float) -> None:
    pods = pod(0, 1, worker(WorkerPhase.COMPLETED)), pod(1, 1, worker())
    since = 100.0 - COMPLETION_GRACE_SECONDS + left
    status = JobStatus(phase=Phase.RUNNING, view=view(*pods), left_since=since, serials={"0": 1, "1": 1})
    plan = completed(scene_of(observed(*pods, status=status), 100.0))
    assert plan is not None
    assert (plan.status.phase, plan.wake_after, plan.due_after) == (Phase.RUNNING, wake, left)


def test_a_job_that_stopped_early_says_why() -> None:
    ended = Progress(step=7, steps=12, epoch=1.75, stopped="stopped early at step 7")
    pods = (
        pod(0, 1, worker(WorkerPhase.COMPLETED).model_copy(update={"progress": ended})),
        pod(1, 1, worker(WorkerPhase.COMPLETED)),
    )
    status = JobStatus(phase=Phase.RUNNING, view=view(*pods), left_since=100.0, serials={"0": 1, "1": 1})
    plan = completed(scene_of(observed(*pods, status=status), 100.0))
    assert plan is not None
    assert (plan.status.phase, plan.status.message) == (Phase.SUCCEEDED, "stopped early at step 7; the model is saved")
    succeeded = next(c for c in plan.status.conditions if c.type == "Succeeded")
    assert (succeeded.status, succeeded.message) == ("True", "stopped early at step 7; the model is saved")
    assert plan.status.progress is not None
    assert plan.status.progress.stopped == "stopped early at step 7"


TRACKER = Tracker(kind=TrackerKind.TRACKIO, project="p")


@pytest.mark.parametrize(
    ("phase", "told", "since", "over"),
    [
        (WorkerPhase.COMPLETED, {}, 100.0, False),
        (WorkerPhase.COMPLETED, {}, 100.0 - DELIVERY_SECONDS + 0.5, False),
        (WorkerPhase.COMPLETED, {}, 100.0 - DELIVERY_SECONDS, True),
        (WorkerPhase.COMPLETED, {"delivered": True}, 100.0, True),
        (WorkerPhase.EXITED, {}, 80.0, True),
    ],
)
def test_a_job_that_is_shown_elsewhere_ends_when_all_is_told_or_time_is_up(
    phase: WorkerPhase, told: dict[str, bool], since: float, over: bool
) -> None:
    pods = pod(0, 1, worker(phase), agent=told), pod(1, 1, worker(WorkerPhase.COMPLETED))
    status = JobStatus(phase=Phase.RUNNING, view=view(*pods), left_since=since, serials={"0": 1, "1": 1})
    seen = observed(*pods, status=status)
    plain = completed(scene_of(seen, 100.0))
    assert plain is not None
    assert plain.status.phase is Phase.SUCCEEDED, "of a job that is shown nowhere else nothing is waited for"
    output = seen.spec.output.model_copy(update={"trackers": [TRACKER]})
    plan = completed(scene_of(replace(seen, spec=seen.spec.model_copy(update={"output": output})), 100.0))
    assert plan is not None
    assert plan.status.phase is (Phase.SUCCEEDED if over else Phase.RUNNING)
    assert over or plan.due_after == since + DELIVERY_SECONDS - 100.0


@pytest.mark.parametrize(
    ("agent", "since", "phase", "said"),
    [
        ({}, 100.0, Phase.RUNNING, ("False", "Pushing", "it is being pushed to me/tiny")),
        (
            {"publication": {"url": "http://hub/me/tiny", "commit": "c"}},
            100.0,
            Phase.RUNNING,
            ("True", "Pushed", "http://hub/me/tiny, commit c"),
        ),
        (
            {"publication": {"problem": "the hub answers 403"}, "delivered": True},
            100.0,
            Phase.SUCCEEDED,
            ("False", "PushFailed", "the hub answers 403; lmj push "),
        ),
        (
            {},
            100.0 - PUSH_SECONDS - DELIVERY_SECONDS,
            Phase.SUCCEEDED,
            ("False", "NotPushed", "the pod of rank 0 ended, or was too slow"),
        ),
    ],
)
def test_what_comes_of_a_push_is_a_condition_and_fails_no_job(
    agent: dict[str, Any], since: float, phase: Phase, said: tuple[str, str, str]
) -> None:
    pods = pod(0, 1, worker(WorkerPhase.COMPLETED), agent=agent), pod(1, 1, worker(WorkerPhase.COMPLETED))
    status = JobStatus(phase=Phase.RUNNING, view=view(*pods), left_since=since, serials={"0": 1, "1": 1})
    seen = observed(*pods, status=status)
    output = seen.spec.output.model_copy(update={"hub": Hub(repository="me/tiny")})
    seen = replace(seen, spec=seen.spec.model_copy(update={"output": output}))
    plan = completed(scene_of(seen, 100.0))
    assert plan is not None
    assert plan.status.phase is phase
    (found,) = [c for c in plan.status.conditions if c.type == PUBLISHED]
    assert (found.status, found.reason, found.message.startswith(said[2])) == (*said[:2], True)
    assert [line for line in changes(status, plan.status) if line.startswith("hub: ")] == [f"hub: {found.message}"]
    told = [note for note in notes(status, plan.status) if note.message == found.message]
    assert [note.warning for note in told] == ([] if said[1] == "Pushing" else [said[0] == "False"])
    # Seen again, it is the same since then, and is not told again.
    later = completed(scene_of(replace(seen, status=plan.status.model_copy(update={"phase": Phase.RUNNING})), 101.0))
    assert later is not None
    assert phase is Phase.SUCCEEDED or [c for c in later.status.conditions if c.type == PUBLISHED] == [found]


def test_a_pod_that_is_gone_delivers_nothing() -> None:
    gone = replace(pod(0, 1), phase=PodPhase.GONE)
    pods = gone, pod(1, 1, worker(WorkerPhase.COMPLETED))
    status = JobStatus(phase=Phase.RUNNING, view=view(*pods), left_since=80.0, serials={"0": 1, "1": 1})
    seen = observed(*pods, status=status)
    output = seen.spec.output.model_copy(update={"trackers": [TRACKER]})
    plan = completed(scene_of(replace(seen, spec=seen.spec.model_copy(update={"output": output})), 100.0))
    assert plan is not None
    assert plan.status.phase is Phase.SUCCEEDED


@pytest.mark.parametrize(("since", "told"), [(97.0, True), (97.5, False)])
def test_a_pod_that_waits_is_told_of_after_a_while(since: float, told: bool) -> None:
    waits = pod(0, 1, waits=PodWait("Unschedulable", "no node has room", since), phase=PodPhase.PENDING)
    assert (scene_of(observed(waits), 100.0).waiting is not None) is told


@pytest.mark.parametrize("phase", list(Phase))
def test_the_phase_is_a_condition_too(phase: Phase) -> None:
    holds = {c.type for c in conditions([], phase, "", 1, 100.0) if c.status == "True"}
    active = phase in (Phase.PENDING, Phase.RUNNING, Phase.RECOVERING, Phase.SUSPENDING)
    alone = {Phase.RUNNING: {"Available"}}.get(phase, set() if active else {phase.value})
    assert holds == alone | ({"Progressing"} if active else set())


def test_checkpoints_are_stale_until_there_is_a_newer_one() -> None:
    saved = CheckpointInfo(name="step-000000020-v1", step=20, time=90.0)
    stale = Condition(
        type="CheckpointStale", status="True", reason="WriteFailed", message="", last_transition_time="2026-11-21T07:41:35Z"
    )
    status = JobStatus(conditions=[stale], checkpoint=saved)

    def is_stale_with(newest: CheckpointInfo) -> bool:
        seen = observed(pod(0, 2, worker(), agent={"checkpoints": [newest], "scanned": True}), status=status, ranks=1)
        return is_stale(seen, rank_facts(seen))

    assert is_stale_with(saved)
    assert not is_stale_with(saved.model_copy(update={"step": 40, "name": "step-000000040-v1"}))


def test_who_leaves_already_is_not_told_to_when_the_job_is_suspended() -> None:
    pods = pod(0, 1, worker(), agent={"draining": True}), pod(1, 1, worker())
    status = JobStatus(phase=Phase.RUNNING, view=view(*pods), serials={"0": 1, "1": 1})
    assert suspend(scene_of(observed(*pods, status=status), 100.0)).actions == (Drain("j-r1-1"),)


def test_a_job_that_wakes_is_looked_at_again_at_once() -> None:
    """Its pods are made then, with serials that are durable."""
    plan = wake(scene_of(observed(status=JobStatus(phase=Phase.SUSPENDED, serials={"0": 1, "1": 4})), 100.0))
    assert (plan.status.phase, plan.status.serials) == (Phase.PENDING, {"0": 2, "1": 5})
    assert (plan.actions, plan.wake_after) == ((), 0.0)


def test_another_cut_is_a_condition_while_it_is_under_way() -> None:
    def told(recut: RecutStatus | None, before: Sequence[Condition] = ()) -> Condition | None:
        made = conditions(list(before), Phase.RUNNING, "", 1, 100.0, recut=recut)
        return next((c for c in made if c.type == "Recutting"), None)

    assert told(None) is None
    pods = [
        RecutFollower(rank=0, serial=2, pod="j-r0-2", state="InSync"),
        RecutFollower(rank=1, serial=1, pod="j-r1-1", state="Starting", message="Unschedulable: no room"),
    ]
    now = told(RecutStatus(cut=Cut(stages=2), state="Starting", followers=pods))
    assert now is not None
    assert (now.status, now.reason) == ("True", "Starting")
    assert now.message == "the layers are to be in 2 stages: 1 of 2 pods are in sync; pod j-r1-1 waits: Unschedulable: no room"
    over = told(RecutStatus(cut=Cut(stages=9), given_up="the model has 4 layers"), [now])
    assert over is not None
    assert (over.status, over.reason, over.message) == ("False", "GivenUp", "not into 9 stages: the model has 4 layers")
    done = told(None, [now])
    assert done is not None
    assert (done.status, done.reason) == ("False", "NothingRecut")
