"""Names: the API group, and the deterministic names of a job's children."""

import re

from lmj_api.run import Run

GROUP = "lmj.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "LiveMigrationJob"
PLURAL = "livemigrationjobs"
SINGULAR = "livemigrationjob"
SHORT = "lmj"


JOB_LABEL = f"{GROUP}/job"
"""Label of all that belongs to a job: its name."""
MIGRATE = f"{GROUP}/migrate"
"""Annotation of a job that asks to move ranks: ``1`` or ``0,1``, then ``to=NODE`` if it matters, and any other word, to ask again."""


def pod_name(job: str, rank: int, serial: int) -> str:
    """The name of the ``serial``-th pod (from 1, never reused) of ``rank``: ``quickstart-r0-1``."""
    return f"{job}-r{rank}-{serial}"


def standby_name(job: str, serial: int) -> str:
    """The name of the ``serial``-th standby pod (from 1, never reused): ``quickstart-s-1``. It keeps it when it becomes a rank's."""
    return f"{job}-s-{serial}"


def parse_pod_name(name: str) -> tuple[str, int | None, int]:
    """The inverse of :func:`pod_name` and :func:`standby_name`: ``(job, rank, serial)``; rank None: one that began as a standby.

    Raises ValueError for any other name.
    """
    job, rank, serial = ["", "", *name.rsplit("-", 2)][-3:]
    if not job or (rank != "s" and not rank.startswith("r")):
        raise ValueError(f"{name!r} is not the name of a trainer pod (JOB-rRANK-SERIAL or JOB-s-SERIAL)")
    return job, None if rank == "s" else int(rank[1:]), int(serial)


_CHECKPOINT = re.compile(r"step-([0-9]{9,})(?:-v([1-9][0-9]*)(?:-([0-9a-f]{8}))?)?")


def checkpoint_name(step: int, view: int | None = None, run: Run | None = None) -> str:
    """The folder of the checkpoint of ``step`` that ``view`` of ``run`` wrote: ``step-000000120-v2-1a2b3c4d``.

    A view writes to its own folders alone. So a member of an older one, which was cut off and does not know that it is over, can
    never replace what a newer one wrote, on storage that has neither locks nor an exchange that fails; nor can another run, whose views
    are counted from 1 again. Without ``run``: of one that nobody gave an identity. Without ``view``: of before views had folders of their own.
    """
    if view is None:
        return f"step-{step:09d}"
    return f"step-{step:09d}-v{view}{f'-{run.short}' if run is not None and run.known else ''}"


def parse_checkpoint_name(name: str) -> tuple[int, int]:
    """``(step, view)`` of a checkpoint's folder, which is the order of a run's checkpoints; view 0: none is named. Raises ValueError."""
    match = _CHECKPOINT.fullmatch(name)
    unsigned = name if match is None or match[3] is None else name[: -len(match[3]) - 1]
    if match is None or checkpoint_name(int(match[1]), int(match[2]) if match[2] else None) != unsigned:
        raise ValueError(f"{name!r} is not the name of a checkpoint's folder")
    return int(match[1]), int(match[2] or 0)


def run_of_checkpoint(name: str) -> str | None:
    """The short id of the run that wrote the checkpoint in the folder ``name``; None: its name does not say."""
    match = _CHECKPOINT.fullmatch(name)
    return match[3] if match is not None else None


def part_file(part: int) -> str:
    """The file of a part of the state in a checkpoint's folder; named after the rank that writes it where each part has one."""
    return f"rank-{part}.safetensors"
