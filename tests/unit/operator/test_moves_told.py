"""What people are told of a move: while it is under way, and what it has cost."""

import io
from typing import Any

import pytest
from planned import view_of_one
from rich.console import Console

from lmj_api.protocol import Copied, Progress
from lmj_api.spec import Training
from lmj_api.status import FollowerStatus, Incident, JobStatus, MoveStatus, Phase
from lmj_operator.backend.kubernetes.status_store import must_be_stored
from lmj_operator.cli.lines import changes
from lmj_operator.cli.move_progress import LINE_SECONDS, MoveProgress
from lmj_operator.cli.table import status_lines
from lmj_operator.controller.metrics import Metrics
from lmj_operator.controller.notes import notes
from lmj_operator.plan.failures.incidents import Told, cost, proof, settle
from lmj_operator.plan.observe.times import rfc3339
from lmj_operator.plan.report.conditions import conditions
from lmj_operator.plan.report.report import step_seconds

AT_MOST = "training paused for at most"
MOVE = MoveStatus(rank=1, serial=1, node="node1", reason="node node1 is cordoned", since=1.0)
THERE = Copied(done=514_000_000, size=514_000_000, gradients=120_000_000, step=311, in_sync_step=310, digest="5f1c")


def follower(state: str = "Copying", **copied: Any) -> FollowerStatus:
    at = Copied(size=514_000_000, **copied) if copied else None
    return FollowerStatus.model_validate({"rank": 1, "serial": 2, "pod": "tiny-r1-2", "state": state, "since": 5.0, "copied": at})


def told(entry: FollowerStatus) -> tuple[str, str]:
    made = conditions([], Phase.RUNNING, "", 1, 100.0, moves=[MOVE], followers=[entry])
    condition = next(c for c in made if c.type == "Migrating")
    return condition.reason, condition.message


def moved(**more: Any) -> Incident:
    values = {"time": rfc3339(100.0), "kind": "Moved", "rank": 1, "pod": "tiny-r1-1", "view": 1, "step": 311}
    return Incident.model_validate({**values, "message": "rank 1 moved from tiny-r1-1 to tiny-r1-2", **more})


def test_the_condition_says_how_far_it_is() -> None:
    leaves = "rank 1 leaves node1 because node node1 is cordoned: its new pod is"
    assert told(follower("Starting")) == ("Starting", f"{leaves} starting")
    half = follower(done=257_000_000, eta_seconds=2.4)
    assert told(half) == ("Copying", f"{leaves} copying, 257.0 MB of 514.0 MB, 0:02 left")
    assert told(follower(done=12)) == ("Copying", f"{leaves} copying, 12 B of 514.0 MB")
    in_sync = FollowerStatus(rank=1, serial=2, pod="tiny-r1-2", state="InSync", copied=THERE)
    assert told(in_sync) == ("InSync", f"{leaves} in sync since step 310")


def test_how_far_a_copy_is_need_not_be_stored_at_once_and_its_state_must() -> None:
    def kept(entry: FollowerStatus) -> tuple[Any, ...]:
        return must_be_stored(JobStatus(followers=[entry]))

    assert kept(follower(done=1)) == kept(follower(done=2))
    assert kept(follower(done=1)) != kept(follower("InSync", done=1))


@pytest.mark.parametrize(
    ("usual", "told", "pause", "by", "says"),
    [
        (2.0, Told(0.15), 0.15, "workers", "training paused for 0.15 s beyond a step, 0 steps done again"),
        (None, Told(0.15, 312), 0.15, "workers", "training paused for 0.15 s beyond a step, 0 steps done again"),
        (2.0, Told(None, 312), 0.5, "operator", f"{AT_MOST} 0.50 s beyond a step, as the operator saw it, 0 steps done again"),
        (3.0, Told(None, 312), 0.0, "operator", f"{AT_MOST} 0.00 s beyond a step, as the operator saw it, 0 steps done again"),
        (None, Told(None, 312), None, None, "the next new step came after 2.50 s, 0 steps done again"),
    ],
)
def test_the_pause_is_what_a_worker_measured_else_what_is_more_than_a_step(
    usual: float | None, told: Told, pause: float | None, by: str | None, says: str
) -> None:
    view = view_of_one(2, 311, reason="goes on")
    (done,), _ = settle([moved(step_seconds=usual)], view, step=312, done=False, now=102.5, told=told, resumed=311)
    assert (done.seconds, done.pause_seconds, done.pause_by) == (2.5, pause, by)
    assert cost(done) == says
    assert cost(moved(step_seconds=usual)) is None


def test_the_pause_is_waited_for_until_all_have_told_of_a_new_step() -> None:
    view = view_of_one(2, 311, reason="goes on")
    (still,), _ = settle([moved(step_seconds=2.0)], view, step=312, done=False, now=102.5, told=Told(None, 311), resumed=311)
    assert still.seconds is None
    (done,), _ = settle([still], view, step=312, done=True, now=102.5, told=Told(None, 311), resumed=311)
    assert done.seconds is not None


def test_a_steps_time_comes_of_the_throughput() -> None:
    at = Progress(step=5, steps=9, epoch=1.0, samples_per_second=16.0)
    training = Training(batch_size=4, gradient_accumulation_steps=2)
    assert step_seconds(at, training) == 0.5
    assert step_seconds(at.model_copy(update={"samples_per_second": None}), training) is None
    assert step_seconds(None, training) is None


def test_the_proof_is_told_wherever_the_move_is() -> None:
    right = "514.0 MB copied and 120.0 MB of gradients, digest 5f1c of step 310 at both"
    assert proof(moved(copied=THERE)) == right
    assert proof(moved()) is None, "it went through a checkpoint"
    before = JobStatus(incidents=[moved(copied=THERE)])
    ended = moved(copied=THERE, seconds=2.5, pause_seconds=0.5, steps_lost=0, recovery="view 2: goes on")
    after = JobStatus(incidents=[ended])
    paused = "training paused for 0.50 s beyond a step, 0 steps done again"
    assert changes(before, after) == [paused, right]
    (note,) = notes(before, after)
    assert note.message == f"rank 1 moved; {paused}; view 2: goes on; {right}"
    assert status_lines(after, None)[-1].endswith(f"tiny-r1-2 ({paused}; {right})")
    assert "rank 1: InSync follower, pod tiny-r1-2 since step 310" in status_lines(
        JobStatus(followers=[FollowerStatus(rank=1, serial=2, pod="tiny-r1-2", state="InSync", copied=THERE)]), None
    )


def test_metrics_count_a_move_once() -> None:
    metrics = Metrics(list)
    start = JobStatus(followers=[follower()])
    in_sync = JobStatus(followers=[follower("InSync").model_copy(update={"since": 9.0})])
    over = JobStatus(migrations=1, incidents=[moved(copied=THERE)])
    done = JobStatus(migrations=1, incidents=[moved(copied=THERE, seconds=2.5, pause_seconds=0.5, pause_by="workers")])
    seen = JobStatus(migrations=1, incidents=[moved(seconds=2.5, pause_seconds=2.0, pause_by="operator")])
    for before, after in ((start, start), (start, in_sync), (in_sync, over), (over, done), (done, done), (over, seen)):
        metrics.count(before, after)
    text = metrics.render().decode()
    for line in (
        "lmj_migrations_total 1.0",
        "lmj_moved_bytes_total 6.34e+08",
        "lmj_migration_pause_seconds_sum 0.5",
        "lmj_migration_pause_seconds_count 1.0",
        'lmj_follower_seconds_sum{state="Copying"} 4.0',
        'lmj_follower_seconds_count{state="Copying"} 1.0',
    ):
        assert f"{line}\n" in text


def shown(terminal: bool, *seen: tuple[float, JobStatus]) -> str:
    """What is printed when each status is seen at its time."""
    out, clock = io.StringIO(), [0.0]
    console = Console(file=out, force_terminal=terminal, width=120, highlight=False, soft_wrap=True, color_system=None)
    with MoveProgress([1], console, lambda: clock[0]) as progress:
        before = JobStatus()
        for at, after in seen:
            clock[0] = at
            progress.show(before, after)
            before = after
        if terminal:
            progress._bars.refresh()
    return out.getvalue()


def test_without_a_terminal_a_copy_is_told_now_and_then() -> None:
    def at(done: int) -> JobStatus:
        return JobStatus(followers=[follower(done=done), FollowerStatus(rank=0, serial=2, pod="tiny-r0-2")])

    lines = shown(
        False,
        (1.0, JobStatus(followers=[follower("Starting")])),
        (2.0, at(1_000_000)),
        (2.0 + 0.9 * LINE_SECONDS, at(2_000_000)),
        (2.0 + 1.1 * LINE_SECONDS, at(3_000_000)),
        (20.0, JobStatus(moves=[MOVE.model_copy(update={"given_up": "too late", "strategy": "Checkpoint"})])),
        (21.0, JobStatus(moves=[MOVE.model_copy(update={"given_up": "too late", "strategy": "Checkpoint"})])),
    ).splitlines()
    assert lines == [
        "rank 1: tiny-r1-2 is starting",
        "rank 1: tiny-r1-2 is copying, 1.0 MB of 514.0 MB",
        "rank 1: tiny-r1-2 is copying, 3.0 MB of 514.0 MB",
        "rank 1: too late",
    ]


def test_on_a_terminal_it_has_a_bar() -> None:
    drawn = shown(True, (1.0, JobStatus(followers=[follower(done=257_000_000, eta_seconds=2.4)])))
    assert "copying, 257.0 MB of 514.0 MB, 0:02 left" in drawn
    assert "━" in drawn
    assert drawn.count("rank 1: tiny-r1-2 is copying") == 1
