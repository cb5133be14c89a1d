"""Spot interruptions and rebalance recommendations of EC2, by the instance metadata service of version 2.

https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from lmj_trainer.agent.notices.notice import Notice
from lmj_trainer.agent.notices.service import ServiceError

if TYPE_CHECKING:
    from lmj_trainer.agent.notices.service import Answer, MetadataService

_LIFETIME = "21600"  # seconds, the longest that a token can have


class AWS:
    """One machine of EC2: it is told two minutes before."""

    seconds = 5.0

    def __init__(self) -> None:
        self._token: str | None = None

    async def look(self, service: MetadataService) -> Notice | None:
        """See :class:`~lmj_trainer.agent.notices.cloud.Cloud`."""
        answer = await self._get(service, "spot/instance-action")
        if answer is not None:
            action, at = answer.table.get("action"), str(answer.table.get("time"))
            if not isinstance(action, str):
                raise ServiceError("it answers an interruption without an action")
            return Notice(f"EC2 is to {action} it at {at}", _seconds(at))
        if await self._get(service, "events/recommendations/rebalance") is not None:
            return Notice("EC2 recommends to leave it")
        return None

    async def _get(self, service: MetadataService, name: str) -> Answer | None:
        """What stands under ``name``; None: nothing does. Raises ServiceError."""
        for _ in range(2):
            if self._token is None:
                headers = {"X-aws-ec2-metadata-token-ttl-seconds": _LIFETIME}
                token = await service.ask("/latest/api/token", headers, "PUT")
                self._token = token.required("a token").text
            answer = await service.ask(f"/latest/meta-data/{name}", {"X-aws-ec2-metadata-token": self._token})
            if answer.status == 404:
                return None
            if answer.status != 401:
                return answer.required(name)
            self._token = None  # it is over
        raise ServiceError("it refuses the token that it gave")


def _seconds(time: str) -> float | None:
    try:
        parsed = datetime.fromisoformat(time)
        return parsed.replace(tzinfo=parsed.tzinfo or UTC).timestamp()
    except (ValueError, OverflowError):
        return None
