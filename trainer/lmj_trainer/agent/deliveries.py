"""What an agent does with a run's records while its worker leads, and with the results once that has completed: nothing of it is training's."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

from lmj_api.clock import steady_time
from lmj_api.layout import Layout
from lmj_api.protocol import PUSH_SECONDS, USER_ERROR, AgentState, Publication, WorkerPhase
from lmj_api.spec import LiveMigrationJob
from lmj_api.tokens import PREFIX, STORE
from lmj_api.view import View
from lmj_trainer.agent.helper import Helper
from lmj_trainer.agent.supervisor import Supervisor
from lmj_trainer.beside import beside
from lmj_trainer.trackers.views import add_view

log = logging.getLogger(__name__)

END_SECONDS = 60.0
"""A tracker has so long to take what is left when the job is complete."""
LEAVE_SECONDS = 3.0
"""A helper that is to leave has so long before it is killed."""
PAUSES = (2.0, 10.0, 30.0, 60.0, 120.0)
"""Before a tracker's process that died is started again, seconds; after the last one it is not."""

_END = f"end {END_SECONDS:g}"

Start = Callable[[int], Helper]
Push = Callable[[], Helper]


def without_tokens(environment: Mapping[str, str]) -> dict[str, str]:
    """``environment`` without the job's credentials: only the process that one is for gets it."""
    return {name: value for name, value in environment.items() if not name.startswith(PREFIX)}


def of_store(environment: Mapping[str, str]) -> dict[str, str]:
    """What of ``environment`` leads to the job's checkpoints in object storage."""
    return {name: value for name, value in environment.items() if name.startswith(STORE)}


def leads(state: AgentState) -> View | None:
    """The view that this pod's worker leads, as it trains or has trained to the end; None: another does, or none is led."""
    view, worker = state.view, state.worker
    if view is None or not view.members or view.members[0].pod != state.pod:
        return None
    return view if worker.phase in (WorkerPhase.RUNNING, WorkerPhase.COMPLETED) and worker.view == view.number else None


class Deliveries:
    """Lives in the agent's event loop. Of a job that is shown nowhere else it does nothing."""

    def __init__(self, job: LiveMigrationJob, supervisor: Supervisor, start: Start, push: Push) -> None:
        """``start``: the process that feeds a tracker, by its number. ``push``: the one that pushes the model to the hub."""
        self._job, self._supervisor, self._start = job, supervisor, start
        self._push = push
        self._pushing: Helper | None = None
        self._output, self._views = job.spec.output.path, Layout.of(job.spec).views
        self._numbers = range(len(job.spec.output.trackers))
        self._feeding: dict[int, asyncio.Task[None]] = {}
        self._helpers: dict[int, Helper] = {}
        self._over = asyncio.Event()
        """The worker has completed."""
        self._word = "go"
        self._noted = 0
        self._noting: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Until the results are delivered, or for ever. Cancel it, then :meth:`close`."""
        if not self._job.spec.output.delivers:
            return
        while True:
            changed, state = self._supervisor.changed, self._supervisor.state
            view = leads(state)
            self._say("go" if view is not None else "hold")
            if view is not None:
                self._note(view)
                self._feed()
                if state.worker.phase is WorkerPhase.COMPLETED:
                    await self._complete()
                    return
            elif state.view is not None and state.view.members and state.view.members[0].pod != state.pod:
                await self._leave()
            await changed.wait()

    async def close(self) -> None:
        """Let go of all that runs."""
        if self._pushing is not None:
            self._pushing.kill()
        await self._leave()
        for task in self._noting:
            task.cancel()

    def _say(self, word: str) -> None:
        """While this pod's worker does not lead, another's may, whose agent feeds the trackers."""
        if word != self._word:
            self._word = word
            for helper in self._helpers.values():
                helper.say(word)

    def _note(self, view: View) -> None:
        if view.number <= self._noted:
            return
        self._noted = view.number
        run = self._job.metadata.run.id
        written = beside(lambda: add_view(self._views, run, view, steady_time()), "views")
        self._begin(self._told(asyncio.wrap_future(written), f"{self._views} lacks view {view.number}"))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._noting.add(task)
        task.add_done_callback(self._noting.discard)

    async def _told(self, work: Awaitable[None], what: str) -> None:
        try:
            await work
        except OSError as error:
            self._supervisor.warn(f"{what}: {error}")

    def _feed(self) -> None:
        for number in self._numbers:
            if number not in self._feeding:
                self._feeding[number] = asyncio.create_task(self._keep(number))

    async def _keep(self, number: int) -> None:
        """Keep the process of tracker ``number`` alive until it ends by itself."""
        name = f"output.trackers[{number}] ({self._job.spec.output.trackers[number].kind})"
        for deaths, pause in enumerate((*PAUSES, None)):
            code = await self._once(number, name)
            if code == 0:
                return  # it has said what there is to say
            if code == USER_ERROR:
                self._supervisor.warn(f"{name} is left out: what it needs is missing in this image; see the pod's log")
                return
            if pause is None or self._over.is_set():
                self._supervisor.warn(f"{name} is left out: its process died, at last with exit code {code}; see the pod's log")
                return
            if deaths == 0:
                self._supervisor.warn(f"{name}: its process died with exit code {code}; another is started")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._over.wait()

    async def _once(self, number: int, name: str) -> int:
        try:
            helper = self._start(number)
        except OSError as error:
            log.warning("%s: %s", name, error)
            return 126  # a shell's for what cannot be run
        self._helpers[number] = helper
        helper.say(_END if self._over.is_set() else self._word)
        try:
            async for kind, text in helper.words():
                if kind == "warning":
                    self._supervisor.warn(text)
                else:
                    log.info("%s: %s: %s", name, kind, text)
        finally:
            code = await asyncio.shield(helper.ended(LEAVE_SECONDS))
            del self._helpers[number]
        return code

    async def _complete(self) -> None:
        """The worker has completed: everything is to be told, and then this is done, whatever came of it."""
        self._over.set()
        pushing = asyncio.create_task(self._publish()) if self._job.spec.output.hub is not None else None
        for helper in self._helpers.values():
            helper.say(_END)
        await self._wait(END_SECONDS + LEAVE_SECONDS)
        late = sorted(self._feeding)
        await self._leave()
        for number in late:
            self._supervisor.warn(f"output.trackers[{number}] did not end in time: lmj track {self._output} sends what it lacks")
        if pushing is not None:
            await pushing
        self._supervisor.delivered()

    async def _publish(self) -> None:
        """Push the model, and say what came of it, whatever that is."""
        told: dict[str, str] = {}
        try:
            helper = self._pushing = self._push()
        except OSError as error:
            self._supervisor.published(Publication(problem=f"it could not be begun: {error}"))
            return
        try:
            async with asyncio.timeout(PUSH_SECONDS):
                told = {kind: text async for kind, text in helper.words()}
        except TimeoutError:
            helper.kill()
            told = {"problem": f"it was not done within {PUSH_SECONDS:g} s"}
        finally:
            code = await asyncio.shield(helper.ended(LEAVE_SECONDS))
            self._pushing = None
        if not told.keys() & {"url", "problem"}:
            told = {"problem": f"the process that pushes it ended with exit code {code}; see the pod's log"}
        self._supervisor.published(Publication(url=told.get("url"), commit=told.get("commit"), problem=told.get("problem")))

    async def _leave(self) -> None:
        for helper in self._helpers.values():
            helper.leave()
        await self._wait(LEAVE_SECONDS)
        for helper in self._helpers.values():
            helper.kill()
        for task in self._feeding.values():
            task.cancel()
        await self._wait(LEAVE_SECONDS)
        self._feeding.clear()

    async def _wait(self, seconds: float) -> None:
        if self._feeding:
            await asyncio.wait(self._feeding.values(), timeout=seconds)
            self._feeding = {number: task for number, task in self._feeding.items() if not task.done()}
