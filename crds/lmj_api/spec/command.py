"""A program of the user's own, as ``torchrun`` would start it."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from lmj_api.base import Message

Argument = Annotated[str, Field(max_length=4096)]


class ScriptMemory(Message):
    """Snapshots of a script's state in the memory of its pods, which its processes go on from after a failure."""

    every: Annotated[int, Field(ge=1, le=1_000_000)] = 10
    """Steps from one snapshot to the next. Two are kept, each as large as a checkpoint; the pod's memory has to have room for them."""


class Command(Message):
    """What ``strategy: Command`` runs in each rank's pod: a script as it is, in as many processes as ``processesPerNode`` says."""

    args: Annotated[list[Argument], Field(min_length=1, max_length=1024)]
    """What would follow ``torchrun`` and its own options: a Python file and its arguments (``[train.py, --epochs, "3"]``), or ``-m`` and a module.
    Anything else is a program that is run as it is."""
    working_dir: Annotated[str, Field(min_length=1)] | None = None
    """Folder that the processes start in; a relative path is relative to the job's file, on a cluster to the volume of the data. Unset: that
    folder itself. ``args`` stay as they are written, so relative paths in them are relative to this."""
    processes_per_node: Annotated[int, Field(ge=1, le=64)] = 1
    """Processes in each rank's pod. Times ``dataParallel.replicas`` it is what the script sees as its world size."""
    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    """OMP_NUM_THREADS and its like of each process. Unset: the processors that the pod may use, shared among its processes."""
    bind_cores: bool = False
    """Give each process processors of its own."""
    checkpoints: Annotated[str, Field(min_length=1)] | None = None
    """Folder that the script saves its checkpoints in, as transformers does (``checkpoint-500``); a relative path as in ``output.path``. When it is
    started again, it gets ``--resume_from_checkpoint`` with the newest complete one. Unset: the script finds its checkpoints by itself, or
    begins anew."""
    progress_file: Annotated[str, Field(min_length=1)] | None = None
    """File that the script appends lines of JSON to, as in ``{"step": 10, "steps": 100, "loss": 0.5}``; a relative path as in ``output.path``.
    Unset: none; the Trainer of transformers reports by itself, and any script may post the same lines to ``LMJ_PROGRESS_URL``."""
    save_seconds: Annotated[float, Field(ge=0, le=86400)] = 30.0
    """So long the processes have after SIGTERM to save and end, when their rank is to move or the number of replicas changes."""

    memory: ScriptMemory | None = None
    """Keep the script's state in memory every few steps, and go on from there after a failure, as long as one pod still has it. That of
    transformers' Trainer is kept as it is; a loop of one's own, or of Accelerate, registers its state (``lmj.state``, ``lmj.step``). Unset: no."""

    @property
    def is_python(self) -> bool:
        """Whether it is a Python file or a module, and no other program."""
        return self.args[0] == "-m" or self.args[0].endswith(".py")

    @model_validator(mode="after")
    def _names_a_module(self) -> Self:
        if self.args == ["-m"]:
            raise ValueError("args: -m is followed by the name of a module, as in [-m, my_package.train]")
        return self
