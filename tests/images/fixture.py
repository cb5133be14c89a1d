"""The operator's real image for tests on a cluster: a conftest imports ``operator_image``."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster.errors import Unavailable

from images.build import build
from images.docker import docker


@pytest.fixture(scope="session")
def operator_image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An archive of the image that was built from this checkout, tagged as the chart's values name it; skips, saying why, without Docker."""
    archive = tmp_path_factory.mktemp("images") / "operator.tar"
    try:
        with docker() as daemon:
            daemon("save", "--output", archive, build(daemon, "operator"), seconds=300)
    except Unavailable as reason:
        pytest.skip(f"no image can be built here: {reason}")
    yield archive
    archive.unlink()
