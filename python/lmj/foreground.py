"""A run in a thread of its own, while the caller's thread tells of it and hears signals: so it works where a loop runs, as in notebooks."""

import asyncio
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from lmj.progress import Relay
from lmj_api.spec import LiveMigrationJob
from lmj_operator.cli.ended import Ended
from lmj_operator.cli.foreground import run_here
from lmj_operator.cli.reporter import Reporter

_NUMBERS = (signal.SIGINT, signal.SIGTERM)


class Foreground:
    """One run of ``job``."""

    def __init__(self, job: LiveMigrationJob, reporter: Reporter, *, fresh: bool, goes_on: bool) -> None:
        self._job, self._reporter = job, reporter
        self._fresh, self._goes_on = fresh, goes_on
        self._news: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._loop = asyncio.new_event_loop()
        self._task: asyncio.Task[Ended] | None = None
        self._heard: Callable[[int], None] = self._give_up
        self._ended: Ended | None = None
        self._error: BaseException | None = None
        self._given_up = False

    def wait(self) -> Ended:
        """Run it to its end. Raises as :func:`lmj_operator.cli.foreground.run_here`, and CancelledError when a signal came before it trained."""
        thread = threading.Thread(target=self._run, name="lmj-run")
        with _handled(self.tell):
            thread.start()
            try:
                while (news := self._news.get()) is not None:
                    news()
            except BaseException:  # who tells of it cannot, so nobody waits for it
                self._post(self._give_up, signal.SIGTERM)
                raise
            finally:
                thread.join()
        if self._ended is None:
            assert self._error is not None
            raise self._error
        return self._ended

    def tell(self, number: int) -> None:
        """A signal came; in any thread."""
        self._post(lambda number: self._heard(number), number)

    def _post(self, call: Callable[[int], None], number: int) -> None:
        with suppress(RuntimeError):  # the loop is closed: the run is over
            self._loop.call_soon_threadsafe(call, number)

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                self._ended = runner.run(self._main())
        except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
            self._error = error
        finally:
            self._news.put(None)

    async def _main(self) -> Ended:
        self._task = asyncio.current_task()
        if self._given_up:
            raise asyncio.CancelledError
        relay = Relay(self._reporter, self._news.put)
        name = self._job.metadata.name
        return await run_here(self._job, relay, self._listen, named=name, fresh=self._fresh, goes_on=self._goes_on)

    @contextmanager
    def _listen(self, heard: Callable[[int], None]) -> Iterator[None]:
        self._heard = heard
        try:
            yield
        finally:
            self._heard = lambda number: None  # it is leaving already

    def _give_up(self, number: int) -> None:
        self._given_up = True
        if self._task is not None:
            self._task.cancel()


@contextmanager
def _handled(told: Callable[[int], None]) -> Iterator[None]:
    """``told`` hears signals, and nobody else does. In a thread that is not the main one there is nothing to hear."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda number, frame: told(number)) for number in _NUMBERS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
