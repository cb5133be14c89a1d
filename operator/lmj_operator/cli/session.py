"""One foreground run: checks, the lock, the loop, signals, and what is said at the end."""

import asyncio
import signal
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lmj_api.clock import steady_time
from lmj_api.layout import Layout
from lmj_api.protocol import USER_ERROR, Evaluation
from lmj_api.spec.job import LiveMigrationJob
from lmj_api.status import JobStatus, Phase
from lmj_operator.backend.local.adopt import adopt
from lmj_operator.backend.local.aside import move_aside
from lmj_operator.backend.local.backend import LocalBackend
from lmj_operator.backend.local.lock import RunLock, RunLocked, lock_holder
from lmj_operator.backend.local.store import RunStore, StoreError
from lmj_operator.backend.local.sweep import sweep
from lmj_operator.backend.local.threads import processors, with_threads
from lmj_operator.cli.earlier import Wish, continued, earlier, wish_of, with_parts_of
from lmj_operator.cli.errors import BAD_INPUT, FAILED, INTERRUPTED, SUCCEEDED, CommandError
from lmj_operator.cli.leaving import Leaving, Meaning
from lmj_operator.cli.load import check_output, read_job
from lmj_operator.cli.notices import without_effect
from lmj_operator.cli.options import Output
from lmj_operator.cli.reporter import JsonReporter, PlainReporter, Reporter
from lmj_operator.cli.trainer import WARNING, check_job
from lmj_operator.plan.observe.units import duration
from lmj_operator.reconcile import Reconciler


def run_job(file: Path, sets: Sequence[str], output: Output, *, plain: bool, fresh: bool = False, goes_on: bool = False) -> int:
    """Run the job in ``file`` to its end and return the exit code. Raises CommandError before anything is started."""
    job = read_job(file, sets)
    check_output(job)
    if job.spec.suspend:
        raise CommandError(f"{file}: spec.suspend is true, so there is nothing to run; add --set spec.suspend=false")
    reporter = _reporter(output, plain)
    layout = Layout.of(job.spec)
    store = RunStore(layout.run)
    holder = lock_holder(store.lock_file)
    if holder is not None:
        raise CommandError(f"another lmj run (process {holder}) trains into {layout.output}", code=FAILED)
    wish = wish_of(layout, fresh=fresh, goes_on=goes_on)
    status = _read(store) if wish is not Wish.FRESH else None
    finished = status is not None and status.phase is Phase.SUCCEEDED
    found = earlier(job, layout, wish, finished=finished)
    changed = found is not None and bool(found.changes)
    if finished and status is not None and not changed:
        return _nothing_to_do(status, layout, reporter)
    notice = without_effect(job.spec)
    notices = [f"{file}: {notice}"] if notice is not None else []

    def told(line: str) -> None:
        if not line.startswith(WARNING):  # rank 0 warns
            reporter.say(line)

    if found is not None and changed:
        job, line = continued(job, found, told)
        notices.append(line)
    else:
        job = with_parts_of(job, found.job) if found is not None else job
        check_job(job, told)
    job, settled = with_threads(job, found.job.spec.training.threads if found is not None else None, processors())
    notices += [settled] if settled is not None else []
    try:
        layout.run.mkdir(parents=True, exist_ok=True)
        with RunLock(store.lock_file), reporter:
            sweep(store.pods)
            stored = _read(store) if wish is not Wish.FRESH else None
            job = store.identified(job, datetime.now(UTC), anew=stored is None)
            if wish is Wish.FRESH and (aside := move_aside(layout, job.metadata.name)) is not None:
                notices.append(f"starts over: what was in {layout.output} is in {aside} now")
            for line in notices:
                reporter.say(line)
            status = adopt(stored or JobStatus(), job.metadata.name, steady_time(), goes_on=changed)
            return asyncio.run(_train(job, store, status, reporter, layout))
    except RunLocked as error:
        raise CommandError(str(error), code=FAILED) from error
    except OSError as error:
        if error.filename is None:
            raise
        raise CommandError(f"{error.filename}: {error.strerror}") from error


def _reporter(output: Output, plain: bool) -> Reporter:
    if output is Output.JSON:
        return JsonReporter()
    if plain or not sys.stdout.isatty():
        return PlainReporter()
    from lmj_operator.cli.terminal import TerminalReporter

    return TerminalReporter()


def _read(store: RunStore) -> JobStatus | None:
    try:
        return store.read_status()
    except StoreError as error:
        raise CommandError(str(error)) from error


def _nothing_to_do(status: JobStatus, layout: Layout, reporter: Reporter) -> int:
    result, lines = summary(status, layout, None)
    lines = ["finished already, nothing to do: --fresh trains it again, --continue with more epochs or steps for longer", *lines]
    reporter.result({**result, "exitCode": SUCCEEDED}, lines)
    return SUCCEEDED


async def _train(job: LiveMigrationJob, store: RunStore, status: JobStatus, reporter: Reporter, layout: Layout) -> int:
    begin = time.monotonic()
    async with LocalBackend(job, store, status) as backend:
        reconciler = Reconciler(backend, reporter)
        running = asyncio.create_task(reconciler.run())

        leaving = Leaving()

        def leave(number: int) -> None:
            meaning = leaving.heard(number, time.monotonic())
            if meaning is Meaning.AT_ONCE:
                running.cancel()
            elif meaning is Meaning.CHECKPOINT:
                backend.interrupted = True
                again = ", once more to leave at once" if number == signal.SIGINT else ""
                reporter.say(f"{signal.Signals(number).name}: takes a checkpoint and leaves{again}; the same command resumes")
                reconciler.wake()

        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, leave, number)
        try:
            status = await running
        except asyncio.CancelledError:
            if not backend.interrupted:
                raise
            reporter.say("left at once; the same command goes on from the newest checkpoint")
            return INTERRUPTED
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
    code = exit_code(status)
    result, lines = summary(status, layout, time.monotonic() - begin)
    reporter.result({**result, "exitCode": code}, lines)
    if status.phase is Phase.FAILED:
        raise CommandError(status.message, code=code)
    return code


def exit_code(status: JobStatus) -> int:
    """The command's exit code for a job that came to rest with ``status``."""
    if status.phase is Phase.SUCCEEDED:
        return SUCCEEDED
    if status.phase is Phase.SUSPENDED:
        return INTERRUPTED
    return BAD_INPUT if any(r.exit_code == USER_ERROR and r.exit_message == status.message for r in status.ranks) else FAILED


def summary(status: JobStatus, layout: Layout, seconds: float | None) -> tuple[dict[str, Any], list[str]]:
    """The end of a run that took ``seconds``, as data and as lines for people."""
    test = next((e for e in reversed(status.evaluations) if e.split == "test"), None)
    result: dict[str, Any] = {
        "phase": status.phase.value,
        "message": status.message,
        "steps": status.progress.step if status.progress is not None else 0,
        "testAccuracy": test.accuracy if test is not None else None,
        "evaluations": [e.model_dump(mode="json", by_alias=True) for e in status.evaluations],
        "model": str(layout.model) if status.phase is Phase.SUCCEEDED else None,
        "output": str(layout.output),
        "seconds": round(seconds, 3) if seconds is not None else None,
        "restarts": status.restarts,
        "stepsLost": status.steps_lost,
    }
    took = f" after {duration(seconds)}" if seconds is not None else ""
    if status.phase is Phase.SUCCEEDED:
        whole = " of this start; over all starts" if took and status.restarts_before else ""
        lines = [
            f"succeeded{took}{whole}: {result['steps']} steps, {status.restarts} restarts, {status.steps_lost} steps done again"
        ]
        lines += [f"test {_scores(test)} ({test.samples} samples)"] if test is not None else []
        lines += [f"model: {layout.model}"]
        # A model of a class of the user's own has its file beside it, and is used by programs.
        lines += [f'try: lmj predict {layout.model} "a text of yours"'] if not any(layout.model.glob("*.py")) else []
    elif status.phase is Phase.SUSPENDED:
        lines = [f"{status.message}{took}; the same command resumes"]
    else:
        lines = [f"failed{took}; the ranks' logs are in {layout.logs}"]
    return result, lines


def _scores(test: Evaluation) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in test.scores.items()) or f"loss {test.loss_text}"
