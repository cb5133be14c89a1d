"""The names of pods, of those too that began as standbys."""

from collections.abc import Iterable

from lmj_api.names import pod_name
from lmj_api.status import Promotion


class Names:
    """Those of a job's pods."""

    def __init__(self, job: str, promotions: Iterable[Promotion]) -> None:
        self._job = job
        self._promoted = {(c.rank, c.serial): c.pod for c in promotions}

    def of(self, rank: int, serial: int) -> str:
        """The name of the ``serial``-th pod of ``rank``: the promoted standby's, or its own."""
        return self._promoted.get((rank, serial)) or pod_name(self._job, rank, serial)
