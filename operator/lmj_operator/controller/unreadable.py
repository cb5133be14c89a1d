"""Jobs whose status cannot be read: they are left alone, and a condition says why."""

import logging
from collections.abc import Mapping
from typing import Any

from lmj_api.names import API_VERSION, KIND
from lmj_operator.backend.kubernetes.api import Api, ApiError
from lmj_operator.backend.kubernetes.resources import JOBS
from lmj_operator.plan.observe.times import rfc3339
from lmj_operator.plan.report.conditions import RECONCILE_FAILED

MANAGER = "lmj-unreadable"
"""Field manager of the condition alone: what else is in the status stays whose it is."""

log = logging.getLogger(__name__)


async def leave_alone(api: Api, metadata: Mapping[str, Any], status: object, why: str, now: float) -> None:
    """Have the job say that it is left alone, and ``why``; not again where its ``status``, as it is stored, says so."""
    name, namespace, uid = metadata["name"], metadata["namespace"], metadata["uid"]
    extra, text = {"job": (namespace, name)}, f"the operator leaves the job alone: {why}"
    if _says(status, text):
        return
    log.warning("%s", text, extra=extra)
    condition = {
        "type": RECONCILE_FAILED,
        "status": "True",
        "reason": "StatusUnreadable",
        "message": text,
        "lastTransitionTime": rfc3339(now),
        "observedGeneration": metadata["generation"],
    }
    body = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name, "namespace": namespace, "uid": uid},
        "status": {"conditions": [condition]},
    }
    try:
        await api.apply(JOBS, body, subresource="status", force=True, metadata=True, manager=MANAGER)
    except ApiError as error:
        log.warning("the status does not say so: %s", error, extra=extra)


def _says(status: object, text: str) -> bool:
    conditions = status.get("conditions") if isinstance(status, Mapping) else None
    return any(
        isinstance(c, Mapping) and (c.get("type"), c.get("status"), c.get("message")) == (RECONCILE_FAILED, "True", text)
        for c in (conditions if isinstance(conditions, list) else ())
    )
