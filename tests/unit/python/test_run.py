"""``lmj.run``: whose thread does what, what signals do, and what it raises. The runs themselves are faked."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import lmj
from lmj import foreground
from lmj_api.layout import Layout
from lmj_api.spec import LiveMigrationJob
from lmj_api.status import JobStatus
from lmj_operator.cli.ended import Ended
from lmj_operator.cli.errors import CommandError
from lmj_operator.cli.foreground import Listen
from lmj_operator.cli.reporter import Reporter

Fake = Callable[[LiveMigrationJob, Reporter, Listen], Awaitable[Ended]]
SECONDS = 20.0


def job(folder: Path) -> lmj.Job:
    dataset = {"source": "data.csv", "text": ["text"], "label": "label"}
    return lmj.Job(name="tiny", model={"scratch": {}}, dataset=dataset, output={"path": str(folder)})


def ended(folder: Path, phase: lmj.Phase, message: str = "", *, at_once: bool = False) -> Ended:
    return Ended(JobStatus(phase=phase, message=message), Layout(folder, folder / "checkpoints"), 1.0, at_once)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Callable[[Fake], dict[str, Any]]:
    """Has a run be what it is given; what it was asked is in the dict that comes back."""

    def put(run: Fake) -> dict[str, Any]:
        asked: dict[str, Any] = {}

        async def run_here(job: LiveMigrationJob, reporter: Reporter, listen: Listen, **options: Any) -> Ended:
            asked.update(options)
            return await run(job, reporter, listen)

        monkeypatch.setattr(foreground, "run_here", run_here)
        return asked

    return put


def test_a_run_that_ends_well_is_its_result(fake: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def run(job: LiveMigrationJob, reporter: Reporter, listen: Listen) -> Ended:
        with reporter:
            reporter.say("the same command resumes")
        (tmp_path / "model").mkdir(exist_ok=True)
        (tmp_path / "model-int8").mkdir(exist_ok=True)
        (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 0.5}\n')
        return ended(tmp_path, lmj.Phase.SUCCEEDED)

    asked = fake(run)
    result = lmj.run(job(tmp_path), goes_on=True)
    assert (result.phase, result.model, result.int8, result.adapter, result.losses()) == (
        lmj.Phase.SUCCEEDED,
        tmp_path / "model",
        tmp_path / "model-int8",
        None,
        {1: 0.5},
    )
    assert asked == {"named": "tiny", "fresh": False, "goes_on": True}
    assert capsys.readouterr().out == "the same call resumes\n"
    assert lmj.run(job(tmp_path), progress=False).output == tmp_path
    assert capsys.readouterr().out == ""


def test_it_works_where_a_loop_runs_and_tells_in_the_callers_thread(
    fake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []

    async def run(job: LiveMigrationJob, reporter: Reporter, listen: Listen) -> Ended:
        threads.append(threading.current_thread())
        reporter.say("x")
        return ended(tmp_path, lmj.Phase.SUCCEEDED)

    fake(run)
    monkeypatch.setattr("lmj_operator.cli.reporter.PlainReporter.say", lambda *_: threads.append(threading.current_thread()))

    async def cell() -> lmj.Result:
        return lmj.run(job(tmp_path))

    assert asyncio.run(cell()).phase is lmj.Phase.SUCCEEDED
    assert threads == [threads[0], threading.main_thread()]
    assert threads[0] is not threads[1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_has_a_run_that_trains_leave(fake: Any, tmp_path: Path, number: signal.Signals) -> None:
    heard: list[int] = []

    async def run(job: LiveMigrationJob, reporter: Reporter, listen: Listen) -> Ended:
        told = asyncio.Event()

        def leave(number: int) -> None:
            heard.append(number)
            told.set()

        with listen(leave):
            os.kill(os.getpid(), number)
            await asyncio.wait_for(told.wait(), SECONDS)
        os.kill(os.getpid(), number)  # what comes while it leaves does not end that
        await asyncio.sleep(0.1)
        return ended(tmp_path, lmj.Phase.SUSPENDED, "stopped at step 7")

    fake(run)
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(lmj.RunInterrupted, match=r"stopped at step 7; the same call resumes") as interrupted:
        lmj.run(job(tmp_path))
    assert isinstance(interrupted.value, KeyboardInterrupt)
    assert interrupted.value.result is not None
    assert interrupted.value.result.phase is lmj.Phase.SUSPENDED
    assert heard == [number]
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_signal_before_it_trains_ends_it(fake: Any, tmp_path: Path) -> None:
    cleaned: list[str] = []

    async def run(job: LiveMigrationJob, reporter: Reporter, listen: Listen) -> Ended:
        os.kill(os.getpid(), signal.SIGINT)
        try:
            await asyncio.sleep(SECONDS)
        finally:
            cleaned.append("up")
        raise AssertionError("it was not ended")

    fake(run)
    with pytest.raises(lmj.RunInterrupted, match=r"before it trained") as interrupted:
        lmj.run(job(tmp_path))
    assert interrupted.value.result is None
    assert cleaned == ["up"]


def test_in_another_thread_it_runs_without_signals(fake: Any, tmp_path: Path) -> None:
    async def run(job: LiveMigrationJob, reporter: Reporter, listen: Listen) -> Ended:
        return ended(tmp_path, lmj.Phase.SUCCEEDED)

    fake(run)
    found: list[lmj.Result] = []
    thread = threading.Thread(target=lambda: found.append(lmj.run(job(tmp_path))))
    thread.start()
    thread.join(SECONDS)
    assert [result.phase for result in found] == [lmj.Phase.SUCCEEDED]


@pytest.mark.parametrize(
    ("raised", "kind", "says"),
    [
        (CommandError("spec.dataset.maxLength: no", "second"), lmj.JobError, "^dataset.max_length: no\nsecond$"),
        (CommandError("another lmj run trains", code=1), lmj.RunError, "^another lmj run trains$"),
        (CommandError("use --fresh to start over"), lmj.JobError, "^use fresh=True to start over$"),
        (ValueError("of ours"), ValueError, "^of ours$"),
    ],
)
def test_what_keeps_it_from_running_is_raised(fake: Any, tmp_path: Path, raised: Exception, kind: type, says: str) -> None:
    async def run(job: LiveMigrationJob, reporter: Reporter, listen: Listen) -> Ended:
        raise raised

    fake(run)
    with pytest.raises(kind, match=says) as told:
        lmj.run(job(tmp_path))
    assert type(told.value) is kind


def test_a_job_that_fails_raises_its_message(fake: Any, tmp_path: Path) -> None:
    async def run(job: LiveMigrationJob, reporter: Reporter, listen: Listen) -> Ended:
        return ended(tmp_path, lmj.Phase.FAILED, "rank 0: out of memory")

    fake(run)
    with pytest.raises(lmj.JobFailed, match=r"^rank 0: out of memory$") as failed:
        lmj.run(job(tmp_path))
    assert failed.value.result.phase is lmj.Phase.FAILED


def test_who_leaves_at_once_is_told_so(fake: Any, tmp_path: Path) -> None:
    async def run(job: LiveMigrationJob, reporter: Reporter, listen: Listen) -> Ended:
        return ended(tmp_path, lmj.Phase.RUNNING, at_once=True)

    fake(run)
    with pytest.raises(lmj.RunInterrupted, match=r"left at once"):
        lmj.run(job(tmp_path))


def test_a_run_of_which_nobody_can_be_told_ends(fake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(job: LiveMigrationJob, reporter: Reporter, listen: Listen) -> Ended:
        reporter.say("x")
        await asyncio.sleep(SECONDS)
        raise AssertionError("it was not ended")

    def closed(*_: object) -> None:
        raise BrokenPipeError("nobody reads")

    fake(run)
    monkeypatch.setattr("lmj_operator.cli.reporter.PlainReporter.say", closed)
    begin = time.monotonic()
    with pytest.raises(BrokenPipeError):
        lmj.run(job(tmp_path))
    assert time.monotonic() - begin < SECONDS / 2


def test_a_jobs_file_will_do(fake: Any, tmp_path: Path) -> None:
    ran: list[LiveMigrationJob] = []

    async def run(job: LiveMigrationJob, reporter: Reporter, listen: Listen) -> Ended:
        ran.append(job)
        return ended(tmp_path, lmj.Phase.SUCCEEDED)

    fake(run)
    file = tmp_path / "job.yaml"
    file.write_text(job(Path("out")).to_yaml())
    lmj.run(file)
    lmj.run(str(file))
    assert [made.spec.output.path for made in ran] == [str(tmp_path / "out")] * 2


def test_losses_that_cannot_be_read_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(path: Path) -> None:
        raise CommandError(f"{path.name}: Input/output error")

    monkeypatch.setattr("lmj_operator.cli.report.sources.read_records", broken)
    with pytest.raises(lmj.RunError, match=r"^metrics.jsonl: Input/output error$"):
        lmj.Result(JobStatus(), tmp_path).losses()
