"""The pod that mounts a claim for a person: one of a person's rights, with none of its own."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lmj_api.names import GROUP
from lmj_operator.backend.kubernetes.build.template import merge
from lmj_operator.backend.kubernetes.build.template_check import check_template
from lmj_operator.backend.kubernetes.labels import CONTAINER
from lmj_operator.backend.kubernetes.settings import Settings

Object = dict[str, Any]

HELPER = f"{GROUP}/helper"
VOLUME = "volume"
MADE_BY = f"{GROUP}/made-by"
MOUNT = "/volume"
_TMP_SIZE = "1Gi"
DAY = 24 * 3600
"""Longer no such pod lives, whatever becomes of who made it."""
IDLE_SECONDS = 60
IDLE = f"""
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
quiet = 0
while quiet < {IDLE_SECONDS}:
    time.sleep(1)
    others = [name for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]
    quiet = 0 if others else quiet + 1
"""
"""What the pod does itself: it ends a minute after the last command in it, also when nobody is left to delete it."""


@dataclass(frozen=True)
class Wanted:
    """What a pod is made for."""

    claim: str
    namespace: str
    image: str | None
    read_only: bool = False
    memory: str | None = "512Mi"
    """The most that it may use; None: as much as the namespace allows."""
    template: Mapping[str, Any] | None = None
    """Over what is built here, as a job's ``template``."""


def build(wanted: Wanted, name: str, made_by: str) -> Object:
    """The pod. Raises SpecError for a wrong template."""
    check_template(wanted.template)
    pod = merge({"metadata": {"labels": {}, "annotations": {}}, "spec": _spec(wanted)}, wanted.template or {})
    spec = pod["spec"]
    spec["containers"].sort(key=lambda container: container["name"] != CONTAINER)
    spec.update(restartPolicy="Never", activeDeadlineSeconds=DAY)
    metadata = {
        "name": name,
        "namespace": wanted.namespace,
        "labels": {**(pod["metadata"].get("labels") or {}), HELPER: VOLUME},
        "annotations": {**(pod["metadata"].get("annotations") or {}), MADE_BY: made_by},
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _spec(wanted: Wanted) -> Object:
    user = Settings().user
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 5,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": user,
            "runAsGroup": user,
            "fsGroup": user,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(wanted)],
        "volumes": [
            # The claim itself is mounted as it is: one pod that mounts it read-only would hold up others on some clouds.
            {"name": VOLUME, "persistentVolumeClaim": {"claimName": wanted.claim}},
            # Nothing of what is copied lies there; who has a shell may put something down.
            {"name": "tmp", "emptyDir": {"sizeLimit": _TMP_SIZE}},
        ],
    }


def _container(wanted: Wanted) -> Object:
    resources: Object = {"requests": {"cpu": "100m", "memory": "64Mi"}}
    if wanted.memory is not None:
        resources["limits"] = {"memory": wanted.memory}
    container: Object = {
        "name": CONTAINER,
        "command": ["python", "-c", IDLE],
        "workingDir": MOUNT,
        "env": [{"name": "HOME", "value": "/tmp"}],  # noqa: S108 - an emptyDir of this pod
        "resources": resources,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": VOLUME, "mountPath": MOUNT, **({"readOnly": True} if wanted.read_only else {})},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108
        ],
    }
    if wanted.image is not None:
        container["image"] = wanted.image
    return container
