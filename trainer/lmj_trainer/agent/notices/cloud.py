"""The port of a cloud, and the clouds that there are."""

from typing import Protocol

from lmj_api.spec.migration import Cloud as CloudName
from lmj_trainer.agent.notices.aws import AWS
from lmj_trainer.agent.notices.azure import Azure
from lmj_trainer.agent.notices.gcp import GCP
from lmj_trainer.agent.notices.notice import Notice
from lmj_trainer.agent.notices.service import MetadataService


class Cloud(Protocol):
    """How one cloud says that it is about to take a machine away."""

    seconds: float
    """Between two looks."""

    async def look(self, service: MetadataService) -> Notice | None:
        """What it says now; None: the machine stays. Raises ServiceError."""


CLOUDS: dict[CloudName, type[AWS] | type[GCP] | type[Azure]] = {CloudName.AWS: AWS, CloudName.GCP: GCP, CloudName.AZURE: Azure}
