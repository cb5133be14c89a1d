"""The page of a report: what is drawn, where, and that nothing of a file becomes markup."""

import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from lmj_api.protocol import CheckpointInfo, Evaluation, Progress
from lmj_api.spec.job import LiveMigrationJob
from lmj_api.status import Incident, JobStatus, Phase, RankStatus
from lmj_operator.cli.report.page import page
from lmj_operator.cli.report.run import Run, merged
from lmj_operator.cli.report.series import Record
from lmj_operator.cli.report.text import NONE, moment, number, safe, seconds
from lmj_operator.plan.observe.times import rfc3339

SVG = "{http://www.w3.org/2000/svg}"
EVIL = "\"'><script>alert(1)</script><img src=http://evil/>&amp;]]>\x00\x1b[31m\ud800\u202e"
NOW = 1_800_000_000.0


def incident(step: int, kind: str = "Moved", **more: object) -> Incident:
    values = {"time": "2026-11-21T07:41:35Z", "rank": 1, "pod": "tiny-r1-1", "message": f"what happened at {step}", "view": 1}
    return Incident.model_validate({"kind": kind, "step": step, **values, **more})


def evaluation(step: int, split: str = "validation", loss: float = 0.5) -> Evaluation:
    return Evaluation(
        split=split, step=step, samples=10, loss=loss, accuracy=0.9, f1=0.8, labels=["a", "b"], confusion=[[5, 0], [1, 4]]
    )


def run(steps: int = 100, incidents: tuple[Incident, ...] = (), pause: float = 0.0, **more: object) -> Run:
    records = tuple(Record(s, 1 / s, NOW + 0.1 * s + (pause if s > steps / 2 else 0)) for s in range(1, steps + 1))
    status = JobStatus(
        phase=Phase.SUCCEEDED, message="trained", incidents=list(incidents), restarts=3, migrations=4, steps_lost=7
    )
    values = {"name": "tiny", "job": None, "status": status, "records": records, "evaluations": (), "checkpoints": ()}
    return Run(**{**values, **more})  # type: ignore[arg-type]


def svgs(html: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(text) for text in re.findall(r"<svg.*?</svg>", html, re.DOTALL)]


def words(html: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", html.split("</style>")[1]).split())


class Balanced(HTMLParser):
    """Fails on tags that are not closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        assert not any(name.startswith("on") or name in ("src", "href", "style") for name, _ in attrs)
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def check(html: str) -> None:
    parser = Balanced()
    parser.feed(html)
    assert parser.open == []
    assert not parser.tags & {"script", "img", "link", "iframe", "object", "a"}
    html.encode()
    svgs(html)


def test_both_plots_are_there_twice_and_well_formed() -> None:
    html = page(run(), NOW)
    check(html)
    drawn = svgs(html)
    assert [each.get("class") for each in drawn] == ["w880", "w380"] * 2
    assert all(each.find(f"{SVG}polyline") is not None for each in drawn)


def test_marks_stand_at_their_steps_with_their_numbers() -> None:
    html = page(run(100, (incident(25), incident(50, "PodGone"), incident(75))), NOW)
    check(html)
    for drawn in svgs(html):
        marks = {mark.get("data-number"): mark for mark in drawn.iter(f"{SVG}g")}
        assert list(marks) == ["1", "2", "3"]
        assert [m.get("class") for m in marks.values()] == ["mark moved", "mark failed", "mark moved"]
        points = drawn.find(f"{SVG}polyline").get("points").split()  # type: ignore[union-attr]
        first, last = (float(points[i].split(",")[0]) for i in (0, -1))
        begin = 1 if len(points) == 100 else 2  # step times have none for the first step
        for number_, step in (("1", 25), ("2", 50), ("3", 75)):
            mark = marks[number_]
            line = mark.find(f"{SVG}line")
            assert line is not None
            assert line.get("x1") == line.get("x2")
            assert float(line.get("x1", "")) == pytest.approx(first + (step - begin) / (100 - begin) * (last - first), abs=0.2)
            assert mark.findtext(f"{SVG}text") == number_
            assert f"step {step}:" in mark.findtext(f"{SVG}title", "")


def test_badges_of_marks_at_one_step_do_not_overlap() -> None:
    html = page(run(100, tuple(incident(50 + i // 5) for i in range(10))), NOW)
    for drawn in svgs(html):
        boxes = [(float(r.get("x", "")), float(r.get("y", ""))) for r in drawn.iter(f"{SVG}rect")]
        assert len(boxes) == 10
        assert all(abs(a[0] - b[0]) >= 18 or abs(a[1] - b[1]) >= 18 for i, a in enumerate(boxes) for b in boxes[:i])


def test_the_table_says_what_each_mark_was() -> None:
    told = incident(
        25, node="node1", seconds=2.07, pause_seconds=0.07, steps_lost=0, recovery="view 2: rank 1 runs in tiny-r1-2 now"
    )
    text = words(page(run(100, (told, incident(50, "Hang"))), NOW))
    assert (
        "1 2026-11-21T07:41:35Z 25 Moved 1 tiny-r1-1 node1 what happened at 25 0 steps done again, paused for 0.07 s "
        "view 2: rank 1 runs in tiny-r1-2 now 2 " in text
    )
    assert f"50 Hang 1 tiny-r1-1 {NONE} what happened at 50 not known yet not known yet" in text


def test_the_end_is_told() -> None:
    status = JobStatus(
        phase=Phase.SUCCEEDED,
        restarts=3,
        migrations=4,
        steps_lost=7,
        started=NOW,
        finished=NOW + 75,
        evaluations=[evaluation(100, "test")],
    )
    status = status.model_copy(update={"progress": Progress(step=100, steps=100, epoch=1.0)})
    text = words(page(run(status=status, evaluations=merged([evaluation(50), evaluation(100)], status)), NOW))
    for part in (
        "test accuracy 0.9000",
        "test F1 0.8000",
        "steps 100",
        "restarts 3",
        "migrations 4",
        "steps done again 7",
        "total time 1:15",
    ):
        assert part in text


def test_accuracy_rate_ranks_and_matrix_are_drawn() -> None:
    records = tuple(Record(s, 1 / s, NOW + 0.1 * s, 1e-5) for s in range(1, 301))
    status = run().status
    assert status is not None
    ranks = [RankStatus(rank=0, pod="tiny-r0-1", node="node1", state="Completed")]
    status = status.model_copy(update={"ranks": ranks, "started": NOW, "finished": NOW + 31})
    html = page(run(records=records, status=status, evaluations=(evaluation(100), evaluation(300, "test"))), NOW)
    check(html)
    drawn = {each.findtext(f"{SVG}title", ""): each for each in svgs(html)}
    assert list(drawn) == [
        "Loss over steps",
        "Accuracy over steps",
        "Learning rate over steps",
        "Where each rank was, over time",
        "Seconds between recorded steps, over steps",
        "Confusion matrix: true labels in rows, predicted ones in columns",
    ]
    assert [line.get("class") for line in drawn["Loss over steps"].iter(f"{SVG}polyline")] == ["raw", "line"]
    assert "tiny-r0-1 on node1" in html
    assert "test at step 300, 10 rows" in html


def test_replicas_over_steps_and_what_befell_them() -> None:
    records = tuple(Record(s, 1 / s, NOW + 0.1 * s, replicas=1 if 40 < s < 60 else 2) for s in range(1, 101))
    lost = incident(
        40,
        "ReplicaLost",
        time=rfc3339(NOW + 4),
        replicas=[1],
        steps_lost=0,
        seconds=0.5,
        whole_step=60,
        whole_seconds=2.0,
        recovery="view 2: rank 1 left",
    )
    scaled = incident(
        80, "Scaled", time=rfc3339(NOW + 8), pod="", replicas=[1], replicas_before=2, replicas_after=1, steps_lost=0
    )
    ranks = [RankStatus(rank=rank, pod=f"tiny-r{rank}-1", state="Running", replica=rank, stage=0) for rank in (0, 1)]
    status = JobStatus(phase=Phase.RUNNING, incidents=[lost, scaled], ranks=ranks, started=NOW, finished=NOW + 20)
    job = LiveMigrationJob.model_validate(
        {
            "metadata": {"name": "job"},
            "spec": {
                "dataParallel": {"shards": 4, "replicas": 2},
                "model": {"source": "m"},
                "dataset": {"source": "d", "text": ["t"], "label": "l"},
                "output": {"path": "o"},
            },
        }
    )
    html = page(run(records=records, status=status, job=job), NOW)
    check(html)
    text = words(html)
    assert "Replicas 2, from 1 to 4; 4 shards a step" in text
    assert f"1 {rfc3339(NOW + 4)} 40 ReplicaLost 1 tiny-r1-1 {NONE} what happened at 40" in text
    assert "0 steps done again, 0.50 s; back since step 60, after 2.00 s view 2: rank 1 left" in text
    assert f"2 {rfc3339(NOW + 8)} 80 Scaled {NONE} {NONE} {NONE} what happened at 80" in text
    plots = [each for each in svgs(html) if each.findtext(f"{SVG}title") == "Replicas over steps"]
    assert [plot.get("class") for plot in plots] == ["w880", "w380"]
    line = plots[0].find(f"{SVG}polyline")
    assert line is not None
    assert len(line.get("points", "").split()) == 6
    assert [mark.get("class") for mark in plots[0].iter(f"{SVG}g")] == ["mark failed", "mark moved"]
    assert "not in the view" in text, "the key of the lanes"
    assert "n move or another number of replicas" in text
    without = page(run(), NOW)
    assert "Replicas" not in words(without)
    assert "not in the view" not in words(without)


def test_paths_of_this_machine_are_not_sent_along() -> None:
    spec = {"model": {"source": "/home/me/secret/bert"}, "dataset": {"source": "/data/x/r.csv", "text": ["t"], "label": "l"}}
    job = LiveMigrationJob.model_validate({"metadata": {"name": "job"}, "spec": spec | {"output": {"path": "/o"}}})
    html = page(run(job=job), NOW)
    assert "/home/me" not in html
    assert "/data/x" not in html
    assert "Model bert Data r.csv: t to l" in words(html)


def test_what_is_recorded_of_many_labels_is_not_lost_by_the_status() -> None:
    told = evaluation(100).model_copy(update={"labels": [], "confusion": []})
    assert merged([evaluation(100)], JobStatus(evaluations=[told])) == (evaluation(100),)
    assert merged([], JobStatus(evaluations=[told])) == (told,)


def test_evaluations_are_points_and_rows() -> None:
    html = page(
        run(evaluations=(evaluation(50), evaluation(100), evaluation(100, "test", 0.25), evaluation(60, loss=float("nan")))), NOW
    )
    check(html)
    loss = svgs(html)[0]
    assert len([c for c in loss.iter(f"{SVG}circle") if c.get("class") == "validation"]) == 2
    assert len([c for c in loss.iter(f"{SVG}path") if c.get("class") == "test"]) == 1
    assert "4 evaluations" in words(html)


def test_step_times_with_a_long_pause_are_logarithmic() -> None:
    assert "logarithmic" not in page(run(), NOW)
    html = page(run(pause=60.0), NOW)
    check(html)
    assert "seconds a step, logarithmic" in html


def test_large_runs_are_thinned() -> None:
    html = page(run(50_000), NOW)
    check(html)
    lines = [each.find(f"{SVG}polyline") for each in svgs(html)]
    assert all(line is not None and len(line.get("points", "").split()) <= 2000 for line in lines)
    assert len(html) < 300_000


def test_nothing_recorded() -> None:
    html = page(run(0), NOW)
    check(html)
    assert svgs(html) == []
    assert "No step is recorded." in html


def test_one_step() -> None:
    html = page(run(1, (incident(1),)), NOW)
    check(html)
    assert [each.get("class") for each in svgs(html)] == ["w880", "w380"]


def test_no_status_and_odd_losses_are_said() -> None:
    records = (Record(1, 0.5, NOW), Record(2, float("nan"), NOW + 1), Record(3, 0.4, NOW + 2))
    text = words(page(run(status=None, records=records, unread=2), NOW))
    assert "give --status" in text
    assert "2 lines of metrics.jsonl could not be read." in text
    assert "1 step with a loss that is no finite number, the first at 2, not drawn." in text


def test_whatever_files_say_is_text() -> None:
    job = LiveMigrationJob.model_validate(
        {
            "metadata": {"name": "job"},
            "spec": {
                "model": {"source": EVIL.replace("\ud800", "")},
                "dataset": {"source": "<b>", "text": ["<i>"], "label": "<u>"},
                "output": {"path": "o"},
            },
        }
    )
    status = JobStatus.model_construct(
        **{
            **dict(run().status),  # type: ignore[arg-type]
            "message": EVIL,
            "incidents": [
                Incident.model_construct(
                    **{**dict(incident(3)), **dict.fromkeys(("time", "kind", "pod", "node", "message", "recovery"), EVIL)}
                )
            ],
        }
    )
    checkpoint = CheckpointInfo.model_construct(**{**dict(CheckpointInfo(name="c", step=1)), "name": EVIL, "problem": EVIL})
    odd = Evaluation.model_construct(**{**dict(evaluation(3)), "split": EVIL, "labels": [EVIL, EVIL]})
    rank = RankStatus.model_construct(**{**dict(RankStatus(rank=0, state="x")), "pod": EVIL, "node": EVIL})
    status = status.model_copy(update={"ranks": [rank], "started": NOW, "finished": NOW + 1e6})
    html = page(run(name=EVIL, job=job, status=status, checkpoints=(checkpoint,), evaluations=(odd,)), NOW)
    check(html)
    assert "<script" not in html
    assert "\x1b" not in html
    assert "\u202e" not in html


def test_extreme_numbers_are_drawn() -> None:
    status = JobStatus(incidents=[incident(2**53, seconds=1e300), incident(-5, seconds=-1e300)], started=1e300, finished=-1e300)
    records = (Record(0, -1e29, -1e29), Record(1, 1e29, 1e29), Record(2**53, 5e-324, NOW))
    check(page(run(status=status, records=records, evaluations=(evaluation(2**53, loss=1e308),)), NOW))


def test_text_of_numbers() -> None:
    assert [number(v) for v in (None, float("nan"), 0.5, 1234.5)] == [NONE, NONE, "0.5000", "1,234.5000"]
    assert [seconds(v) for v in (None, float("nan"), -1, 0.0712, 12.34, 75, 7275, 1e300)] == [
        NONE, NONE, NONE, "0.07 s", "12.3 s", "1:15", "2:01:15", NONE,
    ]  # fmt: skip
    assert [moment(v) for v in (None, 0, 1e300, 1795246883.7)] == [NONE, NONE, NONE, "2026-11-21 07:41:23 UTC"]
    assert safe('<a b="c">\'\x07') == "&lt;a b=&quot;c&quot;&gt;&#x27;\ufffd"
