"""The names of pods, of those too that began as standbys."""

from collections.abc import Sequence

from lmj_api.names import pod_name
from lmj_api.status import Promotion


def name_of(job: str, promotions: Sequence[Promotion], rank: int, serial: int) -> str:
    """The name of the ``serial``-th pod of ``rank``: the promoted standby's, or its own."""
    return next((c.pod for c in promotions if (c.rank, c.serial) == (rank, serial)), pod_name(job, rank, serial))
