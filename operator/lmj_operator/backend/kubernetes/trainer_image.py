"""Which trainer image a job's next pod has: that of the pods that it joins, though the operator has another default by now.

Workers of one view speak one version of their protocol. An operator that is upgraded in the middle of a job brings another default image,
and a pod with that one could join no view with the others.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from lmj_operator.backend.kubernetes.labels import CONTAINER
from lmj_operator.backend.kubernetes.settings import Settings


def joining(settings: Settings, pods: Iterable[Mapping[str, Any]]) -> Settings:
    """``settings`` with the trainer image of the job's oldest pod that runs; as they are where none does.

    A pod that only waits may wait for an image that is not there: its image binds nobody.
    """
    if settings.trainer_image is None:
        return settings
    running = [pod for pod in pods if _runs(pod) and _image(pod) is not None]
    oldest = min(running, key=lambda pod: (pod["metadata"].get("creationTimestamp") or "", pod["metadata"]["name"]), default=None)
    return settings if oldest is None else replace(settings, trainer_image=_image(oldest))


def _runs(pod: Mapping[str, Any]) -> bool:
    return (pod.get("status") or {}).get("phase") == "Running" and pod["metadata"].get("deletionTimestamp") is None


def _image(pod: Mapping[str, Any]) -> str | None:
    """As the pod's spec has it: the kubelet reports the name that the image has on its node."""
    containers = (pod.get("spec") or {}).get("containers") or []
    return next((c.get("image") for c in containers if c.get("name") == CONTAINER), None)
