"""Names, labels, ports and paths of a job's objects: fixed, because running jobs were made with them."""

from lmj_api.names import GROUP, JOB_LABEL, parse_pod_name
from lmj_api.spec import LiveMigrationJob
from lmj_api.topology import Topology

JOB = JOB_LABEL
RANK = f"{GROUP}/rank"
STAGE = f"{GROUP}/stage"
REPLICA = f"{GROUP}/replica"
SERIAL = f"{GROUP}/serial"
ROLE = f"{GROUP}/role"
STANDBY = "standby"
"""Role of a pod that is no rank's yet."""
MEMBER = "member"
"""Role of one that became a rank's. Those that were made for a rank have none."""

SPEC = f"{GROUP}/job-spec"
"""Annotation of a pod: the job as its agent reads it."""

DIGEST = f"{GROUP}/pod-digest"
"""Annotation of a pod: what it was made like, the job's spec in it apart. Another digest: the template was changed since."""

AGENT_PORT = 9461
RELAY_PORT = 9463
CONTAINER = "trainer"
OUTPUT = "/output"
DATA = "/data"
EXAMPLES = "/opt/lmj/examples"
"""Folder of the trainer image where relative dataset paths lie when there is no ``storage.data``."""

Labels = dict[str, str]


def job_labels(job: LiveMigrationJob) -> Labels:
    """Labels of all objects of ``job``."""
    return {
        "app.kubernetes.io/name": "lmj",
        "app.kubernetes.io/component": "trainer",
        "app.kubernetes.io/instance": job.metadata.name,
        "app.kubernetes.io/managed-by": "lmj-operator",
        JOB: job.metadata.name,
    }


def of_pod(pod: str, topology: Topology) -> Labels:
    """What the labels of the pod of this name say of it, as long as it is what it was made as. Raises ValueError for another's pod."""
    job, rank, serial = parse_pod_name(pod)
    role = {ROLE: STANDBY} if rank is None else place(topology, rank)
    return {JOB: job, **role, SERIAL: str(serial)}


def enlisted(job: str, topology: Topology, rank: int, serial: int) -> Labels:
    """The same of a pod of ``job`` that began as a standby and is the ``serial``-th of ``rank`` now.

    All of them, each time: an apply takes away what an earlier one set and it does not.
    """
    return {JOB: job, ROLE: MEMBER, **place(topology, rank), SERIAL: str(serial)}


def place(topology: Topology, rank: int) -> Labels:
    """Which rank it is, and what that computes."""
    return {RANK: str(rank), STAGE: str(topology.stage(rank)), REPLICA: str(topology.replica(rank))}


def trainers(job: LiveMigrationJob) -> str:
    """Name of the job's Service, NetworkPolicy and PodDisruptionBudget."""
    return f"{job.metadata.name}-trainers"


def claim_name(job: LiveMigrationJob, volume: str) -> str:
    """Name of the claim that is made for ``volume`` (``output`` or ``data``)."""
    return f"{job.metadata.name}-{volume}"
