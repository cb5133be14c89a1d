"""Waits until the API server serves jobs.

Kopf asks which kinds there are once, when it starts. An API server that has just started itself answers then without the kinds of
definitions, for some seconds: an operator that started at that moment would never hear of a job.
"""

import asyncio
import logging

from lmj_operator.backend.kubernetes.api import Api, ApiError
from lmj_operator.backend.kubernetes.resources import JOBS

RETRY_SECONDS = 1.0
WORD_SECONDS = 30.0
"""Between two words of the log."""

log = logging.getLogger(__name__)


class Served:
    """Whether jobs are."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self.waits: str | None = "has not asked yet whether the API server has jobs"
        """Why they are not yet, in one line; None: they are."""

    async def wait(self) -> None:
        """Until they are; for ever where nobody installs them, which the log says."""
        asked = 0
        while (problem := await self._problem()) is not None:
            self.waits = problem
            if asked % round(WORD_SECONDS / RETRY_SECONDS) == 0:
                log.warning("%s; asks again every %g s", problem, RETRY_SECONDS)
            asked += 1
            await asyncio.sleep(RETRY_SECONDS)
        self.waits = None

    async def _problem(self) -> str | None:
        try:
            there = await self._api.serves(JOBS)
        except ApiError as error:
            return f"whether the API server has jobs cannot be asked: {error}"
        kind = f"{JOBS.plural}.{JOBS.group}/{JOBS.version}"
        return None if there else f"the API server has no {kind} yet: is the CustomResourceDefinition installed?"
