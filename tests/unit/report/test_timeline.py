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
