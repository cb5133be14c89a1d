"""A shell, or one command, in a pod that mounts a claim, with this process's streams."""

import asyncio
import os
import signal
import sys
import termios
import tty
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress

from lmj_operator.backend.kubernetes.labels import CONTAINER
from lmj_operator.client.volume.exec import Exec, run_in
from lmj_operator.client.volume.far.tree import names_of
from lmj_operator.client.volume.helper import Cluster, helper
from lmj_operator.client.volume.manifest import MOUNT, Wanted
from lmj_operator.client.volume.trouble import Broken
from lmj_operator.client.volume.uri import Place

BLOCK = 1 << 16
_SHELL = "if command -v bash >/dev/null 2>&1; then exec bash; fi; exec sh"
_IN_FOLDER = 'cd -- "$0" && exec "$@"'
_SHELL_IN_FOLDER = f'cd -- "$0" && {_SHELL}'


def words(place: Place, command: Sequence[str]) -> list[str]:
    """What is run for ``command`` (none: a shell) in the folder that ``place`` names. No name is read by a shell."""
    folder = "/".join([MOUNT, *names_of(place.path)])
    return ["sh", "-c", _IN_FOLDER, folder, *command] if command else ["sh", "-c", _SHELL_IN_FOLDER, folder]


async def shell(cluster: Cluster, wanted: Wanted, place: Place, command: Sequence[str], say: Callable[[str], None]) -> int:
    """The exit code of ``command``, or of a shell. Raises VolumeError."""
    terminal = os.isatty(0) and os.isatty(1)
    async with helper(cluster, wanted, say, write=False) as pod:
        run = run_in(pod.client, pod.namespace, pod.name, CONTAINER, words(place, command), tty=terminal)
        with _raw(terminal):
            async with run as process, _input(process, terminal, say):
                async for stream, data in process.received():
                    out = sys.stderr.buffer if stream == 2 else sys.stdout.buffer
                    out.write(data)
                    out.flush()
        return process.code or 0


@asynccontextmanager
async def _input(process: Exec, terminal: bool, say: Callable[[str], None]) -> AsyncIterator[None]:
    """What this process is given goes there, while the block runs."""
    loop = asyncio.get_running_loop()
    sending = asyncio.create_task(_send(process, terminal, say))
    resizing: set[asyncio.Task[None]] = set()

    def resized() -> None:
        size = os.get_terminal_size()
        task = asyncio.create_task(_quietly(process, size.columns, size.lines))
        resizing.add(task)
        task.add_done_callback(resizing.discard)

    if terminal:
        resized()
        loop.add_signal_handler(signal.SIGWINCH, resized)
    try:
        yield
    finally:
        if terminal:
            loop.remove_signal_handler(signal.SIGWINCH)
        tasks = [sending, *resizing]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _quietly(process: Exec, width: int, height: int) -> None:
    with suppress(Broken):  # who receives hears of it
        await process.resize(width, height)


async def _send(process: Exec, terminal: bool, say: Callable[[str], None]) -> None:
    while data := await _read():
        await process.send(data)
    if not terminal and not await process.end_input():
        say(
            "this cluster (before Kubernetes 1.30) cannot tell a command that its input has ended: one that reads to its end waits"
        )


async def _read() -> bytes:
    """What comes next on standard input. A file is always readable, and no loop watches it."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    try:
        loop.add_reader(0, ready.set)
    except PermissionError:
        return os.read(0, BLOCK)
    try:
        await ready.wait()
        return os.read(0, BLOCK)
    finally:
        loop.remove_reader(0)


@contextmanager
def _raw(terminal: bool) -> Iterator[None]:
    """Keys go as they are pressed, Ctrl-C too, to the terminal over there."""
    if not terminal:
        yield
        return
    before = termios.tcgetattr(0)
    tty.setraw(0, termios.TCSADRAIN)  # what was typed meanwhile stays
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)
