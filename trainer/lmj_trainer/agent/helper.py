"""A process beside the worker that does something with what was recorded: a child of the agent, in its group, without a part in training."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence

from lmj_trainer import linux
from lmj_trainer.agent.children import Children

_LONGEST_LINE = 1 << 16


class Helper:
    """A running one. Read its :meth:`words` to their end, then await :meth:`ended`."""

    def __init__(self, popen: subprocess.Popen[bytes], children: Children) -> None:
        self._popen, self._children = popen, children
        self._gone = False

    @classmethod
    def start(cls, command: Sequence[str], environment: Mapping[str, str], children: Children) -> "Helper":
        """Run ``command`` with ``environment``. Raises OSError. From the main thread: Linux ends it when the thread that made it ends."""
        popen = subprocess.Popen(
            list(command),
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            preexec_fn=_as_part_of_agent,
        )
        children.own(popen.pid, popen)
        return cls(popen, children)

    async def words(self) -> AsyncIterator[tuple[str, str]]:
        """What it says, a kind and a text each, until it says no more. A line that is no word of its own is passed over."""
        assert self._popen.stdout is not None
        reader = asyncio.StreamReader(_LONGEST_LINE)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), self._popen.stdout)
        try:
            with contextlib.suppress(ValueError):  # a longer line is none of ours, nor are those after it
                while line := await reader.readline():
                    with contextlib.suppress(ValueError, AttributeError):
                        for kind, text in json.loads(line).items():
                            yield str(kind), str(text)
        finally:
            transport.close()

    def say(self, line: str) -> None:
        """Give it an order. One that is gone hears nothing."""
        assert self._popen.stdin is not None
        with contextlib.suppress(OSError):  # a line fits into the pipe
            os.write(self._popen.stdin.fileno(), line.encode() + b"\n")

    def leave(self) -> None:
        """Its orders end: it is to end too, in a few seconds."""
        if self._popen.stdin is not None and not self._popen.stdin.closed:
            self._popen.stdin.close()

    def kill(self) -> None:
        """End it at once."""
        if not self._gone:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._popen.pid, signal.SIGKILL)

    async def ended(self, patience: float) -> int:
        """Wait for its end, which is made after ``patience`` seconds; its exit code (negative: the signal)."""
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    await self._children.exited(self._popen.pid)
        finally:
            self.kill()
            self._gone = True
            code = self._children.reap(self._popen.pid)
            self.leave()
        return code


def _as_part_of_agent() -> None:
    linux.die_with_parent()
    # The signals that end a pod go to all of its group. This process ends when its agent says so.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
