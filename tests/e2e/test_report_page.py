"""The report in a real browser: nothing overflows, everything is there, nothing is asked of a network, and a run becomes a picture.

With ``LMJ_PICTURE`` (``make report-picture``) the run is the whole quickstart, and that file gets the picture: it is the README's.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from browser import Page, browser
from cluster.errors import Unavailable
from jobs import DEADLINE, Job
from moving import migrate, migrating

from lmj_api.protocol import CheckpointInfo, Evaluation, Progress
from lmj_api.spec.job import LiveMigrationJob
from lmj_api.status import Incident, IncidentKind, JobStatus, Phase, RankStatus
from lmj_operator.cli.report.page import page as report_page
from lmj_operator.cli.report.run import Run
from lmj_operator.cli.report.series import Record
from lmj_operator.plan.observe.times import rfc3339

pytestmark = pytest.mark.e2e

CHECKOUT = Path(__file__).parents[2]
PICTURE = os.environ.get("LMJ_PICTURE")
WIDE, PHONE = 1100, 390
WIDTHS = (320, PHONE, 600, 641, 768, WIDE, 2000)
NOW = 1_800_000_000.0
EVIL = "\"'><script>document.title='owned'</script><img src=http://127.0.0.1:9/x onerror=alert(1)>&amp;" + "w" * 300

OVERFLOWING = """
(() => {
  const wide = document.documentElement.clientWidth, out = [];
  for (const e of document.querySelectorAll('body *')) {
    const box = e.getBoundingClientRect();
    if (box.width && (box.right > wide + 0.5 || box.left < -0.5)) out.push([e.tagName, e.className, e.textContent.slice(0, 40), box.right]);
    if (e.closest('.tiles') && e.scrollWidth > e.clientWidth + 1) out.push(['tile', e.textContent]);
  }
  for (const svg of document.querySelectorAll('svg')) {
    const room = svg.getBoundingClientRect();
    if (room.width) for (const text of svg.querySelectorAll('text, rect, circle')) {
      const box = text.getBoundingClientRect();
      if (box.right > room.right + 1 || box.left < room.left - 1 || box.bottom > room.bottom + 1 || box.top < room.top - 1)
        out.push(['in svg', text.tagName, text.textContent.slice(0, 40), box.left - room.left, box.right - room.right]);
    }
  }
  return [document.documentElement.scrollWidth > WIDTH, out.slice(0, 5)];
})()
"""
SHOWN = """
Object.fromEntries([...document.querySelectorAll('h2')].map(h => [h.textContent, [...(h.nextElementSibling?.querySelectorAll('svg') ?? [])]
  .filter(s => s.getBoundingClientRect().width > 0).map(s => Math.round(s.getBoundingClientRect().width))]))
"""
LINES = """
[...document.querySelectorAll('polyline')].filter(e => e.getBoundingClientRect().width > 0)
  .map(e => [e.getAttribute('class'), Math.round(e.getTotalLength())])
"""


@pytest.fixture(scope="module")
def tab() -> Iterator[Page]:
    try:
        with browser() as page:
            yield page
    except Unavailable as reason:
        pytest.skip(f"no browser here: {reason}")


def hostile_run() -> Run:
    """Long names, hostile text, more labels than are drawn, and as many incidents as a status keeps."""
    labels = [f"label number {index} {EVIL[:40]}" for index in range(40)]
    counts = [[(i * 7 + j * 3) % 11 + (900 if i == j else 0) for j in range(40)] for i in range(40)]
    evaluations = tuple(
        Evaluation(split=split, step=step, samples=40_000, loss=0.5, accuracy=0.9, f1=0.8, labels=labels, confusion=counts)
        for split, step in (("validation", 500), ("validation", 1000), ("test", 1000))
    )
    incidents = [
        Incident.model_construct(
            **dict(
                Incident(
                    time=rfc3339(NOW + 60 * index),
                    kind=IncidentKind.MOVED if index % 3 else IncidentKind.POD_GONE,
                    rank=index % 3,
                    pod=f"a-job-with-a-very-long-name-indeed-r{index % 3}-{index}",
                    node=f"node-{index}.some.region.cloud.example",
                    message=EVIL,
                    view=index,
                    step=100 * index,
                    steps_lost=3,
                    seconds=12.0,
                    recovery=EVIL,
                )
            )
        )
        for index in range(1, 11)
    ]
    ranks = [RankStatus(rank=rank, pod=f"pod-{rank}", node=EVIL, state="Completed") for rank in range(3)]
    progress = Progress(step=1_000_000, steps=123_456_789, epoch=1.0)
    status = JobStatus(phase=Phase.RUNNING, message=EVIL, incidents=incidents, ranks=ranks, progress=progress, restarts=10**6)
    status = status.model_copy(update={"started": NOW, "finished": NOW + 700})
    job = {"source": EVIL, "text": [EVIL], "label": EVIL}
    document = {"metadata": {"name": "job"}, "spec": {"model": {"source": EVIL}, "dataset": job, "output": {"path": "o"}}}
    records = tuple(Record(step, 1 / step, NOW + 0.7 * step, 1e-5 * step) for step in range(1, 1001))
    checkpoints = (CheckpointInfo.model_construct(**{**dict(CheckpointInfo(name="c", step=1)), "name": EVIL, "problem": EVIL}),)
    return Run(EVIL, LiveMigrationJob.model_validate(document), status, records, evaluations, checkpoints)


def test_hostile_text_and_long_names_fit_every_window_and_run_nothing(tab: Page, tmp_path: Path) -> None:
    file = tmp_path / "hostile.html"
    file.write_bytes(report_page(hostile_run(), NOW).encode())
    tab.show(file)
    for width in WIDTHS:
        tab.resize(width)
        assert tab.ask(OVERFLOWING.replace("WIDTH", str(width))) == [False, []], width
    assert tab.ask("document.title").startswith("\"'><script>")
    assert tab.ask("document.querySelectorAll('script, img').length") == 0
    assert tab.complaints == []


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A run of the real command: a worker is killed on the way, and a rank moves."""
    job = Job(tmp_path_factory.mktemp("report"))
    document = yaml.safe_load(job.file.read_text())
    killed, moves = 60, 140
    if PICTURE:
        document = yaml.safe_load((CHECKOUT / "examples" / "quickstart.yaml").read_text())
        shutil.copytree(CHECKOUT / "examples" / "data", job.folder / "data")
        document["spec"]["output"]["path"] = str(job.output)
        killed, moves = 330, 800
    else:
        document["spec"]["training"] |= {"maxSteps": 600, "epochs": 100}
    job.file.write_text(yaml.safe_dump(document))
    process = job.start("--plain")
    job.wait_for_step(killed, process)
    os.kill(job.worker(1), signal.SIGKILL)
    job.wait_for_step(moves, process)
    if PICTURE:
        with migrating(job, 1) as asked:
            said = asked.communicate(timeout=DEADLINE)
            assert asked.returncode == 0, said
    else:
        migrate(job, 1)  # training stands while the new pod starts: so short a run would end meanwhile
    out, err = job.end(process)
    assert process.returncode == 0, out + err
    return job


def test_a_run_becomes_a_picture(finished: Job, tab: Page, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    command = [sys.executable, "-m", "lmj_operator.cli.main", "report", str(finished.output), "-o", str(file)]
    subprocess.run(command, check=True, timeout=60)
    tab.show(file)
    for width in WIDTHS:
        tab.resize(width)
        assert tab.ask(OVERFLOWING.replace("WIDTH", str(width))) == [False, []], width
    for width, drawn in ((WIDE, 2), (PHONE, 1)):
        tab.resize(width)
        shown = tab.ask(SHOWN)
        plots = ["Loss", "Accuracy", "Learning rate", "Ranks", "Step time", "Confusion matrix"]
        assert {name: len(shown[name]) for name in plots} == dict.fromkeys(plots, 1), width
        assert (shown["Loss"][0] > 1.8 * shown["Accuracy"][0]) == (drawn == 2)
        lines = dict(tab.ask(LINES))
        assert {"raw", "line", "validation", "rate"} <= set(lines)
        assert all(length > 100 for length in lines.values())
    assert_says_what_happened(finished, tab)
    tab.resize(WIDE)
    below = tab.ask(
        "[...document.querySelectorAll('h2')].find(h => h.textContent == 'Step time').getBoundingClientRect().top + scrollY"
    )
    picture = CHECKOUT / PICTURE if PICTURE else tmp_path / "report.png"
    tab.picture(picture, below - 10)
    content = picture.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert (int.from_bytes(content[16:20]), abs(int.from_bytes(content[20:24]) - below + 10) <= 1) == (WIDE, True)
    assert len(content) > 30_000  # a white page of that size has 5,000
    assert tab.complaints == []


def assert_says_what_happened(finished: Job, tab: Page) -> None:
    status = finished.status()
    (killed, moved) = status["incidents"]
    assert (killed["kind"], moved["kind"]) == ("WorkerExited", "Moved")
    stays = tab.ask("[...document.querySelectorAll('.timeline.w380 .stay title')].map(e => e.textContent.split(',')[0])")
    places = [f"rank 0: {status['ranks'][0]['pod']}", f"rank 1: {moved['pod']}", f"rank 1: {status['ranks'][1]['pod']}"]
    assert [stay.split(" on ")[0] for stay in stays] == places
    assert status["ranks"][1]["pod"] != moved["pod"]
    evaluation = json.loads((finished.output / "evaluation.json").read_text())[-1]
    cells = tab.ask("[...document.querySelectorAll('.matrix .cell title')].map(e => e.textContent)")
    counts = [value for row in evaluation["confusion"] for value in row]
    assert [int(cell.split(": ")[1].split(" of ")[0].replace(",", "")) for cell in cells] == counts
    tiles = tab.ask(
        "Object.fromEntries([...document.querySelectorAll('.tiles div')].map(e => [...e.children].map(c => c.textContent)))"
    )
    assert tiles["test accuracy"] == f"{evaluation['accuracy']:.4f}"
    assert (tiles["restarts"], tiles["migrations"]) == (str(status["restarts"]), "1")
