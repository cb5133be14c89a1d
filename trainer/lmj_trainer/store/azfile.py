"""Where shares of Azure Files are, and how they are reached: by the environment, as for every program of Azure. Nothing of it is in a job.

``azfile://SHARE/FOLDER``: ``AZURE_STORAGE_ACCOUNT_NAME``, ``AZURE_STORAGE_ACCOUNT_KEY`` or ``AZURE_STORAGE_SAS_TOKEN``,
``AZURE_STORAGE_FILE_ENDPOINT`` for another server than Azure's; with neither a key nor a token an identity of the machine or of the workload.

What a job's Secret has under these names comes first, and is not mixed with what the environment has: the account and its server are of one
of both, and so is what requests are signed with.
"""

from __future__ import annotations

import base64
import binascii
import logging
import os
from collections.abc import Mapping
from typing import Any

from azure.storage.fileshare import ShareClient

from lmj_api.buckets import split
from lmj_trainer.errors import UserError
from lmj_trainer.store.patience import REQUEST_SECONDS
from lmj_trainer.store.port import Ref
from lmj_trainer.store.renewed import Renewed
from lmj_trainer.store.secret import Secret
from lmj_trainer.store.shares import CHUNK, ShareStore
from lmj_trainer.store.variables import Given, is_url

VERSION = "2022-11-02"
"""Of the interface: the first that knows all that is used here. The library's own may be newer than a server."""
_ACCOUNT, _KEY, _SAS = "AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN"
_ENDPOINT = "AZURE_STORAGE_FILE_ENDPOINT"
# Those of identities, which azure-identity reads by itself, and of Blob Storage: one Secret may lead to both.
_OTHERS = {"AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT", "AZURE_CLIENT_ID", "AZURE_TENANT_ID", "AZURE_FEDERATED_TOKEN_FILE"}


def open_share(uri: str) -> Ref:
    """The folder at ``uri``. Raises UserError."""
    try:
        _, name, folder = split(uri)
    except ValueError as error:
        raise UserError(str(error)) from None
    # The library warns of each answer without a text, as busy servers give.
    logging.getLogger("azure").setLevel(logging.ERROR)

    def signs(given: Given) -> bool:
        return bool({_KEY, _SAS} & given.keys())

    share = Renewed(Secret.of_job("AZURE_"), lambda given: _client(uri, name, given), signs)
    return Ref(ShareStore(uri.rstrip("/"), share, folder))


def _client(uri: str, name: str, given: Given) -> ShareClient:
    """Of the share ``name``. ``given``: what the job's Secret has. Raises UserError."""
    for variable in given.keys() - {_ACCOUNT, _KEY, _SAS, _ENDPOINT} - _OTHERS:
        raise UserError(f"{uri}: the Secret's key {variable} is not known here")
    where: Mapping[str, str] = given if {_ACCOUNT, _ENDPOINT} & given.keys() else os.environ
    url, account = _server(uri, where)
    credential = _credential(uri, given if {_KEY, _SAS} & given.keys() else os.environ, account)
    if not isinstance(credential, str | dict):
        if url.startswith("http://"):
            raise UserError(f"{uri}: an identity's token is sent to https:// alone: set {_KEY} or {_SAS}")
        credential = {"credential": credential, "token_intent": "backup"}
    else:
        credential = {"credential": credential}
    return ShareClient(
        url,
        name,
        api_version=VERSION,
        retry_total=0,  # requests are made again here
        connection_timeout=REQUEST_SECONDS,
        read_timeout=REQUEST_SECONDS,
        max_single_get_size=CHUNK,
        max_chunk_get_size=CHUNK,
        **credential,
    )


def _server(uri: str, where: Given) -> tuple[str, str]:
    """Its URL, without TLS where it is said to be so, and the account's name. Raises UserError."""
    account, endpoint = where.get(_ACCOUNT, ""), where.get(_ENDPOINT, "")
    if not account:
        raise UserError(f"{uri}: set {_ACCOUNT}, in the job's Secret or in the environment")
    if endpoint and (not is_url(endpoint) or "?" in endpoint or "#" in endpoint):
        raise UserError(f"the variable {_ENDPOINT}: write http:// or https:// and the server's name")
    return endpoint or f"https://{account}.file.core.windows.net", account


def _credential(uri: str, signs: Given, account: str) -> Any:
    """A key, a signature, or what gets tokens. Raises UserError."""
    if key := signs.get(_KEY):
        try:
            base64.b64decode(key, validate=True)
        except binascii.Error:
            raise UserError(f"the variable {_KEY}: it is no key of an account, which is base64") from None
        return {"account_name": account, "account_key": key}
    if token := signs.get(_SAS):
        return token.removeprefix("?")
    try:
        from azure.identity import DefaultAzureCredential
    except ImportError:
        said = f"set {_KEY} or {_SAS}, or, for an identity of the machine or the workload, pip install azure-identity"
        raise UserError(f"{uri}: {said}") from None
    return DefaultAzureCredential()
