"""Notes: what people are told of a job when its status changes."""

from planned import view_of_one

from lmj_api.protocol import Evaluation, Progress
from lmj_api.status import Condition, Incident, IncidentKind, JobStatus, Phase
from lmj_operator.controller.notes import Note, notes
from lmj_operator.plan.failures.failures import Failure, Remedy
from lmj_operator.plan.failures.incidents import record, settle
from lmj_operator.plan.report.conditions import conditions


def test_notes_tell_what_is_new() -> None:
    before = JobStatus(phase=Phase.RUNNING, started=1.0)
    hit = Incident(
        time="2026-11-21T07:41:35Z",
        kind=IncidentKind.POD_GONE,
        rank=1,
        pod="p",
        node="n",
        noticed_by="its peers",
        message="pod p is gone",
        view=1,
        step=5,
    )
    waits = Condition(
        type="PodsWaiting",
        status="True",
        reason="Unschedulable",
        message="pod p: no room",
        last_transition_time="2026-11-21T07:41:35Z",
    )
    down = before.model_copy(
        update={"phase": Phase.RECOVERING, "message": "pod p is gone", "incidents": [hit], "conditions": [waits]}
    )
    assert notes(before, down) == [
        Note("PodGone", "pod p is gone; rank 1 in p on n at step 5, noticed by its peers at 2026-11-21T07:41:35Z", warning=True),
        Note("Unschedulable", "pod p: no room", warning=True),
        Note("Recovering", "pod p is gone"),
    ]
    mended = hit.model_copy(update={"seconds": 2.0, "steps_lost": 3, "recovery": "view 2: goes on"})
    up = down.model_copy(update={"phase": Phase.RUNNING, "message": "view 2 trains", "incidents": [mended]})
    assert notes(down, up) == [
        Note(
            "Recovered",
            "recovered from PodGone of rank 1 in p on n in 2.00 s, 3 steps done again; noticed by its peers at 2026-11-21T07:41:35Z at step 5;"
            " view 2: goes on; it was: pod p is gone",
        ),
        Note("Running", "view 2 trains"),
    ]
    assert notes(up, up.model_copy(update={"progress": Progress(step=1, steps=2, epoch=0.5)})) == []


def test_a_loss_that_is_no_number_is_a_condition_and_told_of_once() -> None:
    odd = Evaluation(
        split="validation",
        step=40,
        samples=2,
        loss=float("nan"),
        accuracy=0.5,
        f1=0.5,
        labels=["a", "b"],
        confusion=[[1, 0], [1, 0]],
    )
    fine = odd.model_copy(update={"loss": 0.5, "step": 60})

    def told(old: list[Condition], *evaluations: Evaluation) -> list[Condition]:
        return conditions(old, Phase.RUNNING, "view 1 trains", 1, 100.0, evaluations=evaluations)

    before = told([], fine)
    assert all(c.type != "LossNotFinite" for c in before)
    after = told(before, odd)
    text = "the validation loss of step 40 is not a number; lower training.learningRate or set training.maxGradNorm"
    assert [(c.type, c.status, c.reason, c.message) for c in after[len(before) :]] == [
        ("LossNotFinite", "True", "NotANumber", text)
    ]
    assert notes(JobStatus(conditions=before), JobStatus(conditions=after)) == [Note("LossNotFinite", text, warning=True)]
    assert notes(JobStatus(conditions=after), JobStatus(conditions=told(after, odd))) == []
    assert [c.status for c in told(after, fine) if c.type == "LossNotFinite"] == ["False"]


def test_a_slow_rank_is_a_condition_and_told_of_once() -> None:
    def told(old: list[Condition], slow: str | None) -> list[Condition]:
        return conditions(old, Phase.RUNNING, "view 1 trains", 1, 100.0, slow=slow)

    before = told([], None)
    assert all(c.type != "Straggler" for c in before)
    after = told(before, "rank 1 computes 2.3 times as long")
    (condition,) = after[len(before) :]
    assert (condition.type, condition.status, condition.reason) == ("Straggler", "True", "SlowRank")
    note = Note("Straggler", "rank 1 computes 2.3 times as long", warning=True)
    assert notes(JobStatus(conditions=before), JobStatus(conditions=after)) == [note]
    assert notes(JobStatus(conditions=after), JobStatus(conditions=told(after, "rank 1 computes 2.4 times as long"))) == []
    assert [(c.status, c.reason) for c in told(after, None) if c.type == "Straggler"] == [("False", "NoSlowRank")]


def test_more_failures_than_are_kept_are_told_of_when_they_are_over() -> None:
    failures = tuple(Failure(IncidentKind.WORKER_EXITED, rank, f"p{rank}", "it ended", Remedy.WORKER) for rank in range(14))
    down = JobStatus(incidents=record([], failures, {}, view=1, step=5, now=1.0))
    assert len(down.incidents) == 14
    view = view_of_one(2, 5, reason="all are back")
    over, lost = settle(down.incidents, view, step=6, done=False, now=3.0, resumed=5)
    up = down.model_copy(update={"incidents": over})
    assert lost == 0
    assert [note.reason for note in notes(down, up)] == ["Recovered"] * 14
    later = up.model_copy(update={"incidents": settle(over, view, step=7, done=False, now=4.0, resumed=5)[0]})
    assert [i.rank for i in later.incidents] == list(range(4, 14))
    assert notes(up, later) == []
    again = record(later.incidents, failures[:1], {}, view=2, step=9, now=5.0)
    assert [i.rank for i in again] == [*range(5, 14), 0]
    endless = again
    for now in range(100):
        endless = record(endless, failures[:1], {}, view=2, step=9, now=6.0 + now)
    assert len(endless) == 50


def test_a_request_that_is_refused_is_told_of_once() -> None:
    before = JobStatus()
    after = before.model_copy(update={"move_request": "3 now", "move_refused": "there is no rank 3"})
    assert notes(before, after) == [Note("RequestRefused", "there is no rank 3", warning=True)]
    assert notes(after, after) == []
    assert notes(before, before.model_copy(update={"move_request": "1 now"})) == []


def test_another_cut_is_told_of_and_no_warning() -> None:
    recut = Incident(
        time="2026-11-21T07:41:35Z",
        kind=IncidentKind.RECUT,
        rank=0,
        pod="p",
        message="recut from 1 stage to 2 stages at step 7",
        view=1,
        step=7,
    )
    before = JobStatus(phase=Phase.RUNNING)
    begun = before.model_copy(update={"incidents": [recut]})
    assert notes(before, begun) == [Note("Recut", "recut from 1 stage to 2 stages at step 7")]
    paid = {"steps_lost": 0, "seconds": 1.0, "pause_seconds": 0.05, "pause_by": "workers", "recovery": "view 2: goes on"}
    over = before.model_copy(update={"incidents": [recut.model_copy(update=paid)]})
    story = "training paused for 0.05 s beyond a step, 0 steps done again; view 2: goes on"
    assert notes(begun, over) == [Note("Recut", f"recut from 1 stage to 2 stages at step 7; {story}")]
    condition = Condition(
        type="Recutting", status="True", reason="Copying", message="how far", last_transition_time="2026-11-21T07:41:35Z"
    )
    assert notes(before, before.model_copy(update={"conditions": [condition]})) == [Note("Recutting", "how far")]
