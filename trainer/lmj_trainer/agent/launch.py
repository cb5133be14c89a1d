"""How a worker is started: forked from a fork server, or started cold. Either way it is a child of the agent in a session of its own."""

import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from lmj_trainer import linux
from lmj_trainer.agent.children import Children


class LaunchError(Exception):
    """No worker came of it, and none will; the text says why."""


@dataclass(frozen=True)
class Handles:
    """A worker's ends of what connects it to its agent: numbers of the agent's open files."""

    stdout: int
    stderr: int
    inherited: Mapping[str, int]
    """Options of the worker's command line that name an open file: ``{"--fd": 7}``."""

    def options(self) -> list[str]:
        """``inherited`` as arguments."""
        return [word for option, file in self.inherited.items() for word in (option, str(file))]


@dataclass(frozen=True)
class Program:
    """What is run as a worker."""

    cold: Sequence[str]
    """Command of a worker, to be followed by its arguments."""
    server: Sequence[str] | None
    """Command of a fork server, to be followed by ``--fd N``; None: there is none."""
    arguments: Callable[[int], Sequence[str]]
    """From an incarnation to its arguments, without open files."""
    environment: Mapping[str, str]
    """All variables of a worker, and of its fork server: some are read when a process begins."""


def start_cold(program: Program, incarnation: int, handles: Handles, children: Children) -> int:
    """Start worker ``incarnation``; its process id. Raises OSError.

    To be called from the main thread: Linux ends the worker when the thread that made it ends.
    """
    popen = subprocess.Popen(
        [*program.cold, *program.arguments(incarnation), *handles.options()],
        env=dict(program.environment),
        stdin=subprocess.DEVNULL,
        stdout=handles.stdout,
        stderr=handles.stderr,
        pass_fds=list(handles.inherited.values()),
        start_new_session=True,
        preexec_fn=linux.die_with_parent,  # it may be too late for that: then the line's end tells the worker
    )
    children.own(popen.pid, popen)
    return popen.pid


def start_server(program: Program, control: int, children: Children) -> int:
    """Start a fork server that serves socket ``control``; its process id. Raises OSError. To be called from the main thread.

    It stays in the agent's process group, and what it says goes where the agent's own log goes.
    """
    assert program.server is not None
    # A worker's command line is to fit into that of its fork server, of which it takes the place.
    room = " ".join([*program.cold, *program.arguments(0)]) + " " * 256
    popen = subprocess.Popen(
        [*program.server, "--fd", str(control), "--room", room],
        env=dict(program.environment),
        stdin=subprocess.DEVNULL,
        stdout=2,
        pass_fds=[control],
        preexec_fn=_as_fork_server,
    )
    children.own(popen.pid, popen)
    return popen.pid


def _as_fork_server() -> None:
    linux.die_with_parent()
    # The signals that end a pod go to all of its group. This process ends with its agent, which may have use for it until then.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
