"""What the processes of a script are told, as variables and arguments: all that ``torchrun`` would tell them. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from lmj_api.spec import LiveMigrationJob
from lmj_api.spec.command import Command
from lmj_api.view import View
from lmj_trainer.launch.interpreter import is_python

_USE_STORE = "TORCHELASTIC_USE_AGENT_STORE"
RESUME_OPTION = "--resume_from_checkpoint"
_ROLE = "default"
"""As torchrun calls it where nobody says another."""


@dataclass(frozen=True)
class Node:
    """A rank's pod among those of a view."""

    number: int
    """From 0, in the order of the ranks that are there."""
    nodes: int
    processes: int
    """Of each node."""
    view: int

    @classmethod
    def of(cls, view: View, rank: int, command: Command) -> Self:
        """The place of ``rank`` in ``view``."""
        ranks = sorted(member.rank for member in view.members)
        return cls(ranks.index(rank), len(ranks), command.processes_per_node, view.number)

    def rank(self, local: int) -> int:
        """The script's rank of process ``local`` of this node."""
        return self.number * self.processes + local

    @property
    def ranks(self) -> range:
        """The script's ranks of this node."""
        return range(self.rank(0), self.rank(self.processes))

    @property
    def world(self) -> int:
        """Processes of all nodes."""
        return self.nodes * self.processes


@dataclass(frozen=True)
class Meeting:
    """Where the processes of a view meet, and where they go on: the same for all."""

    host: str
    port: int
    resume: str | None = None
    """A checkpoint of the script; None: it finds out by itself."""


def arguments(command: Command, resume: str | None) -> list[str]:
    """The script's, with the checkpoint behind them: of an option that is given twice the last counts."""
    return [*command.args, *([] if resume is None else [RESUME_OPTION, resume])]


def has_store(command: Command, node: Node, base: Mapping[str, str]) -> bool:
    """Whether the launcher of node 0 serves the store (see the package ``store``), and not the script's rank 0.

    Not where ``base``, the launcher's variables, says that it is not wanted; not for a program that may have another torch than this one, nor
    for one process: a script that spawns its own meets where it wants.
    """
    return is_python(command.args) and node.world > 1 and base.get(_USE_STORE) != "False"


def variables(
    base: Mapping[str, str],
    job: LiveMigrationJob,
    node: Node,
    local: int,
    meeting: Meeting,
    processors: int,
    extra: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """All variables of process ``local`` of ``node``.

    ``base``: those of the launcher. Its number of threads counts unless the job says one; what follows from the view always counts.
    ``processors``: what the node may use. ``extra``: of the launcher's own services.
    """
    command = job.spec.command
    assert command is not None
    return {
        **_threads(base, command, processors),
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        **base,
        **_said_threads(command),
        **_rendezvous(job, command, node, local, meeting),
        _USE_STORE: str(has_store(command, node, base)),
        "LMJ_JOB": job.metadata.name,
        "LMJ_VIEW": str(node.view),
        "LMJ_OUTPUT_DIR": job.spec.output.path,
        **({} if meeting.resume is None else {"LMJ_RESUME_FROM_CHECKPOINT": meeting.resume}),
        **(extra or {}),
    }


def _rendezvous(job: LiveMigrationJob, command: Command, node: Node, local: int, meeting: Meeting) -> dict[str, str]:
    rank, world = str(node.rank(local)), str(node.nodes * node.processes)
    host, port = meeting.host, str(meeting.port)
    return {
        "LOCAL_RANK": str(local),
        "RANK": rank,
        "GROUP_RANK": str(node.number),
        "ROLE_RANK": rank,
        "ROLE_NAME": _ROLE,
        "LOCAL_WORLD_SIZE": str(node.processes),
        "WORLD_SIZE": world,
        "GROUP_WORLD_SIZE": str(node.nodes),
        "ROLE_WORLD_SIZE": world,
        "MASTER_ADDR": host,
        "MASTER_PORT": port,
        "TORCHELASTIC_RESTART_COUNT": str(node.view - 1),
        "TORCHELASTIC_MAX_RESTARTS": str(job.spec.recovery.max_restarts),
        "TORCHELASTIC_RUN_ID": job.metadata.run.id,
        "PET_NNODES": str(node.nodes),
        "PET_NPROC_PER_NODE": str(node.processes),
        "PET_NODE_RANK": str(node.number),
        "PET_MASTER_ADDR": host,
        "PET_MASTER_PORT": port,
    }


def _threads(base: Mapping[str, str], command: Command, processors: int) -> dict[str, str]:
    """Where nobody says a number: the libraries that have one of their own follow this one."""
    return {} if "OMP_NUM_THREADS" in base else {"OMP_NUM_THREADS": str(max(1, processors // command.processes_per_node))}


def _said_threads(command: Command) -> dict[str, str]:
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return {} if command.threads is None else dict.fromkeys(names, str(command.threads))
