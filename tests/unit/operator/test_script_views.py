"""Who is in the next view of a script, and what it waits for."""

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.operator.seen import facts, pod, view, worker

from lmj_api.protocol import Exit, WorkerPhase
from lmj_api.spec import JobSpec
from lmj_api.status import Incident, IncidentKind, JobStatus
from lmj_operator.plan import LeaveView, Observed, Pause, PodObserved, PodPhase, PodWait
from lmj_operator.plan.observe.facts import RankFacts
from lmj_operator.plan.observe.times import rfc3339
from lmj_operator.plan.pods.wants import wants
from lmj_operator.plan.script_views import Choice, Group

NOW = 100.0
RUNNING, READY, STARTING, EXITED = WorkerPhase.RUNNING, WorkerPhase.READY, WorkerPhase.STARTING, WorkerPhase.EXITED


def of(phase: WorkerPhase, **more: Any) -> PodObserved:
    """The pod of a rank that was in view 3."""
    rank, serial = more.pop("rank", 0), more.pop("serial", 1)
    known = {name: more.pop(name) for name in ("incarnation", "since", "lost_rank", "lost", "exit", "view") if name in more}
    return pod(rank, serial, worker(phase, holding=None, **known), **more)


def silent(rank: int, serial: int = 1, **more: Any) -> PodObserved:
    return pod(rank, serial, **more)


RAN = [of(RUNNING, rank=rank) for rank in range(3)]
LEFT = [of(READY, rank=rank, lost_rank=2, lost="rank 2 is lost") for rank in range(2)]
"""What became of the first two when the third was lost."""


def group(*pods: PodObserved | None, more: tuple[PodObserved, ...] = (), **changes: Any) -> Group:
    """Of ranks in these pods; ``more``: pods that are no rank's."""
    least = changes.pop("least", 1)
    spec = JobSpec.model_validate(
        {
            "strategy": "Command",
            "command": {"args": ["train.py"], "saveSeconds": 30},
            "dataParallel": {"replicas": len(pods), "minReplicas": least},
            "output": {"path": "out"},
        }
    )
    status = JobStatus(incidents=changes.pop("incidents", []))
    ranks: tuple[RankFacts, ...] = tuple(
        facts(rank, seen, **({"incarnation": seen.agent.worker.incarnation} if seen is not None and seen.agent else {}))
        for rank, seen in enumerate(pods)
    )
    there = tuple(seen for seen in pods if seen is not None)
    values = {"newest": view(*RAN), "left_since": 99.5, "not_before": 0.0, "now": NOW, "wanted": wants(ranks, ()), **changes}
    return Group(Observed("j", spec, status, there + more), ranks, **values)


def next_ranks(choice: Choice) -> list[int] | None:
    """None: no view is formed."""
    made = choice.membership
    return [m.rank for m in made.view.members] if made.formed and made.view is not None else None


def test_one_that_is_lost_is_not_waited_for() -> None:
    choice = group(*LEFT, None).next_view()
    assert next_ranks(choice) == [0, 1]
    assert choice.membership.reason == "rank 2 left; starts the script"


def test_with_fewer_than_are_enough_all_wait() -> None:
    choice = group(*LEFT, None, least=3).next_view()
    assert next_ranks(choice) is None
    assert "fewer than dataParallel.minReplicas 3" in choice.membership.reason


@pytest.mark.parametrize(
    "again",
    [of(EXITED, rank=2, exit=Exit(code=1, message="m")), of(STARTING, rank=2, incarnation=2, view=0)],
)
def test_another_worker_in_the_same_pod_is_waited_for_as_long_as_it_takes(again: PodObserved) -> None:
    choice = group(*LEFT, again, left_since=1.0).next_view()
    assert next_ranks(choice) is None
    assert choice.membership.reason == "waits for rank 2 to be ready again"


@pytest.mark.parametrize(("gone", "formed"), [(4.9, None), (5.1, [0, 1])])
def test_who_is_about_to_be_ready_in_another_pod_is_waited_for_a_little(gone: float, formed: list[int] | None) -> None:
    new = of(STARTING, rank=2, serial=2, view=0)
    choice = group(*LEFT, new, left_since=NOW - gone).next_view()
    assert next_ranks(choice) == formed
    assert choice.due == ((pytest.approx(5.0 - gone),) if formed is None else ())


@pytest.mark.parametrize(
    ("gone", "accused", "formed"),
    [(0.2, True, None), (0.3, True, [0, 1]), (0.9, False, None), (1.1, False, [0, 1])],
)
def test_who_does_not_answer_is_waited_for_a_moment(gone: float, accused: bool, formed: list[int] | None) -> None:
    lost = [of(READY, rank=rank, lost="l", **({"lost_rank": 2} if accused else {})) for rank in range(2)]
    choice = group(*lost, silent(2), left_since=NOW - gone).next_view()
    assert next_ranks(choice) == formed


def test_a_silent_agent_alone_ends_no_view() -> None:
    choice = group(*RAN[:2], silent(2), left_since=None).next_view()
    assert choice.membership.reason == "view 3 holds"


def test_the_back_off_is_waited_for_where_all_pods_are_there() -> None:
    back = of(READY, rank=2, incarnation=2, view=0)
    assert next_ranks(group(*LEFT, back, not_before=NOW + 4).next_view()) is None
    assert next_ranks(group(*LEFT, back, not_before=NOW - 1).next_view()) == [0, 1, 2]
    assert next_ranks(group(*LEFT, None, not_before=NOW + 4).next_view()) == [0, 1], "its next pod waits, and not they"


STOPPED = of(READY, rank=0, lost="left view 3 to let another begin")
HURRIED = [
    (of(RUNNING, rank=1, agent={"pause": 3}), ()),
    (of(RUNNING, rank=1, agent={"handover": 3}), ()),
    (of(RUNNING, rank=1, agent={"draining": True}), ()),
    (of(RUNNING, rank=1, leaves=True), ()),
    (of(RUNNING, rank=1), (replace(of(RUNNING, rank=2), phase=PodPhase.TERMINATING),)),
    (of(RUNNING, rank=1), ()),  # it was there, and is gone
]


@pytest.mark.parametrize(("saves", "more"), HURRIED)
def test_who_saves_is_waited_for_and_not_for_ever(saves: PodObserved, more: tuple[PodObserved, ...]) -> None:
    third = more[0] if more else None
    choice = group(STOPPED, saves, third).next_view()
    assert next_ranks(choice) is None
    assert "to leave view 3" in choice.membership.reason
    assert choice.actions == ()
    late = group(STOPPED, saves, third, left_since=NOW - 36).next_view()
    assert next_ranks(late) is None
    assert LeaveView("j-r1-1", 3) in late.actions


def test_a_pod_of_a_rank_that_the_job_has_no_more_is_waited_for_too() -> None:
    choice = group(STOPPED, more=(of(RUNNING, rank=1, agent={"pause": 3}),)).next_view()
    assert next_ranks(choice) is None


@pytest.mark.parametrize(
    "failed",
    [
        of(EXITED, rank=2, exit=Exit(code=1, message="m")),
        of(STARTING, rank=2, incarnation=2, view=0),
    ],
)
def test_who_was_not_asked_to_stop_is_told_to_leave_at_once(failed: PodObserved) -> None:
    choice = group(*RAN[:2], failed, left_since=None).next_view()
    assert choice.actions == (LeaveView("j-r0-1", 3), LeaveView("j-r1-1", 3))
    lost = group(LEFT[0], RAN[1], None).next_view()
    assert lost.actions == (LeaveView("j-r1-1", 3),)


@pytest.mark.parametrize(("saves", "more"), HURRIED[:5])
def test_a_failure_while_all_stop_does_not_hurry_those_that_save(saves: PodObserved, more: tuple[PodObserved, ...]) -> None:
    failed = of(EXITED, rank=0, exit=Exit(code=1, message="m"))
    assert group(failed, saves, *more, left_since=None).next_view().actions == ()


def test_nobody_is_told_to_make_room_who_leaves_already() -> None:
    new = of(READY, rank=2, serial=2, view=0, since=1.0)
    two = view(*RAN[:2])
    assert group(*RAN[:2], new, newest=two, left_since=None).next_view().actions == (Pause("j-r0-1", 3),)
    leaving = of(RUNNING, rank=1, agent={"draining": True})
    assert group(RAN[0], leaving, new, newest=two, left_since=None).next_view().actions == ()


@pytest.mark.parametrize(("since", "told"), [(34.0, False), (36.0, True)])
def test_nobody_who_hears_of_a_pod_that_is_gone_stays_for_long(since: float, told: bool) -> None:
    gone = Incident(time=rfc3339(NOW - since), kind=IncidentKind.POD_GONE, rank=2, pod="j-r2-1", message="m", view=3, step=0)
    choice = group(*RAN[:2], None, left_since=None, incidents=[gone]).next_view()
    assert bool(choice.actions) is told


def test_others_join_in_order_and_together() -> None:
    new = of(READY, rank=1, serial=2, view=0, since=NOW - 1)
    alone = view(RAN[0])
    values: dict[str, Any] = {"newest": alone, "left_since": None}
    assert group(RAN[0], new, None, **values).next_view().actions == (Pause("j-r0-1", 3),)
    about = of(STARTING, rank=2, serial=2, view=0)
    waits = group(RAN[0], new, about, **values).next_view()
    assert (waits.actions, waits.due) == ((), (4.0,))
    assert group(RAN[0], new, about, **values, now=NOW + 5).next_view().actions == (Pause("j-r0-1", 3),)
    joining = of(READY, rank=0, view=2)
    assert group(joining, new, None, **values).next_view().actions == (), "it has not begun yet"


def test_fewer_leave_at_once() -> None:
    ready, about = of(READY, rank=1, serial=2, view=0, since=NOW), of(STARTING, rank=2, serial=2, view=0)
    last = of(RUNNING, rank=3)
    four = view(*RAN, last)
    newest = four.model_copy(update={"members": four.members[::3]})
    choice = group(RAN[0], ready, about, more=(last,), newest=newest, left_since=None).next_view()
    assert choice.actions == (Pause("j-r0-1", 3),)
    ended = replace(last, phase=PodPhase.GONE)
    over = group(RAN[0], ready, about, more=(ended,), newest=newest, left_since=None).next_view()
    assert over.membership.reason != "view 3 holds"


def test_the_first_view_is_of_all_that_have_room() -> None:
    wait = PodWait("Unschedulable", "m", 1.0)
    ready = [of(READY, rank=rank, view=0) for rank in range(2)]
    values: dict[str, Any] = {"newest": None, "left_since": None}
    assert next_ranks(group(*ready, None, **values).next_view()) is None
    unplaced = silent(2, phase=PodPhase.PENDING, waits=wait)
    assert next_ranks(group(*ready, unplaced, **values).next_view()) == [0, 1]
    assert next_ranks(group(*ready, unplaced, **values, least=3).next_view()) is None
    assert next_ranks(group(*ready, of(READY, rank=2, view=0), **values).next_view()) == [0, 1, 2]


@pytest.mark.parametrize("changes", [{"outdated": True}, {"leaves": True}, {"agent": {"draining": True}}])
def test_who_is_about_to_go_does_not_join(changes: dict[str, Any]) -> None:
    going = of(READY, rank=2, serial=2, view=0, **changes)
    assert next_ranks(group(*LEFT, going).next_view()) == [0, 1]


def test_whom_a_view_was_left_for_has_waited_before() -> None:
    paused = of(READY, rank=0, lost="l", agent={"pause": 3})
    new = of(READY, rank=1, serial=2, view=0, since=NOW - 6)
    about = of(STARTING, rank=2, serial=2, view=0)
    newest = view(RAN[0])
    assert next_ranks(group(paused, new, about, newest=newest).next_view()) == [0, 1]
    assert next_ranks(group(of(READY, rank=0, lost="l"), new, about, newest=newest).next_view()) is None


@pytest.mark.parametrize(("since", "late"), [(None, False), (600.0, False), (640.0, True)])
def test_who_stays_in_a_view_that_is_over_hangs_after_a_while(since: float | None, late: bool) -> None:
    assert group(*LEFT, None, left_since=None if since is None else NOW - since).is_late() is late


def test_a_member_that_nobody_can_ask_may_save_until_it_is_gone() -> None:
    """It is ended, and its script with it."""
    old = silent(2, phase=PodPhase.TERMINATING, keyless=True)
    new = of(STARTING, rank=2, serial=2, view=0)
    choice = group(*LEFT, new, more=(old,)).next_view()
    assert next_ranks(choice) is None
    assert choice.membership.reason == "waits for j-r2-1 to leave view 3"
    late = group(*LEFT, new, more=(old,), left_since=NOW - 1000).next_view()
    assert (next_ranks(late), late.actions) == (None, ()), "there is nobody to tell"
    gone = replace(old, phase=PodPhase.GONE)
    assert next_ranks(group(*LEFT, of(READY, rank=2, serial=2, view=0), more=(gone,)).next_view()) == [0, 1, 2]
    stranger = silent(2, serial=7, phase=PodPhase.TERMINATING, keyless=True)
    assert next_ranks(group(*LEFT, of(READY, rank=2, serial=2, view=0), more=(stranger,)).next_view()) == [0, 1, 2]
