"""The labels of a job's pods: set when a pod becomes something else, and put back when somebody changed them."""

import logging
from collections.abc import Callable, Sequence

from lmj_api.names import parse_pod_name
from lmj_api.status import JobStatus
from lmj_api.topology import Topology
from lmj_operator.backend.kubernetes import labels
from lmj_operator.backend.kubernetes.api import Api, ApiError
from lmj_operator.backend.kubernetes.cache import Cache, Key, Object
from lmj_operator.backend.kubernetes.resources import PODS

AGAIN_SECONDS = 10.0
"""Labels are put back so often: somebody may change them again and again."""

log = logging.getLogger(__name__)


class PodLabels:
    """Of one job."""

    def __init__(self, api: Api, cache: Cache, clock: Callable[[], float]) -> None:
        self._api = api
        self._cache = cache
        self._clock = clock
        self._kept_at: dict[str, float] = {}

    async def keep(self, job: Key, topology: Callable[[Object], Topology], pods: Sequence[Object], status: JobStatus) -> None:
        """Put back what somebody took off or changed: NetworkPolicy and budget of the job select by it, and so does the watch.

        ``topology``: that of a pod.
        """
        now, promotions = self._clock(), {promotion.pod: promotion for promotion in status.promotions}
        uids = {pod["metadata"]["uid"] for pod in pods}
        self._kept_at = {uid: at for uid, at in self._kept_at.items() if uid in uids}
        for pod in pods:
            uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
            promotion = promotions.get(name)
            wanted = labels.of_pod(name, topology(pod))
            if promotion is not None:
                wanted = labels.enlisted(job[1], topology(pod), promotion.rank, promotion.serial)
            if (
                not _wrong(pod, wanted, promoted=promotion is not None)
                or now - self._kept_at.get(uid, -AGAIN_SECONDS) < AGAIN_SECONDS
            ):
                continue
            self._kept_at[uid] = now
            try:
                await self.set(pod, wanted)
            except ApiError as error:
                # Pods are looked after all the same.
                log.warning("the labels of pod %s are not as they should be: %s; will try again", name, error, extra={"job": job})
            else:
                log.warning("the labels of pod %s had been changed and are put back", name, extra={"job": job})

    async def set(self, pod: Object, wanted: labels.Labels) -> None:
        """Give ``pod``, and (its uid says so) no other of its name, the labels ``wanted``. Raises ApiError."""
        metadata = {key: pod["metadata"][key] for key in ("name", "namespace", "uid")}
        # One that was made for a rank is called a member only where somebody called it a standby: an apply takes no other's label away.
        role = labels.MEMBER if parse_pod_name(metadata["name"])[1] is not None and _is_standby(pod) else None
        own = wanted if role is None else {**wanted, labels.ROLE: role}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {**metadata, "labels": own}}
        self._cache.put_pod(await self._api.apply(PODS, body, force=True))


def _wrong(pod: Object, wanted: labels.Labels, promoted: bool) -> bool:
    """Whether what is selected by is not as ``wanted``. Of a standby that is ``promoted``, and was, the plan sees to the role."""
    there = pod["metadata"]["labels"]
    if there.get(labels.JOB) != wanted[labels.JOB]:
        return True
    if wanted.get(labels.ROLE) == labels.STANDBY:
        return there.get(labels.ROLE) not in (labels.STANDBY, labels.MEMBER)
    return not promoted and _is_standby(pod)


def _is_standby(pod: Object) -> bool:
    return bool(pod["metadata"]["labels"].get(labels.ROLE) == labels.STANDBY)
