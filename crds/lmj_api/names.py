"""Names: the API group, and the deterministic names of a job's children."""

GROUP = "lmj.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "LiveMigrationJob"
PLURAL = "livemigrationjobs"
SINGULAR = "livemigrationjob"
SHORT = "lmj"


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


def checkpoint_name(step: int) -> str:
    """The folder of the checkpoint of ``step``; sorts by step."""
    return f"step-{step:09d}"


def rank_file(rank: int) -> str:
    """The file that ``rank`` writes into a checkpoint's folder."""
    return f"rank-{rank}.safetensors"
