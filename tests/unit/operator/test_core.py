"""The small pure parts of the plan."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planned import view_of_one

from lmj_api.protocol import AgentState, CheckpointInfo, CheckpointTrouble, Progress, WorkerPhase, WorkerState
from lmj_api.spec import Recovery
from lmj_api.status import Condition, Incident, IncidentKind, JobStatus, Phase, RankStatus
from lmj_operator.backend.local.adopt import adopt
from lmj_operator.plan import PodObserved, PodPhase
from lmj_operator.plan.failures.budget import STEADY_SECONDS, STUCK_RESTARTS, backoff, charge, is_stuck
from lmj_operator.plan.failures.incidents import settle
from lmj_operator.plan.observe.facts import RankFacts
from lmj_operator.plan.observe.times import epoch_seconds, rfc3339
from lmj_operator.plan.report.conditions import conditions
from lmj_operator.plan.report.phases import LEGAL, TERMINAL, IllegalTransition, transition
from lmj_operator.plan.report.report import is_renewed, progress


def test_illegal_transitions_say_where_one_can_go() -> None:
    assert transition(Phase.PENDING, Phase.RUNNING) is Phase.RUNNING
    assert transition(Phase.FAILED, Phase.FAILED) is Phase.FAILED
    with pytest.raises(IllegalTransition, match="from Succeeded to Running; from Succeeded it can go to nowhere"):
        transition(Phase.SUCCEEDED, Phase.RUNNING)


def test_every_phase_has_a_row_and_terminal_ones_have_no_way_out() -> None:
    assert set(LEGAL) == set(Phase)
    assert {phase for phase, ways in LEGAL.items() if not ways} == TERMINAL


def test_backoff_doubles_to_its_limit() -> None:
    recovery = Recovery(backoff_seconds=1, max_backoff_seconds=10)
    assert [backoff(recovery, n) for n in range(11)] == [0, 0, 1, 2, 4, 8, 10, 10, 10, 10, 10]
    assert [backoff(recovery, n) for n in (14, 15)] == [10, 16], "what every job waits, where that is longer"


def test_who_fails_again_and_again_waits_in_the_end_whatever_the_spec_says() -> None:
    recovery = Recovery(backoff_seconds=0, max_restarts=1_000_000_000)
    assert [backoff(recovery, n) for n in range(11)] == [0] * 11
    assert [backoff(recovery, n) for n in range(11, 21)] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300]
    assert backoff(recovery, 10_000) == 300
    assert backoff(Recovery(max_backoff_seconds=0), 12) == 2
    assert backoff(Recovery(), 12) == 60, "what the job wants, where that is longer"


def test_who_failed_again_and_again_is_stuck_until_it_gets_on() -> None:
    def status(restarts: int, step: int | None, phase: Phase = Phase.RECOVERING, since: float = 100.0) -> JobStatus:
        progress = None if step is None else Progress(step=step, steps=100, epoch=0)
        row = {"restarts_without_progress": restarts, "restart_step": 7}
        return JobStatus(**row, progress=progress, phase=phase, phase_since=since)

    assert [is_stuck(status(restarts, 7), 110.0) for restarts in (0, STUCK_RESTARTS, STUCK_RESTARTS + 1)] == [False, False, True]
    assert is_stuck(status(9, None), 110.0)
    assert not is_stuck(status(9, 8), 110.0), "a new step"
    assert [is_stuck(status(9, 7, Phase.RUNNING), 100 + seconds) for seconds in (STEADY_SECONDS - 1, STEADY_SECONDS)] == [
        True,
        False,
    ]
    assert is_stuck(status(9, 7, Phase.RECOVERING), 1000.0), "it waits"


def test_a_new_step_resets_the_backoff_and_not_the_budget() -> None:
    recovery = Recovery(max_restarts=5)
    status = JobStatus(restarts=3, restarts_without_progress=3, restart_step=10)
    stuck = charge(recovery, status, step=10, failures=1, now=100.0)
    assert (stuck.restarts, stuck.without_progress, stuck.not_before, stuck.allowed) == (4, 4, 104.0, True)
    moved = charge(recovery, status, step=11, failures=1, now=100.0)
    assert (moved.without_progress, moved.not_before, moved.restart_step) == (1, 100.0, 11)
    assert not charge(recovery, status, step=11, failures=3, now=100.0).allowed


def test_what_the_cluster_takes_away_is_counted_and_not_charged() -> None:
    recovery = Recovery(max_restarts=2)
    status = JobStatus(restarts=4, restarts_before=2, disruptions=2, disruptions_without_progress=1, restart_step=10)
    taken = charge(recovery, status, step=10, failures=1, now=100.0, taken=["it was evicted"])
    assert (taken.restarts, taken.uncounted, taken.disruptions, taken.allowed) == (5, 3, 3, True)
    assert (taken.without_progress, taken.disrupted, taken.not_before) == (0, 2, 101.0)
    assert taken.reason == "replaced in 1 s, and not counted as a restart: it was evicted"
    both = charge(recovery, status, step=11, failures=2, now=100.0, taken=["it was evicted"])
    assert (both.restarts, both.uncounted, both.allowed) == (6, 3, False), "one of the two died by itself"
    assert (both.without_progress, both.disrupted, both.not_before) == (1, 1, 100.0)
    follows = charge(recovery, status.model_copy(update={"not_before": 103.0}), step=10, failures=0, now=100.0)
    assert (follows.disrupted, follows.not_before) == (1, 103.0)


def incident(view: int, step: int) -> Incident:
    return Incident(time=rfc3339(100.0), kind=IncidentKind.WORKER_EXITED, rank=0, pod="j-r0-1", message="", view=view, step=step)


def test_incidents_of_one_outage_share_its_cost() -> None:
    both = [incident(1, 50), incident(1, 50)]
    views = [view_of_one(n, step, reason="goes on") for n, step in ((1, 0), (2, 40))]
    same, lost = settle(both, views[0], step=51, done=False, now=110.0, resumed=0)
    assert (same, lost) == (both, 0)
    unknown, lost = settle(both, views[1], step=45, done=False, now=110.0)
    assert (unknown, lost) == (both, 0), "where it began, nobody knows yet"
    told, lost = settle(both, views[1], step=45, done=False, now=110.0, resumed=40)
    assert lost == 10
    assert [i.steps_lost for i in told] == [10, 0]
    assert [i.recovery for i in told] == ["view 2: goes on"] * 2
    assert [i.seconds for i in told] == [None, None]
    done, lost = settle(told, views[1], step=51, done=False, now=112.5, resumed=40)
    assert lost == 0
    assert [i.seconds for i in done] == [12.5, 12.5]


def test_what_is_known_of_a_step_stays_while_it_is_evaluated() -> None:
    old = Progress(step=5, steps=9, epoch=1.0, loss=0.5, samples_per_second=10.0)
    now = WorkerState(
        incarnation=1, phase=WorkerPhase.RUNNING, view=1, progress=Progress(step=5, steps=9, epoch=1.0, activity="evaluate")
    )
    agent = AgentState(pod="j-r0-1", rank=0, started=0.0, worker=now)
    pod = PodObserved("j-r0-1", 0, 1, PodPhase.RUNNING, 0.0, agent=agent)
    facts = RankFacts(rank=0, serial=1, pod=pod, seen=True, incarnation=1, known=RankStatus(rank=0, state="Running"))
    told = progress((facts,), None, old)
    assert told is not None
    assert (told.loss, told.samples_per_second, told.activity) == (0.5, 10.0, "evaluate")
    assert progress((facts,), None, old.model_copy(update={"step": 6})) == now.progress


@given(st.floats(0, 4e9))
def test_times_come_back(seconds: float) -> None:
    assert epoch_seconds(rfc3339(seconds)) == pytest.approx(seconds, abs=0.002)


def test_a_condition_keeps_its_time_until_its_status_changes() -> None:
    first = conditions([], Phase.PENDING, "", 1, 100.0)
    second = {c.type: c for c in conditions(first, Phase.RUNNING, "", 1, 200.0)}
    assert second["Available"].last_transition_time == rfc3339(200.0)
    assert second["Progressing"].last_transition_time == rfc3339(100.0)


def test_adopting_a_failed_job_gives_it_a_new_budget() -> None:
    old = JobStatus(
        phase=Phase.FAILED, restarts=11, not_before=5.0, serials={"0": 4}, finished=9.0, disruptions_without_progress=3
    )
    new = adopt(old, "job", 10.0)
    assert new.disruptions_without_progress == 0
    assert (new.phase, new.restarts - new.restarts_before, new.not_before, new.finished) == (Phase.SUSPENDED, 0, None, None)
    assert new.serials == {"0": 4}
    assert new.incidents == []


def test_a_succeeded_job_is_not_adopted() -> None:
    old = JobStatus(phase=Phase.SUCCEEDED)
    assert adopt(old, "job", 10.0) is old


def test_a_checkpoint_is_newer_by_its_step_for_each_pod_has_a_clock_of_its_own() -> None:
    first = CheckpointInfo(name="step-000000020-v1", step=20, time=90.0)
    second = CheckpointInfo(name="step-000000040-v2", step=40, time=85.0)
    assert is_renewed(None, first)
    assert is_renewed(first, second)
    assert not is_renewed(first, first)
    assert not is_renewed(second, first), "the newer one turned out to be torn"
    assert not is_renewed(first, None)


def test_checkpoints_that_fail_are_a_condition_until_one_is_durable() -> None:
    def seen(
        old: list[Condition],
        now: float,
        trouble: CheckpointTrouble | None,
        saved: CheckpointInfo | None,
        renewed: bool = False,
    ) -> list[Condition]:
        return conditions(old, Phase.RUNNING, "", 1, now, trouble=trouble, saved=saved, renewed=renewed)

    def stale(made: list[Condition]) -> Condition | None:
        return next((c for c in made if c.type == "CheckpointStale"), None)

    saved = CheckpointInfo(name="step-000000020-v1", step=20, time=90.0)
    assert stale(seen([], 95.0, None, saved)) is None
    first = seen([], 101.0, CheckpointTrouble(step=40, since=100.0, error="disk full"), saved)
    at = stale(first)
    assert at is not None
    assert (at.status, at.reason, at.last_transition_time) == ("True", "WriteFailed", rfc3339(100.0))
    assert at.message == "the checkpoint of step 40 failed: disk full; the newest is of step 20"
    second = seen(first, 110.0, CheckpointTrouble(step=60, since=100.0, error="disk full"), None)
    at = stale(second)
    assert at is not None
    assert at.message == "the checkpoint of step 60 failed: disk full; there is none"
    assert at.last_transition_time == rfc3339(100.0)
    refused = stale(
        seen(second, 115.0, CheckpointTrouble(step=70, since=100.0, error="renew the Secret keys", refused=True), None)
    )
    assert refused is not None
    assert (refused.reason, refused.last_transition_time) == ("CredentialsRefused", rfc3339(100.0))
    assert refused.message == "the checkpoint of step 70 failed: renew the Secret keys; there is none"
    # Another pod of rank 0 knows of no trouble, and its checkpoints are the old ones, whatever their maker's clock said.
    assert stale(seen(second, 120.0, None, saved.model_copy(update={"time": 130.0}))) == at
    mended = seen(second, 130.0, None, saved.model_copy(update={"step": 80, "time": 95.0}), renewed=True)
    at = stale(mended)
    assert at is not None
    assert (at.status, at.message, at.last_transition_time) == ("False", "the checkpoint of step 80 is durable", rfc3339(130.0))
    assert stale(seen(mended, 140.0, None, saved)) == at


def test_totals_are_of_all_starts_and_the_budget_is_of_the_newest() -> None:
    view = view_of_one(3)
    killed = adopt(JobStatus(phase=Phase.RUNNING, view=view, restarts=3, steps_lost=46), "job", 10.0)
    assert (killed.restarts, killed.restarts_before, killed.steps_lost) == (4, 4, 46)
    recovery = Recovery(max_restarts=1)
    first = charge(recovery, killed, 0, 1, 20.0)
    assert (first.allowed, first.restarts) == (True, 5)
    assert first.reason.startswith("restart 1 of 1")
    assert not charge(recovery, killed.model_copy(update={"restarts": 5}), 0, 1, 30.0).allowed
    # One that was suspended, by Ctrl-C, was not interrupted.
    assert adopt(JobStatus(phase=Phase.SUSPENDED, view=view, restarts=3), "job", 10.0).restarts == 3
