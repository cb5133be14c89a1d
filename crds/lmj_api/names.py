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


def parse_pod_name(name: str) -> tuple[str, int, int]:
    """The inverse of :func:`pod_name`: ``(job, rank, serial)``. Raises ValueError for any other name."""
    job, rank, serial = name.rsplit("-", 2)
    if not job or not rank.startswith("r"):
        raise ValueError(f"{name!r} is not the name of a trainer pod (JOB-rRANK-SERIAL)")
    return job, int(rank[1:]), int(serial)


def checkpoint_name(step: int) -> str:
    """The folder of the checkpoint of ``step``; sorts by step."""
    return f"step-{step:09d}"


def rank_file(rank: int) -> str:
    """The file that ``rank`` writes into a checkpoint's folder."""
    return f"rank-{rank}.safetensors"
