"""A job's objects besides its pods."""

from typing import Any

from lmj_api.spec import LiveMigrationJob, MigrationStrategy, Volume
from lmj_operator.backend.kubernetes import labels
from lmj_operator.backend.kubernetes.build.pod import owner
from lmj_operator.backend.kubernetes.settings import Settings

Object = dict[str, Any]


def build_service(job: LiveMigrationJob) -> Object:
    """Names for people (``POD.SERVICE``); the operator and the pods use addresses alone."""
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": _selector(job),
        "ports": [{"name": "agent", "port": labels.AGENT_PORT, "targetPort": "agent", "protocol": "TCP"}],
    }
    return {"apiVersion": "v1", "kind": "Service", "metadata": _metadata(job, labels.trainers(job)), "spec": spec}


def build_network_policy(job: LiveMigrationJob, settings: Settings) -> Object:
    """Who reaches the pods: those of this job on all ports (tensors have no authentication, and beside relays heartbeats have ports of the
    kernel's choice), the operator on the agent's, and so not on the canary's, at which it knocks to find out whether anybody enforces this.

    An operator outside of the cluster has no address that a policy could name: the agent's port, which obeys signatures alone, is open then.
    """
    agent = [{"port": labels.AGENT_PORT, "protocol": "TCP"}]
    operator: Object = {"ports": agent}
    if settings.namespace is not None:
        operator["from"] = [
            {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": settings.namespace}},
                "podSelector": {"matchLabels": settings.labels},
            }
        ]
    spec = {
        "podSelector": {"matchLabels": _selector(job)},
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [{"podSelector": {"matchLabels": _selector(job)}}]}, operator],
    }
    metadata = _metadata(job, labels.trainers(job))
    return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata, "spec": spec}


def build_disruption_budget(job: LiveMigrationJob) -> Object:
    """No pod may be evicted while ranks move off a node that is drained; else one at a time.

    A rank that is evicted costs a checkpoint and a new view, so a drained node gets free, and two drained nodes cost one after the
    other. None at all would block a node's drain until the job ends. It is said as ``minAvailable``: for pods whose controller has
    no scale subresource Kubernetes computes ``maxUnavailable`` as none.
    """
    pods = job.spec.world_size * (2 if job.spec.recovery.hot_standby else 1)
    if job.spec.migration.off_nodes is not MigrationStrategy.NEVER:
        # More than there ever are: none is evicted, because the operator moves each off a node that is drained, and ends it then.
        pods = 2 * job.spec.world_size + 1
    # A standby that may be evicted as well is none of them.
    ranks = [{"key": labels.ROLE, "operator": "NotIn", "values": [labels.STANDBY]}]
    spec = {"minAvailable": pods - 1, "selector": {"matchLabels": _selector(job), "matchExpressions": ranks}}
    metadata = _metadata(job, labels.trainers(job))
    return {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": metadata, "spec": spec}


def build_claims(job: LiveMigrationJob) -> list[Object]:
    """The claims that the operator makes. Without an owner they stay when the job goes."""
    storage = job.spec.storage
    wanted = (("output", storage.output), ("data", storage.data))
    return [_claim(job, name, volume) for name, volume in wanted if volume is not None and volume.size is not None]


def _claim(job: LiveMigrationJob, name: str, volume: Volume) -> Object:
    mode = volume.mode(job.spec.most_ranks)
    assert mode is not None
    metadata = _metadata(job, labels.claim_name(job, name))
    if not volume.delete_with_job:
        del metadata["ownerReferences"]
    spec: Object = {
        "accessModes": [mode.value],
        "resources": {"requests": {"storage": volume.size}},
    }
    if volume.storage_class_name is not None:
        spec["storageClassName"] = volume.storage_class_name
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}


def _metadata(job: LiveMigrationJob, name: str) -> Object:
    return {
        "name": name,
        "namespace": job.metadata.namespace,
        "labels": labels.job_labels(job),
        "ownerReferences": [owner(job)],
    }


def _selector(job: LiveMigrationJob) -> dict[str, str]:
    return {labels.JOB: job.metadata.name}
