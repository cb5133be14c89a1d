"""Which nodes a rank's pod prefers: those that leave most of the job when one is lost, or a zone. None of it is a requirement.

A node that is lost takes the replicas of which it had a rank. So the ranks of one replica go together where replicas share a step, and those
that hold the same stage go apart. Zones are preferred by affinity alone: with a spreading constraint on a label that nodes may lack, those
without it would not be spread at all.
"""

from typing import Any

from lmj_api.spec import LiveMigrationJob
from lmj_operator.backend.kubernetes import labels

Object = dict[str, Any]

_NODE, _ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
_SAME_RANK = 100
"""More than all others are together: a term counts for each pod that it finds, and a replica has 64 at most."""


def affinity(job: LiveMigrationJob, rank: int) -> Object:
    """Of a pod of ``rank``."""
    # A pod that is to take another's place is of no use on the same node.
    apart = [_term(job, _SAME_RANK, _NODE, {labels.RANK: str(rank)})]
    if not _shares(job):
        return {"podAntiAffinity": _preferred(apart)}
    place = labels.place(job.spec.topology, rank)
    apart.append(_term(job, 1, _ZONE, {labels.STAGE: place[labels.STAGE]}))
    if job.spec.pipeline.stages == 1:
        return {"podAntiAffinity": _preferred(apart)}
    mine = {labels.REPLICA: place[labels.REPLICA]}
    together = [_term(job, 1, _NODE, mine), _term(job, 2, _ZONE, mine)]
    return {"podAffinity": _preferred(together), "podAntiAffinity": _preferred(apart)}


def constraints(job: LiveMigrationJob, rank: int | None) -> list[Object]:
    """The ``topologySpreadConstraints`` of a pod of ``rank``, or (None) of a standby."""
    if not job.spec.placement.spread:
        return []
    selected = {labels.JOB: job.metadata.name}
    if rank is not None and _shares(job):
        selected[labels.STAGE] = labels.place(job.spec.topology, rank)[labels.STAGE]
    return [
        {
            "topologyKey": _NODE,
            "maxSkew": 1,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": selected},
        }
    ]


def _shares(job: LiveMigrationJob) -> bool:
    """Whether the job may have several replicas, which are to be spread."""
    return job.spec.placement.spread and job.spec.data_parallel.most > 1


def _term(job: LiveMigrationJob, weight: int, key: str, selected: labels.Labels) -> Object:
    found = {"matchLabels": {labels.JOB: job.metadata.name, **selected}}
    return {"weight": weight, "podAffinityTerm": {"topologyKey": key, "labelSelector": found}}


def _preferred(terms: list[Object]) -> Object:
    return {"preferredDuringSchedulingIgnoredDuringExecution": terms}
