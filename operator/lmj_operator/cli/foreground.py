"""One run in the foreground: checks, the lock, the loop, and what asks it to leave. The command and the Python package both run jobs by it."""

import asyncio
import signal
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime

from lmj_api.clock import steady_time
from lmj_api.layout import Layout
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
from lmj_operator.cli.ended import Ended, summary
from lmj_operator.cli.errors import FAILED, SUCCEEDED, CommandError
from lmj_operator.cli.leaving import Leaving, Meaning
from lmj_operator.cli.load import check_output
from lmj_operator.cli.notices import without_effect
from lmj_operator.cli.reporter import Reporter
from lmj_operator.cli.trainer import WARNING, check_job
from lmj_operator.reconcile import Reconciler

Listen = Callable[[Callable[[int], None]], AbstractContextManager[None]]
"""Has the function that it is given called in the loop with the number of each signal that comes, in ``with``."""


async def run_here(
    job: LiveMigrationJob, reporter: Reporter, listen: Listen, *, named: str, fresh: bool = False, goes_on: bool = False
) -> Ended:
    """Run ``job``, whose paths are absolute, to its end on this machine. Raises CommandError before anything is started.

    ``named``: how messages call it. ``fresh``, ``goes_on``: as ``--fresh`` and ``--continue`` say. A run that fails is no error here.
    """
    check_output(job)
    if job.spec.suspend:
        raise CommandError(f"{named}: spec.suspend is true, so there is nothing to run; add --set spec.suspend=false")
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
        return _nothing_to_do(job, status, layout, reporter)
    notice = without_effect(job.spec)
    notices = [f"{named}: {notice}"] if notice is not None else []

    def told(line: str) -> None:
        if not line.startswith(WARNING):  # rank 0 warns
            reporter.say(line)

    if found is not None and changed:
        job, line = await continued(job, found, told)
        notices.append(line)
    else:
        job = with_parts_of(job, found.job) if found is not None else job
        await check_job(job, told)
    job, settled = with_threads(job, found.job.spec.training.threads if found is not None else None, processors())
    notices += [settled] if settled is not None else []
    try:
        layout.run.mkdir(parents=True, exist_ok=True)
        # Tokens and what pods were given are for nobody else on this machine; an earlier version left it open.
        layout.run.chmod(0o700)
        with RunLock(store.lock_file), reporter:
            sweep(store.pods)
            stored = _read(store) if wish is not Wish.FRESH else None
            job = store.identified(job, datetime.now(UTC), anew=stored is None)
            if wish is Wish.FRESH and (aside := move_aside(layout, job.metadata.name)) is not None:
                notices.append(f"starts over: what was in {layout.output} is in {aside} now")
            for line in notices:
                reporter.say(line)
            status = adopt(stored or JobStatus(), job.metadata.name, steady_time(), goes_on=changed)
            return await _train(job, store, status, reporter, layout, listen)
    except RunLocked as error:
        raise CommandError(str(error), code=FAILED) from error
    except OSError as error:
        if error.filename is None:
            raise
        raise CommandError(f"{error.filename}: {error.strerror}") from error


def _read(store: RunStore) -> JobStatus | None:
    try:
        return store.read_status()
    except StoreError as error:
        raise CommandError(str(error)) from error


def _nothing_to_do(job: LiveMigrationJob, status: JobStatus, layout: Layout, reporter: Reporter) -> Ended:
    stateless = job.spec.strategy.stateless
    result, lines = summary(status, layout, None, stateless=stateless)
    how = (
        "--fresh runs it again, other command.args with --continue too"
        if stateless
        else "--fresh trains it again, --continue with more epochs or steps for longer"
    )
    lines = [f"finished already, nothing to do: {how}", *lines]
    reporter.result({**result, "exitCode": SUCCEEDED}, lines)
    return Ended(status, layout, None, stateless=stateless)


async def _train(
    job: LiveMigrationJob, store: RunStore, status: JobStatus, reporter: Reporter, layout: Layout, listen: Listen
) -> Ended:
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
                what = "has the script save and end" if job.spec.strategy.stateless else "takes a checkpoint and leaves"
                reporter.say(f"{signal.Signals(number).name}: {what}{again}; the same command resumes")
                reconciler.wake()

        try:
            with listen(leave):
                await running
        except asyncio.CancelledError:
            if not backend.interrupted:
                raise
            reporter.say("left at once; the same command goes on from the newest checkpoint")
            return Ended(_read(store) or backend.status, layout, time.monotonic() - begin, at_once=True)
    status = backend.status
    ended = Ended(status, layout, time.monotonic() - begin, stateless=job.spec.strategy.stateless)
    result, lines = summary(status, layout, ended.seconds, stateless=ended.stateless)
    reporter.result({**result, "exitCode": ended.code}, lines)
    return ended
