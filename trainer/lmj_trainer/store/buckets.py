"""Where buckets are, and how they are reached: by the environment, as for every program of AWS or Azure. Nothing of it is in a job.

* ``s3://BUCKET/FOLDER``: ``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``, ``AWS_REGION``, ``AWS_ENDPOINT_URL``, a web identity token.
* ``azblob://CONTAINER/FOLDER``: ``AZURE_STORAGE_ACCOUNT_NAME``, ``AZURE_STORAGE_ACCOUNT_KEY`` or ``AZURE_STORAGE_SAS_TOKEN``,
  ``AZURE_STORAGE_ENDPOINT``, a workload identity.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from obstore.store import AzureStore, S3Store

from lmj_trainer.errors import UserError
from lmj_trainer.store.objects import CLIENT, RETRY, ObjectStore
from lmj_trainer.store.port import Ref

if TYPE_CHECKING:
    from obstore.store import ClientConfig

_PLACE = re.compile(r"[a-z0-9]+://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/(.*))?")


def s3(uri: str) -> Ref:
    """The folder at ``s3://BUCKET/FOLDER``. Raises UserError."""
    bucket, prefix = _split(uri, "s3://BUCKET/FOLDER")
    client = _client("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
    return Ref(ObjectStore(uri.rstrip("/"), S3Store(bucket, prefix=prefix, client_options=client, retry_config=RETRY)))


def azblob(uri: str) -> Ref:
    """The folder at ``azblob://CONTAINER/FOLDER``. Raises UserError."""
    container, prefix = _split(uri, "azblob://CONTAINER/FOLDER")
    client = _client("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")
    return Ref(ObjectStore(uri.rstrip("/"), AzureStore(container, prefix=prefix, client_options=client, retry_config=RETRY)))


def _split(uri: str, form: str) -> tuple[str, str | None]:
    match = _PLACE.fullmatch(uri.rstrip("/"))
    if match is None or any(part in ("", ".", "..") for part in (match[2] or "x").split("/")):
        raise UserError(f"{uri}: write {form}")
    return match[1], match[2]


def _client(*endpoints: str) -> ClientConfig:
    """Without TLS where the endpoint is said to be so, as of a server in the same cluster."""
    return {**CLIENT, "allow_http": any(os.environ.get(name, "").startswith("http://") for name in endpoints)}
