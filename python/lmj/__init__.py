"""LiveMigrationJob from Python: build jobs, train them on this machine, and look after those on a cluster.

>>> import lmj
>>> job = lmj.Job.from_yaml("examples/quickstart.yaml")
>>> job.name, job.pipeline.stages
('quickstart', 2)

``lmj.run(job)`` trains it here; ``lmj.Client().create(job)`` on the cluster that kubectl speaks to. Nothing here imports torch.
"""

from lmj.async_client import AsyncClient
from lmj.client import Client
from lmj.cluster_job import ClusterJob
from lmj.errors import ClusterError, JobError, JobFailed, LmjError, NotFound, RunError, RunInterrupted, WaitTimeout
from lmj.job import Job
from lmj.memory import state, step
from lmj.result import Result
from lmj.running import run
from lmj.trainer import Trainer
from lmj_api.protocol import Evaluation
from lmj_api.spec import (
    Architecture,
    AvoidNode,
    Checkpoint,
    DataParallel,
    Dataset,
    Device,
    LearningRateSchedule,
    Lora,
    Migration,
    Model,
    Output,
    Pipeline,
    Placement,
    Precision,
    Recovery,
    Scratch,
    Splits,
    Storage,
    Straggler,
    Task,
    Training,
)
from lmj_api.status import Incident, IncidentKind, JobStatus, Phase
from lmj_operator.client.job_news import JobEvent, LogLine

__all__ = [
    "Architecture",
    "AsyncClient",
    "AvoidNode",
    "Checkpoint",
    "Client",
    "ClusterError",
    "ClusterJob",
    "DataParallel",
    "Dataset",
    "Device",
    "Evaluation",
    "Incident",
    "IncidentKind",
    "Job",
    "JobError",
    "JobEvent",
    "JobFailed",
    "JobStatus",
    "LearningRateSchedule",
    "LmjError",
    "LogLine",
    "Lora",
    "Migration",
    "Model",
    "NotFound",
    "Output",
    "Phase",
    "Pipeline",
    "Placement",
    "Precision",
    "Recovery",
    "Result",
    "RunError",
    "RunInterrupted",
    "Scratch",
    "Splits",
    "Storage",
    "Straggler",
    "Task",
    "Trainer",
    "Training",
    "WaitTimeout",
    "run",
    "state",
    "step",
]
