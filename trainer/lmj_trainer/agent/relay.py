"""The pod's relay, as its agent keeps it: a process, another when it ends, and whom it is told to let in."""

import asyncio
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from lmj_trainer.agent.children import Children
from lmj_trainer.agent.deliveries import without_tokens
from lmj_trainer.agent.helper import Helper
from lmj_trainer.agent.launcher import may_restart
from lmj_trainer.agent.peers import Peers
from lmj_trainer.relay.line import RelayError, RelayLine

log = logging.getLogger(__name__)

AGAIN_SECONDS = 0.1
"""Until one that does not listen yet is tried again."""
END_SECONDS = 2.0
"""For one that is to end."""


class RelayEndedError(Exception):
    """The relay cannot live; the text says how often it was tried."""


def relay_command(host: str, port: int, path: Path, silence: float) -> list[str]:
    """What is run: it listens at ``host``, the pod's address, and for orders at ``path``. ``silence``: ``recovery.silenceTimeoutSeconds``."""
    options = {"host": host, "port": port, "socket": path, "silence": silence}
    words = [str(part) for name, value in options.items() for part in (f"--{name}", value)]
    return [sys.executable, "-m", "lmj_trainer", "relay", *words]


async def keep_relay(command: Sequence[str], path: Path, peers: Peers, children: Children, warn: Callable[[str], None]) -> None:
    """Keep it running until this is cancelled; then it ends. The worker ends with it, because nobody reaches it any more.

    Raises RelayEndedError when one after the other ends. To be run in the main thread, as all that starts processes.
    """
    ends: list[float] = []
    while True:
        helper = Helper.start(command, without_tokens(os.environ), children)
        telling = asyncio.create_task(_tell(path, peers))
        try:
            async for kind, text in helper.words():
                log.info("relay: %s %s", kind, text)
        finally:
            telling.cancel()
            helper.leave()
            try:
                await asyncio.wait({telling})
            finally:
                code = await helper.ended(END_SECONDS)
        ends.append(time.monotonic())
        if not may_restart(ends):
            raise RelayEndedError(f"the relay ended {len(ends)} times, at last with code {code}: this pod cannot be reached")
        warn(f"the relay ended with code {code}: another is started, and the worker with it")


async def _tell(path: Path, peers: Peers) -> None:
    """Have the relay let in whom the operator named, until this is cancelled."""
    while True:
        line = await _line(path)
        try:
            while True:
                changed = peers.changed
                await asyncio.to_thread(line.admit, peers.addresses)
                await changed.wait()
        except RelayError as error:
            log.info("the relay is not told whom to let in: %s", error)  # it has ended, or is asked again
        finally:
            line.close()
        await asyncio.sleep(AGAIN_SECONDS)


async def _line(path: Path) -> RelayLine:
    while True:
        try:
            return RelayLine(path)
        except RelayError:  # it imports what it needs, or has just ended
            await asyncio.sleep(AGAIN_SECONDS)
