"""Stores that are servers."""

from collections.abc import Iterator

import pytest
from s3_server import S3Server, serving


@pytest.fixture(scope="session")
def _s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with serving(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def s3(_s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """A server that this process's environment leads to."""
    for name, value in _s3.environment.items():
        monkeypatch.setenv(name, value)
    return _s3
