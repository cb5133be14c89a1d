"""From a coroutine to a command's end: its errors as one line, its signals as a reason to clean up."""

import asyncio
import os
import signal
import sys
from collections.abc import Coroutine
from typing import TypeVar

from lmj_operator.cli.errors import FAILED, INTERRUPTED, CommandError
from lmj_operator.client.volume.far.tree import TreeError, shown
from lmj_operator.client.volume.trouble import VolumeError

T = TypeVar("T")
GOES_ON = "interrupted; what was copied stays, and the same command goes on from there"
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run(work: Coroutine[None, None, T], interrupted: str = "interrupted") -> T:
    """What ``work`` comes to. A signal ends it, after it has cleaned up, and ``interrupted`` is told. Raises CommandError."""
    try:
        return asyncio.run(_until_told(work, interrupted))
    except (VolumeError, TreeError) as error:
        raise CommandError(str(error), code=FAILED) from error
    except BrokenPipeError as error:
        # Whoever read it has enough, as head has. Nothing more is flushed at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise CommandError(code=128 + signal.SIGPIPE) from error
    except OSError as error:
        if error.filename is None:
            raise
        raise CommandError(f"{shown(str(error.filename))}: {error.strerror}", code=FAILED) from error


async def _until_told(work: Coroutine[None, None, T], interrupted: str) -> T:
    loop, heard = asyncio.get_running_loop(), list[int]()
    task = asyncio.ensure_future(work)

    def told(number: int) -> None:
        if not heard:
            task.cancel()
        heard.append(number)

    for number in SIGNALS:
        loop.add_signal_handler(number, told, number)
    try:
        return await task
    except asyncio.CancelledError:
        code = INTERRUPTED if heard[:1] in ([], [signal.SIGINT]) else 128 + heard[0]
        raise CommandError(interrupted, code=code) from None
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
