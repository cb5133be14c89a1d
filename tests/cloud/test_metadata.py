"""The metadata service of the machine that the tests run on, where ``LMJ_TEST_CLOUD`` names its cloud."""

import os

import aiohttp
import pytest

from lmj_api.spec.migration import Cloud
from lmj_trainer.agent.notices.cloud import CLOUDS
from lmj_trainer.agent.notices.service import ADDRESS, MetadataService

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        "LMJ_TEST_CLOUD" not in os.environ, reason="LMJ_TEST_CLOUD names no cloud: AWS, GCP or Azure, where this machine is"
    ),
]


async def test_a_machine_that_stays() -> None:
    """What ``tests/metadata_server.py`` answers for one that stays."""
    async with aiohttp.ClientSession() as session:
        assert await CLOUDS[Cloud(os.environ["LMJ_TEST_CLOUD"])]().look(MetadataService(session, ADDRESS)) is None
