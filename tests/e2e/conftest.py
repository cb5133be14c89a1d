"""Fixtures of the end-to-end tests."""

import pytest
from bucket_fixture import KINDS, azblob, azblob_of_session, azfile, azfile_of_session, gs, gs_of_session, s3, s3_of_session
from cluster_fixture import cluster, own_cluster
from operator_fixture import operator
from storage_server import StorageServer
from undisturbed_fixture import undisturbed_of

__all__ = [
    "azblob",
    "azblob_of_session",
    "azfile",
    "azfile_of_session",
    "cluster",
    "gs",
    "gs_of_session",
    "operator",
    "own_cluster",
    "s3",
    "s3_of_session",
    "undisturbed_of",
]


@pytest.fixture(params=["s3", *(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS if kind != "s3")])
def server(request: pytest.FixtureRequest) -> StorageServer:
    """Storage of each kind, one after the other: for every change of one, because all run the contract of stores."""
    found: StorageServer = request.getfixturevalue(request.param)
    return found
