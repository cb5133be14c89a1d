"""The supervisor: holds the agent's state, and does to its one worker what it is told. It decides nothing: the plan does."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence

from lmj_api.clock import steady_time
from lmj_api.fold import fold, with_pid
from lmj_api.protocol import (
    AgentState,
    CheckpointInfo,
    Command,
    CommandKind,
    Event,
    EventKind,
    MachineNotice,
    Progress,
    Publication,
    Recut,
    WorkerPhase,
)
from lmj_api.view import Member, View
from lmj_trainer.agent.events import EventLog
from lmj_trainer.agent.fencing import Admission, Answer, admit_view, admit_worker
from lmj_trainer.agent.launcher import Launcher
from lmj_trainer.agent.looks import Looks
from lmj_trainer.agent.peers import Peers
from lmj_trainer.agent.process import WorkerProcess

DEATH_SECONDS = 10.0
"""A killed process is gone within so long, unless the kernel holds it."""

ANSWER_SECONDS = 0.5
"""An agent that was told to end waits so long for a word that it may stay: there may be no operator."""
STAY_SHARE = 0.5
"""Of the grace period, for another pod to take the rank's place. The rest is for a checkpoint."""

_DONE = (WorkerPhase.COMPLETED, WorkerPhase.DRAINED)


class Supervisor:
    """Lives in one event loop, in the main thread."""

    def __init__(self, rank: int | None, pod: str, launcher: Launcher, inherited: Mapping[str, int] | None = None) -> None:
        """``rank`` None: a standby.

        ``inherited``: open files that every worker is given, by the option that names them (``{"--memory-fd": 7}``).
        """
        self.state = AgentState(pod=pod, rank=rank, started=steady_time(), looked=0)
        self.log = EventLog()
        self.changed = asyncio.Event()
        """Set at the next event; each has its own, so take it before you look."""
        self.closing = False
        """No more events will come."""
        self.launcher = launcher
        self._inherited = dict(inherited or {})
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done, with the error, when the agent itself cannot go on."""
        self.ranked = asyncio.Event()
        """The pod has a rank."""
        if rank is not None:
            self.ranked.set()
        self.looks = Looks()
        self.peers = Peers()
        self._process: WorkerProcess | None = None
        self._watching: asyncio.Task[None] | None = None
        self._told = 0  # number of the newest view that the living worker was told
        self._starting = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None

    async def put_worker(self, incarnation: int, rank: int | None = None) -> Admission:
        """Have worker ``incarnation`` running; a living older one says where it stands and is killed first. Raises TimeoutError.

        It is not started yet when this returns; a start that fails is told as any other end of a worker. ``rank``: what a standby becomes.
        """
        async with self._starting:
            verdict = admit_worker(self.state, incarnation, rank)
            if verdict.answer is not Answer.NEW:
                return verdict
            reason = f"killed to make room for worker {incarnation}"
            if self._process is not None:
                await self._process.explain(reason)
            self.kill(reason)
            await self._gone(DEATH_SECONDS)
            verdict = admit_worker(self.state, incarnation, rank)  # a drain may have come meanwhile
            if verdict.answer is Answer.NEW:
                if self.state.rank is None:
                    self.state = self.state.model_copy(update={"rank": rank, "warm": False})
                    self.ranked.set()
                self._start(incarnation)
            return verdict

    @property
    def answer(self) -> AgentState:
        """The state as it is told, with the time to which its times belong."""
        return self.state.model_copy(update={"clock": steady_time()})

    def put_view(self, view: View) -> Admission:
        """Have the worker join ``view``."""
        verdict = admit_view(self.state, view)
        if verdict.answer is Answer.REFUSED:
            return verdict
        self.state = self.state.model_copy(update={"view": view})
        self.peers.join(view)
        if self._process is not None and self._told < view.number:
            self._told = view.number
            self._process.send(Command(kind=CommandKind.VIEW, view=view))
        return verdict

    def leave_view(self, number: int) -> None:
        """Have the worker leave view ``number``, if it is in it; it says what it has in memory then."""
        if self._process is not None:
            self._process.send(Command(kind=CommandKind.LEAVE, number=number))

    def put_follower(self, follower: Member | None) -> None:
        """Have ``follower`` follow the worker, and each that comes after it; None: nobody."""
        if self.state.follower != follower:
            self.state = self.state.model_copy(update={"follower": follower})
            self._tell_follower()

    def hand_over(self, number: int) -> None:
        """Have the worker's group leave view ``number`` at the next step boundary, with its followers in sync."""
        if self.state.handover < number:
            self.state = self.state.model_copy(update={"handover": number})
            if self._process is not None:
                self._process.send(Command(kind=CommandKind.HANDOVER, number=number))

    def pause(self, number: int) -> None:
        """Have the worker's group leave view ``number`` at the next step boundary."""
        if self.state.pause < number:
            self.state = self.state.model_copy(update={"pause": number})
            if self._process is not None:
                self._process.send(Command(kind=CommandKind.PAUSE, number=number))

    def put_recut(self, recut: Recut | None) -> None:
        """Have the workers that ``recut`` names follow the worker, and each that comes after it; None: nobody."""
        if self.state.recut != recut:
            self.state = self.state.model_copy(update={"recut": recut})
            self._tell_recut()

    def _tell_recut(self) -> None:
        if self._process is not None:
            self._process.send(Command(kind=CommandKind.RECUT, recut=self.state.recut))

    def _tell_follower(self) -> None:
        if self._process is not None:
            self._process.send(Command(kind=CommandKind.FOLLOWER, follower=self.state.follower))

    def drain(self) -> None:
        """Have the worker take a checkpoint and leave; no other is started."""
        if self.state.draining:
            return
        self.state = self.state.model_copy(update={"draining": True})
        if self._process is not None:
            self._process.send(Command(kind=CommandKind.DRAIN))
        if self.state.leaving:
            self._tell(EventKind.LEAVING, "drains")
        self._notify()

    def stay(self) -> None:
        """Have the worker go on for a part of the grace period, should this pod be told to end, or have been."""
        if not self.state.staying:
            self.state = self.state.model_copy(update={"staying": True})
            self._notify()

    async def stop(self, grace: float, idle: Callable[[], None] = lambda: None) -> None:
        """Drain, give the worker the rest of ``grace`` seconds to leave, then kill it; afterwards no event comes any more.

        A running worker goes on for a part of ``grace`` first, when somebody who has another pod take its place says that it may.
        ``idle`` is called when no worker is left: what there is to be done then has no hurry.
        """
        end = time.monotonic() + grace
        await self._linger(grace * STAY_SHARE)
        self.drain()
        async with self._starting:
            try:
                await self._gone(max(0.0, end - time.monotonic()))
            except TimeoutError:
                self.kill(f"killed: it did not leave within {grace:g} s after it was asked to")
                await self._gone(DEATH_SECONDS)
        idle()
        await self.launcher.close()
        if self._timer is not None:
            self._timer.cancel()
        self.closing = True
        self.changed.set()

    def kill(self, reason: str) -> None:
        """End the worker's process group at once. Any thread may."""
        process = self._process
        if process is not None:
            process.kill(reason)

    def warn(self, message: str) -> None:
        """Tell something that the operator should know."""
        self._happen(Event(time=steady_time(), kind=EventKind.WARNING, message=message))

    def warmed(self, message: str) -> None:
        """A standby has done all that it can do without a rank."""
        self.state = self.state.model_copy(update={"warm": self.state.rank is None})
        self._tell(EventKind.WARM, message)

    def noticed(self, notice: MachineNotice | None) -> None:
        """The cloud is about to take this machine away; None: not any more."""
        self.state = self.state.model_copy(update={"notice": notice})
        if notice is not None:
            self.warn(f"this machine is about to be taken away: {notice.reason}")
        self._tell(EventKind.NOTICED, notice.reason if notice is not None else "this machine stays")

    def guarded(self) -> None:
        """The pod's canary listens."""
        self.state = self.state.model_copy(update={"canary": True})

    def delivered(self) -> None:
        """What was to be done with the results is done, or given up."""
        self.state = self.state.model_copy(update={"delivered": True})
        self._notify()

    def published(self, publication: Publication) -> None:
        """What came of pushing the model."""
        self.state = self.state.model_copy(update={"publication": publication})
        self._notify()

    def found(self, checkpoints: Sequence[CheckpointInfo], number: int = 0) -> None:
        """The checkpoint folder was looked through, after view ``number`` was over."""
        before = set(self.state.checkpoints)
        self.state = self.looks.done(self.state, checkpoints, number)
        for checkpoint in checkpoints:
            if checkpoint.problem is not None and checkpoint not in before:
                self.warn(f"checkpoint {checkpoint.name} is skipped: {checkpoint.problem}")
        if number > 0:
            newest = next((c.name for c in self.state.checkpoints if c.problem is None), "none")
            self._tell(EventKind.LOOKED, f"view {number} is over; the newest checkpoint is {newest}")

    def _tell(self, kind: EventKind, message: str) -> None:
        self.log.add(Event(time=steady_time(), kind=kind, message=message), time.monotonic())
        self._notify()

    async def _linger(self, seconds: float) -> None:
        """Tell that this pod leaves, and wait while it may stay, at most ``seconds``."""
        if self.state.draining or self.state.worker.phase is not WorkerPhase.RUNNING:
            return
        self.state = self.state.model_copy(update={"leaving": True})
        self._tell(EventKind.LEAVING, "told to end")
        begin = time.monotonic()
        while not self.state.draining and self.state.worker.phase not in _DONE:
            changed = self.changed
            left = begin + (seconds if self.state.staying else min(seconds, ANSWER_SECONDS)) - time.monotonic()
            if left <= 0:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await changed.wait()

    def _start(self, incarnation: int) -> None:
        process = WorkerProcess(incarnation, self.launcher, self._inherited)
        self._process, self._told = process, 0
        if self.state.follower is not None:
            self._tell_follower()
        if self.state.recut is not None:
            self._tell_recut()
        message = f"worker {incarnation} started"
        self._happen(Event(time=steady_time(), kind=EventKind.WORKER_STARTED, message=message, incarnation=incarnation))
        if self.launcher.importing:
            # Until it is started it cannot say so itself.
            progress = Progress(step=0, steps=1, epoch=0.0, activity="prepare: loading libraries")
            self._happen(Event(time=steady_time(), kind=EventKind.PREPARING, message="loading libraries", progress=progress))
        self._watching = asyncio.create_task(self._watch(process, incarnation))

    def _started_as(self, incarnation: int, pid: int) -> None:
        self.state = with_pid(self.state, incarnation, pid)
        self._notify()

    async def _watch(self, process: WorkerProcess, incarnation: int) -> None:
        try:
            ended = await process.run(lambda pid: self._started_as(incarnation, pid), self._happen, self.warn)
        except Exception as error:
            if not self.failure.done():
                self.failure.set_exception(error)
            raise
        finally:
            self._process = None
        kind, message = EventKind.WORKER_EXITED, f"worker {incarnation} ended: {ended.message}"
        self._happen(Event(time=steady_time(), kind=kind, message=message, incarnation=incarnation, exit=ended))

    async def _gone(self, seconds: float) -> None:
        """Wait until no worker is left. Raises TimeoutError, and whatever went wrong in watching it."""
        if self._watching is not None:
            async with asyncio.timeout(seconds):
                await asyncio.shield(self._watching)
            self._watching = None

    def _happen(self, event: Event) -> None:
        """Fold ``event`` into the state and tell it. Raises IllegalEventError: then nothing was changed."""
        # By one clock, whatever the worker's said when it wrote this: that one may have been set meanwhile.
        event = event.model_copy(update={"time": steady_time()})
        self.state = fold(self.state, event, event.time)
        self.looks.hear(event)
        self.log.add(event, time.monotonic())
        self._notify()

    def _notify(self) -> None:
        due = self.log.due
        if due is not None and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, due - time.monotonic()), self._flush)
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()

    def _flush(self) -> None:
        self._timer = None
        self.log.flush(time.monotonic())
        self._notify()
