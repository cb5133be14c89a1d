"""Workers that are forked from one fork server, as an agent forks them: a start of milliseconds, where a cold one imports torch."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence

from lmj_trainer import linux
from lmj_trainer.fork_request import GO, LONGEST_REQUEST, Request

DEADLINE = 240.0  # seconds: generous, for two slow cores


class Forked:
    """A process that is a child of this one without having been started by it; has what is used here of ``subprocess.Popen``."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def wait(self, timeout: float) -> int:
        """Its exit code, negative for a signal. Raises TimeoutExpired."""
        if self._code is None:
            descriptor = os.pidfd_open(self.pid)
            try:
                if not select.select([descriptor], [], [], timeout)[0]:
                    raise subprocess.TimeoutExpired("a forked worker", timeout)
            finally:
                os.close(descriptor)
            self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._code


class ForkedRanks:
    """The product's own fork server (Linux only). Meanwhile this process adopts orphans; :meth:`close` ends that."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """``environment``: of all workers."""
        assert linux.adopt_orphans(), "only Linux lets a process adopt the workers of its fork server"
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            room = "x" * 1000  # for a worker's arguments
            self._process = subprocess.Popen(
                [sys.executable, "-m", "lmj_trainer", "fork-server", "--fd", str(theirs.fileno()), "--room", room],
                env=dict(environment),
                pass_fds=[theirs.fileno()],
                preexec_fn=linux.die_with_parent,
            )
        self._control.settimeout(DEADLINE)
        said = json.loads(self._control.recv(LONGEST_REQUEST))
        assert "ready" in said, said

    def launch(self, arguments: Sequence[str], files: Mapping[str, int], output: int) -> Forked:
        """A worker with these arguments; ``files``: open files by the option that names them; ``output``: where it writes."""
        request = Request(os.getpid(), list(arguments), list(files))
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                socket.send_fds(self._control, [request.to_bytes()], [theirs.fileno(), output, output, *files.values()])
            ours.settimeout(DEADLINE)
            said = ours.recv(1024)
            assert said.isdigit(), f"no worker came of it: {said!r}"
            ours.send(GO)
        return Forked(int(said))

    def close(self) -> None:
        self._control.close()
        self._process.wait(DEADLINE)
        linux.adopt_orphans(False)
