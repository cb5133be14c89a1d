"""Stores that are servers."""

from bucket_fixture import (
    azblob,
    azblob_of_session,
    azfile,
    azfile_of_session,
    bucket_server,
    gs,
    gs_of_session,
    s3,
    s3_of_session,
    server,
)

__all__ = [
    "azblob",
    "azblob_of_session",
    "azfile",
    "azfile_of_session",
    "bucket_server",
    "gs",
    "gs_of_session",
    "s3",
    "s3_of_session",
    "server",
]
