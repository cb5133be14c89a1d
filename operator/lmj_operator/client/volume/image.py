"""Which image a helper pod has: that of trainers, which a cluster that trains has already."""

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

from lmj_api.names import JOB_LABEL
from lmj_operator.backend.kubernetes.api import Api, ApiError
from lmj_operator.backend.kubernetes.labels import CONTAINER
from lmj_operator.backend.kubernetes.resources import PODS, Resource

DEPLOYMENTS = Resource("apps", "v1", "deployments")
OPTION = "--trainer-image"
VARIABLE = "LMJ_TRAINER_IMAGE"
_OPERATOR = "app.kubernetes.io/name=lmj,app.kubernetes.io/component=operator"
_DENIED = (401, 403, 404)


def of_template(template: Mapping[str, Any] | None) -> str | None:
    """The trainer container's image in a pod template, or in a pod."""
    containers = ((template or {}).get("spec") or {}).get("containers") or []
    return next((c.get("image") for c in containers if isinstance(c, Mapping) and c.get("name") == CONTAINER), None)


def of_pods(pods: Iterable[Mapping[str, Any]]) -> str | None:
    """That of the newest trainer pod."""
    newest = sorted(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp")))
    return next((image for pod in reversed(newest) if (image := of_template(pod)) is not None), None)


def of_operator(deployments: Iterable[Mapping[str, Any]]) -> str | None:
    """The one that the operator was told."""
    for deployment in deployments:
        for container in deployment["spec"]["template"]["spec"]["containers"]:
            words = [*(container.get("command") or []), *(container.get("args") or [])]
            for word, after in pairwise([*words, ""]):
                if word.startswith(f"{OPTION}=") or (word == OPTION and after):
                    return str(word.partition("=")[2] or after)
            told = {variable["name"]: variable.get("value") for variable in container.get("env") or []}
            if told.get(VARIABLE):
                return str(told[VARIABLE])
    return None


async def find_image(api: Api, namespace: str) -> str | None:
    """That of the namespace's trainer pods, else the operator's, where these can be seen. Raises ApiError when the server does not answer."""
    try:
        found = of_pods((await api.list(PODS, namespace, {"labelSelector": JOB_LABEL}))["items"])
        if found is not None:
            return found
    except ApiError as error:
        if error.status not in _DENIED:
            raise
    try:
        return of_operator((await api.list(DEPLOYMENTS, None, {"labelSelector": _OPERATOR}))["items"])
    except ApiError as error:
        if error.status not in _DENIED:
            raise
        return None
