"""Fixtures of the end-to-end tests."""

from bucket_fixture import azblob, azblob_of_session, azfile, azfile_of_session, gs, gs_of_session, s3, s3_of_session, server
from cluster_fixture import cluster, own_cluster
from operator_fixture import operator
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
    "server",
    "undisturbed_of",
]
