"""Where each rank was, and when."""

from xml.etree import ElementTree

import pytest

from lmj_api.status import Incident, JobStatus, RankStatus
from lmj_operator.cli.report.timeline import Stay, svg, timeline_of
from lmj_operator.plan.failures.incidents import KEPT
from lmj_operator.plan.observe.times import rfc3339

SVG = "{http://www.w3.org/2000/svg}"
BEGIN = 1_800_000_000.0


def incident(at: float, rank: int, pod: str, kind: str = "PodGone", node: str | None = None, **more: object) -> Incident:
    values = {
        "time": rfc3339(BEGIN + at),
        "kind": kind,
        "rank": rank,
        "pod": pod,
        "node": node,
        "message": "m",
        "view": 1,
        "step": 1,
    }
    return Incident.model_validate({**values, **more})


def status(*incidents: Incident, pods: tuple[str, ...] = ("r0-1", "r1-3"), node: str | None = None) -> JobStatus:
    ranks = [RankStatus(rank=rank, pod=pod, node=node, state="Running") for rank, pod in enumerate(pods)]
    return JobStatus(incidents=list(incidents), ranks=ranks)


def test_each_incident_ends_a_stay_in_the_pod_that_it_names() -> None:
    told = status(incident(10, 1, "r1-1", node="a"), incident(30, 1, "r1-2", "Moved", "b"), node="c")
    made = timeline_of(told, BEGIN, BEGIN + 100)
    assert made is not None
    assert [(rank, list(stays)) for rank, stays in made.rows] == [
        (0, [Stay(0, 100, "r0-1", "c")]),
        (1, [Stay(0, 10, "r1-1", "a"), Stay(10, 30, "r1-2", "b"), Stay(30, 100, "r1-3", "c")]),
    ]
    assert [(mark.number, mark.step, mark.moved) for mark in made.marks] == [(1, 10, False), (2, 30, True)]


def test_another_worker_in_the_same_pod_is_the_same_stay() -> None:
    made = timeline_of(status(incident(10, 1, "r1-3", "WorkerExited")), BEGIN, BEGIN + 100)
    assert made is not None
    assert list(made.rows[1][1]) == [Stay(0, 100, "r1-3", None)]
    assert len(made.marks) == 1


def test_before_the_oldest_of_a_full_list_nothing_is_known() -> None:
    told = [incident(40 + index, 0, f"r0-{index}") for index in range(KEPT)]
    made = timeline_of(status(*told), BEGIN, BEGIN + 100)
    assert made is not None
    assert list(made.rows[0][1])[:2] == [Stay(0, 40, None, None), Stay(40, 41, "r0-1", None)]
    assert list(made.rows[1][1]) == [Stay(0, 40, None, None), Stay(40, 100, "r1-3", None)]


def test_training_waits_for_a_lost_rank_and_in_the_pause_of_a_move() -> None:
    told = status(incident(10, 1, "r1-1", seconds=5.0), incident(30, 1, "r1-2", "Moved", seconds=2.0, pause_seconds=0.5))
    made = timeline_of(told, BEGIN, BEGIN + 100)
    assert made is not None
    assert list(made.waits) == [(10, 15), (30, 30.5)]


@pytest.mark.parametrize(
    ("begin", "end"),
    [(None, BEGIN), (BEGIN, None), (BEGIN, BEGIN), (BEGIN, BEGIN - 5), (0.0, BEGIN), (BEGIN, 1e300), (float("nan"), BEGIN)],
)
def test_a_run_without_a_time_is_not_drawn(begin: float | None, end: float | None) -> None:
    assert timeline_of(status(), begin, end) is None


def test_nothing_is_drawn_where_no_pod_is_known() -> None:
    assert timeline_of(JobStatus(), BEGIN, BEGIN + 1) is None
    assert timeline_of(None, BEGIN, BEGIN + 1) is None


@pytest.mark.parametrize("time", ["", "yesterday", "9999-12-31T23:59:59Z", "0001-01-01T00:00:00"])
def test_an_incident_of_no_time_is_left_out(time: str) -> None:
    odd = incident(10, 1, "r1-1").model_copy(update={"time": time})
    made = timeline_of(status(odd), BEGIN, BEGIN + 100)
    assert made is not None
    assert made.marks == []


def colours(told: JobStatus) -> list[str]:
    made = timeline_of(told, BEGIN, BEGIN + 100)
    assert made is not None
    drawn = ElementTree.fromstring(svg(made, 880))
    return [each.get("class", "") for each in drawn.iter(f"{SVG}g") if "stay" in each.get("class", "")]


def test_nodes_have_colours_and_where_there_is_one_the_pods_have() -> None:
    moved = incident(10, 1, "r1-1", "Moved", "a")
    assert colours(status(moved, node="a")) == ["stay place0", "stay place1", "stay place2"]
    assert colours(status(moved, node="b")) == ["stay place0", "stay place1", "stay place0"]


def test_bars_are_drawn_to_scale_and_named_where_there_is_room() -> None:
    made = timeline_of(status(incident(1, 1, "r1-1"), incident(51, 1, "r1-2")), BEGIN, BEGIN + 101)
    assert made is not None
    drawn = ElementTree.fromstring(svg(made, 880))
    bars = [each for each in drawn.iter(f"{SVG}g") if "stay" in each.get("class", "")][1:]
    widths = [float(bar.find(f"{SVG}rect").get("width", "")) for bar in bars]  # type: ignore[union-attr]
    assert widths[1] == pytest.approx(widths[2], abs=0.2)
    assert widths[0] < 10 < widths[1]
    assert [bar.findtext(f"{SVG}text") for bar in bars] == [None, "r1-2", "r1-3"]
    assert bars[0].findtext(f"{SVG}title") == "rank 1: r1-1, 0:00 to 0:01"


def of_replicas(at: float, kind: str, replicas: list[int], **more: object) -> Incident:
    return incident(at, replicas[0], "", kind, replicas=replicas, **more)


def placed(*incidents: Incident, replicas: int = 2, stages: int = 1) -> JobStatus:
    ranks = [
        RankStatus(rank=rank, pod=f"r{rank}-1", state="Running", replica=rank // stages, stage=rank % stages)
        for rank in range(replicas * stages)
    ]
    return JobStatus(incidents=list(incidents), ranks=ranks)


def test_lanes_say_replica_and_stage() -> None:
    for stages, names in ((1, ["replica 0", "replica 1"]), (2, [f"replica {r}, stage {s}" for r in (0, 1) for s in (0, 1)])):
        made = timeline_of(placed(stages=stages), BEGIN, BEGIN + 100)
        assert made is not None
        assert list(made.names.values()) == names
        drawn = ElementTree.fromstring(svg(made, 380))
        shown = [text for text in drawn.iter(f"{SVG}text") if text.text in names]
        assert [text.text for text in shown] == names
        assert all(float(text.get("x", "")) >= 7 * len(text.text or "") for text in shown), "they have room"
    assert f"rank 3 ({names[3]}): r3-1" in "".join(drawn.itertext())
    one = timeline_of(status(), BEGIN, BEGIN + 100)
    assert one is not None
    assert list(one.names.values()) == ["rank 0", "rank 1"]


def test_a_lost_replica_is_absent_until_it_is_back() -> None:
    lost = of_replicas(10, "ReplicaLost", [1], step=4, whole_step=9, whole_seconds=25.0, seconds=3.0)
    made = timeline_of(placed(incident(10, 1, "r1-0", seconds=2.0), lost), BEGIN, BEGIN + 100)
    assert made is not None
    (absence,) = made.absences
    assert (absence.rank, absence.begin, absence.end) == (1, 10, 35)
    assert absence.title == "replica 1 was lost at step 4, in the view from step 9"
    assert list(made.waits) == [(10, 12)], "what befell its rank says how long the others waited"
    assert [list(stays) for _, stays in made.rows] == [
        [Stay(0, 100, "r0-1", None)],
        [Stay(0, 10, "r1-0", None), Stay(10, 100, "r1-1", None)],
    ]
    (drawn,) = [each for each in ElementTree.fromstring(svg(made, 880)).iter(f"{SVG}rect") if each.get("class") == "absent"]
    bars = [each for each in ElementTree.fromstring(svg(made, 880)).iter(f"{SVG}g") if "stay" in each.get("class", "")]
    last = bars[-1].find(f"{SVG}rect")
    assert last is not None
    assert (drawn.get("x"), drawn.get("y")) == (last.get("x"), last.get("y")), "in its lane, from then on"


def test_one_that_is_not_back_is_absent_to_the_end() -> None:
    made = timeline_of(placed(of_replicas(10, "ReplicaLost", [0, 1], step=4), replicas=3), BEGIN, BEGIN + 100)
    assert made is not None
    assert [(a.rank, a.begin, a.end) for a in made.absences] == [(0, 10, 100), (1, 10, 100)]
    assert made.absences[1].title == "replica 1 was lost at step 4, not in the view since"


def test_lanes_are_as_long_as_the_job_had_the_replica() -> None:
    grew = of_replicas(20, "Scaled", [1, 2], replicas_before=1, replicas_after=3, whole_step=30, whole_seconds=15.0)
    shrank = of_replicas(60, "Scaled", [2], replicas_before=3, replicas_after=2, whole_step=50, whole_seconds=5.0)
    made = timeline_of(placed(grew, shrank), BEGIN, BEGIN + 100)
    assert made is not None
    assert [(rank, list(stays)) for rank, stays in made.rows] == [
        (0, [Stay(0, 100, "r0-1", None)]),
        (1, [Stay(20, 100, "r1-1", None)]),
        (2, [Stay(20, 65, None, None)]),
    ]
    assert [(a.rank, a.begin, a.end) for a in made.absences] == [(1, 20, 35), (2, 20, 35)]
    assert made.absences[0].title == "replica 1 was asked for at step 1, in the view from step 30"
    assert [mark.moved for mark in made.marks] == [True, True]


def test_a_replica_that_comes_again_has_two_lives() -> None:
    gone = of_replicas(10, "Scaled", [1], replicas_before=2, replicas_after=1, whole_step=3, whole_seconds=2.0)
    again = of_replicas(50, "Scaled", [1], replicas_before=1, replicas_after=2, whole_step=9, whole_seconds=4.0)
    made = timeline_of(placed(gone, again), BEGIN, BEGIN + 100)
    assert made is not None
    assert list(made.rows[1][1]) == [Stay(0, 12, "r1-1", None), Stay(50, 100, "r1-1", None)]


def test_whatever_a_file_says_of_places_is_drawn() -> None:
    ranks = [
        RankStatus(rank=0, pod="p", state="x", stage=63, replica=1023),
        RankStatus(rank=1, state="x", stage=0, replica=1023),
    ]
    odd = of_replicas(10, "ReplicaLost", [2**53, -1], whole_step=-1, whole_seconds=1e300)
    made = timeline_of(JobStatus(ranks=ranks, incidents=[odd]), BEGIN, BEGIN + 100)
    assert made is not None
    assert [rank for rank, _ in made.rows] == list(range(64))
    ElementTree.fromstring(svg(made, 380))
