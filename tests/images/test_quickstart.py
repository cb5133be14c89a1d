"""The quickstart inside the real trainer image. It takes a quarter of an hour and 20 GB: only with the slow tests."""

import pytest
from cluster.errors import Unavailable

from images.build import build
from images.docker import docker
from images.quickstart import ENOUGH, quickstart

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def test_the_trainer_image_trains_confined_and_without_a_network() -> None:
    try:
        with docker() as daemon:
            assert quickstart(daemon, build(daemon, "trainer")) >= ENOUGH
    except Unavailable as reason:
        pytest.skip(f"no image can be built here: {reason}")
