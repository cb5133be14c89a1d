"""The kinds of workers: what an agent runs for a strategy, and what it keeps for it.

Whatever a worker does, its agent supervises it by one protocol: events and commands of :mod:`lmj_api.protocol`, a line each, over the socket
that ``--fd`` names. A strategy that trains in another way has a worker of another kind here, and nothing else in the agent changes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lmj_api.spec import Strategy
from lmj_api.spec.job import JobSpec
from lmj_trainer.agent.memory import OPTION, SNAPSHOT_OPTIONS


@dataclass(frozen=True)
class WorkerKind:
    """One kind of worker."""

    command: Sequence[str]
    """What ``python -m lmj_trainer`` is told, to run one; its rank, job and open files follow."""
    server: Sequence[str] | None
    """The same, to run the process that workers are forked from; None: each is started by itself."""
    memories: Sequence[str]
    """Options of its command line that name a file of memory, which the agent keeps from one worker to the next."""
    saves: bool
    """It saves checkpoints, which the agent is to look through."""
    scripted: bool = False
    """It runs a user's program, in the user's environment."""


def worker_kind(spec: JobSpec) -> WorkerKind:
    """The kind of worker that the job needs."""
    return KINDS[spec.strategy](spec)


def _trainer(spec: JobSpec) -> WorkerKind:
    lora = ["--lora"] if spec.model.lora is not None else []
    snapshots = SNAPSHOT_OPTIONS if spec.recovery.memory_snapshot is not None else ()
    return WorkerKind(["worker"], ["fork-server", *lora], [OPTION, *snapshots], saves=True)


def _script(spec: JobSpec) -> WorkerKind:
    # A program that is no Python would not have use for what a fork server has imported.
    python = spec.command is not None and spec.command.is_python
    return WorkerKind(["launch"], ["fork-server", "--script"] if python else None, [], saves=False, scripted=True)


KINDS: dict[Strategy, Callable[[JobSpec], WorkerKind]] = {Strategy.PIPELINE: _trainer, Strategy.COMMAND: _script}
