"""The worker of a rank whose job is a script: joins each view that its agent tells, and runs the script's processes in it."""

import logging
from collections.abc import Mapping
from pathlib import Path

from lmj_api.protocol import EventKind
from lmj_api.view import View
from lmj_trainer import linux
from lmj_trainer.launch.connection import split_address
from lmj_trainer.launch.door import Door, free_port
from lmj_trainer.launch.follower import Follower
from lmj_trainer.launch.here import Here
from lmj_trainer.launch.identity import Credentials, Identity
from lmj_trainer.launch.leader import Leader
from lmj_trainer.launch.line import Line
from lmj_trainer.launch.memory.choice import Held, choose, held
from lmj_trainer.launch.outcome import Completed, Failed, Lost, Outcome, Stopped
from lmj_trainer.launch.resume import newest_checkpoint
from lmj_trainer.launch.view_run import ViewRun
from lmj_trainer.launch.words import Word, WordKind

log = logging.getLogger("lmj.launch")


class Launcher:
    """Lives in one event loop, in a process with one thread."""

    def __init__(self, here: Here, door: Door) -> None:
        self._here, self._door, self._identity = here, door, Identity()
        # Shorter than what counts as a hang, so that who is missing is named.
        self._patience = max(5.0, here.job.spec.recovery.hang_timeout_seconds / 2)

    async def serve(self, address: str) -> int:
        """Run views until the script has ended or the rank is to leave; the exit code. Raises StarterGoneError.

        ``address``: where others connect to (``HOST:PORT``).
        """
        agent, orders, changed = self._here.agent, self._here.agent.orders, self._here.changed
        agent.emit(EventKind.READY, "ready to run the script", address=self._identity.address(address))
        while True:
            changed.clear()
            if orders.draining:
                agent.emit(EventKind.DRAINED, "left while no view ran")
                return 0
            self._here.starter.require()
            view = orders.take_view()
            if view is None:
                await changed.wait()
                continue
            linux.like_others()
            code = self._told(view, await self._run(view))
            if code is not None:
                return code

    async def _run(self, view: View) -> Outcome:
        if (reason := self._here.agent.orders.broken(view.number)) is not None:
            return Lost(reason)
        log.info("view %d: %s", view.number, view.reason)
        credentials = Credentials(self._identity, self._here.job.metadata.run.id, view)
        run = ViewRun(self._here, view, credentials)
        line = await self._line(view, run, credentials)
        outcome = await run.run(line, self._patience)
        if isinstance(outcome, Completed | Failed) or self._here.agent.orders.draining:
            await line.closed()  # else that goes on beside what follows
        return outcome

    async def _line(self, view: View, run: ViewRun, credentials: Credentials) -> Line:
        member = next(member for member in view.members if member.rank == self._here.rank)
        fetcher = self._here.fetcher
        have = held(self._here.memory, run.node.ranks, run.node.world, fetcher is not None and fetcher.able)
        if view.members[0].rank != self._here.rank:
            await self._door.enter(view.number, credentials, None)
            return Follower(view, member, credentials, run.life, have)
        leader = Leader(view, self._here.rank, credentials, run.life, lambda held: self._start(view, held), have)
        await self._door.enter(view.number, credentials, leader)
        return leader

    def _start(self, view: View, held: Mapping[int, Held]) -> Mapping[int, Word]:
        """What each member starts with: decided by one of them, because others may see a folder as it was."""
        command = self._here.job.spec.command
        saved = command.checkpoints if command is not None else None
        resume = newest_checkpoint(Path(saved)) if saved is not None else None
        port = free_port(split_address(view.members[0].address)[0])
        choice = choose(held, view.number)
        word = Word(kind=WordKind.START, port=port, resume=None if resume is None else str(resume), memory=choice.name)
        return {rank: word.model_copy(update={"giver": choice.givers.get(rank, -1)}) for rank in held}

    def _told(self, view: View, outcome: Outcome) -> int | None:
        """Tell the agent of ``outcome``; the exit code, or None: there may be another view."""
        agent = self._here.agent
        match outcome:
            case Completed():
                return 0
            case Failed():
                return outcome.status
            case Stopped() if agent.orders.draining:
                agent.emit(EventKind.DRAINED, f"left view {view.number}")
                return 0
            case Stopped(message):
                agent.emit(EventKind.LOST_PEER, f"left view {view.number}: {message}", view=view.number)
            case Lost(message, rank):
                log.warning("view %d is broken: %s", view.number, message)
                agent.emit(EventKind.LOST_PEER, message, view=view.number, peer=rank)
        return None
