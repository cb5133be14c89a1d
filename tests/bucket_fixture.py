"""Servers of object storage."""

from collections.abc import Iterator

import azfile_server
import azurite
import gcs_server
import pytest
import s3_server
from azfile_server import AzureFiles
from azurite import Azurite
from gcs_server import GcsServer
from s3_server import S3Server
from storage_server import StorageServer
from way import Way

OBJECTS = ("s3", "azblob", "gs")
"""The schemes of object storage; each is the name of a fixture."""
KINDS = (*OBJECTS, "azfile")
"""... and of all that is a server."""


@pytest.fixture(scope="session")
def s3_of_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server.serving(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="session")
def azblob_of_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azurite]:
    with azurite.serving(tmp_path_factory.mktemp("azblob")) as server:
        yield server


@pytest.fixture(scope="session")
def gs_of_session() -> Iterator[GcsServer]:
    with gcs_server.serving() as server:
        yield server


@pytest.fixture(scope="session")
def azfile_of_session() -> Iterator[AzureFiles]:
    with azfile_server.serving() as server:
        yield server


def lead(to: StorageServer | Way, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have this process's environment lead there."""
    for name, value in to.environment.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def s3(s3_of_session: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """A server that this process's environment leads to."""
    lead(s3_of_session, monkeypatch)
    return s3_of_session


@pytest.fixture
def azblob(azblob_of_session: Azurite, monkeypatch: pytest.MonkeyPatch) -> Azurite:
    """The same of Azure's."""
    lead(azblob_of_session, monkeypatch)
    return azblob_of_session


@pytest.fixture
def gs(gs_of_session: GcsServer, monkeypatch: pytest.MonkeyPatch) -> GcsServer:
    """The same of Google's."""
    lead(gs_of_session, monkeypatch)
    return gs_of_session


@pytest.fixture
def azfile(azfile_of_session: AzureFiles, monkeypatch: pytest.MonkeyPatch) -> AzureFiles:
    """The same of Azure's for files."""
    lead(azfile_of_session, monkeypatch)
    return azfile_of_session


@pytest.fixture(params=OBJECTS)
def bucket_server(request: pytest.FixtureRequest) -> StorageServer:
    """One of object storage after the other."""
    found: StorageServer = request.getfixturevalue(request.param)
    return found


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest) -> StorageServer:
    """One after the other."""
    found: StorageServer = request.getfixturevalue(request.param)
    return found
