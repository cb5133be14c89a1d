"""Preemption and host maintenance of Compute Engine.

https://cloud.google.com/compute/docs/instances/create-use-preemptible#detecting_if_an_instance_was_preempted
https://cloud.google.com/compute/docs/instances/monitor-plan-host-maintenance-event
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from lmj_trainer.agent.notices.notice import Notice

if TYPE_CHECKING:
    from lmj_trainer.agent.notices.service import MetadataService

PREEMPTION_SECONDS = 30.0
"""A preempted machine is stopped so long after it is told."""


class GCP:
    """One machine of Compute Engine."""

    seconds = 1.0

    def __init__(self) -> None:
        self._preempted: float | None = None

    async def look(self, service: MetadataService) -> Notice | None:
        """See :class:`~lmj_trainer.agent.notices.cloud.Cloud`."""
        if await self._get(service, "preempted") == "TRUE":
            if self._preempted is None:
                self._preempted = time.time() + PREEMPTION_SECONDS
            return Notice("Compute Engine preempts it", self._preempted)
        self._preempted = None
        event = await self._get(service, "maintenance-event")
        return Notice("Compute Engine is to stop it for maintenance") if event == "TERMINATE_ON_HOST_MAINTENANCE" else None

    async def _get(self, service: MetadataService, name: str) -> str:
        answer = await service.ask(f"/computeMetadata/v1/instance/{name}", {"Metadata-Flavor": "Google"})
        return answer.required(name).text
