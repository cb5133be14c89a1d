"""A standby: an agent without a rank, which has everything ready so that becoming one costs a fork."""

import asyncio

from lmj_api.protocol import USER_ERROR, Event, EventKind
from lmj_trainer.agent.process import WorkerProcess
from lmj_trainer.agent.supervisor import Supervisor
from lmj_trainer.errors import UserError


class PreparationError(Exception):
    """A standby cannot get warm; the text says why."""


async def wait(supervisor: Supervisor) -> None:
    """Get warm, say so, and wait until the pod is given a rank, which may be before that.

    Raises PreparationError, and UserError for what a worker would call one: the plan replaces the pod then, and the job goes on.
    """
    # Its number is that of no worker: these count from 1.
    process = WorkerProcess(0, supervisor.launcher, {})
    preparing = asyncio.create_task(_prepare(process, supervisor))
    ranked = asyncio.create_task(supervisor.ranked.wait())
    try:
        await asyncio.wait([preparing, ranked], return_when=asyncio.FIRST_COMPLETED)
        if not ranked.done():
            supervisor.warmed(preparing.result())
            await ranked
    finally:
        ranked.cancel()
        if not preparing.done():
            # The rank's worker does the same now.
            process.kill("the pod has a rank now")
            await asyncio.wait([preparing])


async def _prepare(process: WorkerProcess, supervisor: Supervisor) -> str:
    """Have a process forked, once its fork server has imported everything, that prepares what no rank matters to; what it did."""
    said = "everything is imported"

    def hear(event: Event) -> None:
        nonlocal said
        if event.kind is EventKind.PREPARING and event.message:
            said = event.message

    ended = await process.run(lambda pid: None, hear, supervisor.warn)
    if ended.code == 0:
        return said
    if ended.code == USER_ERROR:
        raise UserError(ended.message)
    raise PreparationError(f"a standby could not prepare: {ended.message}")
