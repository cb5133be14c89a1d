"""Scheduled Events of Azure.

https://learn.microsoft.com/azure/virtual-machines/linux/scheduled-events
"""

from __future__ import annotations

import time
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from lmj_trainer.agent.notices.notice import Notice
from lmj_trainer.agent.notices.service import ServiceError

if TYPE_CHECKING:
    from lmj_trainer.agent.notices.service import MetadataService

_HEADERS = {"Metadata": "true"}
_EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
_NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
_ENDS = {"Preempt": "preempt", "Terminate": "delete", "Redeploy": "redeploy", "Reboot": "reboot"}
"""What ends processes. ``Freeze`` pauses them for seconds."""


class Azure:
    """One virtual machine. Machines of a scale set are told of each other's events too."""

    seconds = 1.0

    def __init__(self) -> None:
        self._name: str | None = None
        self._begun: float | None = None

    async def look(self, service: MetadataService) -> Notice | None:
        """See :class:`~lmj_trainer.agent.notices.cloud.Cloud`."""
        if self._name is None:
            self._name = (await service.ask(_NAME, _HEADERS)).required("the machine's name").text
        events = (await service.ask(_EVENTS, _HEADERS)).required("scheduled events").table.get("Events")
        if not isinstance(events, list):
            raise ServiceError("it answers no list of events")
        notices = [notice for event in events if (notice := self._notice(event)) is not None]
        if all(notice.at != self._begun for notice in notices):
            self._begun = None
        return min(notices, key=lambda notice: notice.at or 0.0, default=None)

    def _notice(self, event: Any) -> Notice | None:
        """What ``event`` says of this machine; None: nothing that ends processes."""
        if not isinstance(event, dict) or not isinstance(event.get("Resources"), list):
            raise ServiceError("it answers an event without resources")
        kind = _ENDS.get(str(event.get("EventType")))
        if kind is None or self._name not in event["Resources"]:
            return None
        before = event.get("NotBefore")
        if not before:
            if self._begun is None:
                self._begun = time.time()
            return Notice(f"Azure is about to {kind} it", self._begun)
        try:
            return Notice(f"Azure is to {kind} it at {before}", parsedate_to_datetime(str(before)).timestamp())
        except (ValueError, OverflowError):
            return Notice(f"Azure is to {kind} it")
