"""Asks the machine's metadata service for as long as the agent lives, and reports what changes."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from lmj_api.clock import steady_time
from lmj_api.protocol import MachineNotice
from lmj_trainer.agent.notices.service import MetadataService, ServiceError

if TYPE_CHECKING:
    from collections.abc import Callable

    from lmj_trainer.agent.notices.cloud import Cloud
    from lmj_trainer.agent.notices.notice import Notice

VARIABLE = "LMJ_METADATA_URL"
"""Names another address of the service: a proxy of it on the node, where pods may not reach it."""
TIMEOUT_SECONDS = 2.0
"""Of one question."""
_LONGEST_SECONDS = 30 * 86_400.0
"""No cloud tells earlier."""
FAILURES = 5
"""Looks that fail in a row before it is said: what was known stays."""


async def watch(cloud: Cloud, address: str, noticed: Callable[[MachineNotice | None], None], warn: Callable[[str], None]) -> None:
    """Ask for ever. ``noticed`` is called with what is new; None: the machine stays after all."""
    from aiohttp import ClientSession, ClientTimeout

    known: Notice | None = None
    failures = 0
    async with ClientSession(timeout=ClientTimeout(total=TIMEOUT_SECONDS), trust_env=False) as session:
        service = MetadataService(session, address)
        while True:
            try:
                notice = await cloud.look(service)
            except ServiceError as error:
                failures += 1
                if failures == FAILURES:
                    warn(f"the metadata service at {address} says nothing of this machine (migration.spotNotices): {error}")
            else:
                failures = 0
                if notice != known:
                    known = notice
                    noticed(_by_steady_clock(notice))
            await asyncio.sleep(cloud.seconds)


def _by_steady_clock(notice: Notice | None) -> MachineNotice | None:
    """``notice`` with its time by the clock of the agent's other times."""
    if notice is None:
        return None
    now = steady_time()
    at = None if notice.at is None else now + max(0.0, min(notice.at - time.time(), _LONGEST_SECONDS))
    return MachineNotice(reason=notice.reason, at=at)
