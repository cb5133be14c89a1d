"""Where buckets are, and how they are reached: by the environment, as for every program of AWS, Azure or Google. Nothing of it is in a job.

* ``s3://BUCKET/FOLDER``: ``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``, ``AWS_REGION``, ``AWS_ENDPOINT_URL``, a web identity token.
* ``azblob://CONTAINER/FOLDER``: ``AZURE_STORAGE_ACCOUNT_NAME``, ``AZURE_STORAGE_ACCOUNT_KEY`` or ``AZURE_STORAGE_SAS_TOKEN``,
  ``AZURE_STORAGE_ENDPOINT``, a workload identity.
* ``gs://BUCKET/FOLDER``: ``GOOGLE_SERVICE_ACCOUNT_KEY`` (the content of a key file), ``GOOGLE_APPLICATION_CREDENTIALS`` (its path),
  ``GOOGLE_BASE_URL``, a workload identity.

What a job's Secret has under these names (``checkpoint.secretName``) comes first. A pod has it as files
(:data:`lmj_api.tokens.STORE_FOLDER`), of which none of the processes beside the worker is told; they are read again when they change.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import certifi
from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, S3Store

from lmj_api.buckets import split
from lmj_trainer.errors import UserError
from lmj_trainer.store.objects import CLIENT, RETRY, ObjectStore
from lmj_trainer.store.port import Ref
from lmj_trainer.store.renewed import Renewed
from lmj_trainer.store.secret import Secret
from lmj_trainer.store.variables import Given, is_url

if TYPE_CHECKING:
    from obstore.store import ClientConfig


_AT_ONCE = datetime.fromtimestamp(0, UTC)
"""When a credential ends that is to be asked for again with each request."""


@dataclass(frozen=True)
class _Kind:
    """How buckets of one scheme are reached."""

    store: Callable[..., Any]
    variables: str
    """How the names of its variables begin."""
    endpoints: tuple[str, ...]
    """The names of one setting; the first goes before the others."""
    credential: Callable[[Given], dict[str, Any] | None]
    """That of the job's Secret, by which the library signs with nothing of the environment; None: the Secret has none, or it is a setting."""
    signs: Callable[[Given], bool]
    """Whether the Secret has what requests are signed with, whatever the environment says."""


def _key_of_aws(given: Given) -> dict[str, Any] | None:
    if not _signs_for_aws(given):
        return None
    key = {"access_key_id": given["AWS_ACCESS_KEY_ID"], "secret_access_key": given["AWS_SECRET_ACCESS_KEY"]}
    return {**key, "token": given.get("AWS_SESSION_TOKEN"), "expires_at": _AT_ONCE}


def _signs_for_aws(given: Given) -> bool:
    return {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} <= given.keys()


def _key_of_azure(given: Given) -> dict[str, Any] | None:
    for name, kind in (("AZURE_STORAGE_ACCOUNT_KEY", "access_key"), ("AZURE_STORAGE_SAS_TOKEN", "sas_token")):
        if name in given:
            return {kind: given[name], "expires_at": _AT_ONCE}
    return None


_KINDS = {
    "s3": _Kind(S3Store, "AWS_", ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"), _key_of_aws, _signs_for_aws),
    "azblob": _Kind(AzureStore, "AZURE_", ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"), _key_of_azure, lambda given: False),
    # The library makes tokens of the key itself.
    "gs": _Kind(
        GCSStore, "GOOGLE_", ("GOOGLE_BASE_URL",), lambda given: None, lambda given: "GOOGLE_SERVICE_ACCOUNT_KEY" in given
    ),
}


def open_bucket(uri: str) -> Ref:
    """The folder at ``uri``. Raises UserError."""
    try:
        scheme, name, folder = split(uri)
    except ValueError as error:
        raise UserError(str(error)) from None
    kind = _KINDS[scheme]
    secret = Secret.of_job(kind.variables)
    _require_roots()

    def opened(given: Given) -> Any:
        try:
            return kind.store(
                name,
                prefix=folder or None,
                config=_config(kind, given),
                client_options=_client(kind, given),
                retry_config=RETRY,
                **_credentials(kind, given, secret),
            )
        except (BaseError, ValueError) as error:
            # It names the setting, and no value.
            raise UserError(f"{uri}: {str(error).partition(chr(10))[0]}") from None

    def signs(given: Given) -> bool:
        return kind.signs(given) or kind.credential(given) is not None

    return Ref(ObjectStore(uri.rstrip("/"), Renewed(secret, opened, signs)))


def _credentials(kind: _Kind, given: Given, secret: Secret | None) -> dict[str, Any]:
    """What has the library sign by what the Secret has at the time of each request: a large file takes many of them."""
    first = kind.credential(given)
    if first is None or secret is None:
        return {}
    return {"credential_provider": lambda: kind.credential(secret.latest(given)) or first}


def _require_roots() -> None:
    """The library makes no client, not even one without TLS, on a system without root certificates, as small images are."""
    paths = ssl.get_default_verify_paths()
    if paths.cafile is None and paths.capath is None:
        os.environ["SSL_CERT_FILE"] = certifi.where()


def _config(kind: _Kind, given: Given) -> dict[str, str]:
    """What the library is told of the job's Secret, so that it goes before what the environment has under another name."""
    endpoints = _endpoints(kind, given)
    config = {name: value for name, value in given.items() if name not in endpoints}
    if endpoints:
        config[kind.endpoints[0]] = next(iter(endpoints.values()))
    return ({f"{kind.variables}SKIP_SIGNATURE": "false"} if kind.signs(given) else {}) | config


def _endpoints(kind: _Kind, variables: Given) -> dict[str, str]:
    return {name: value for name in kind.endpoints if (value := variables.get(name))}


def _client(kind: _Kind, given: Given) -> ClientConfig:
    """Without TLS where the endpoint is said to be so, as of a server in the same cluster. Raises UserError."""
    said = _endpoints(kind, given) or _endpoints(kind, os.environ)
    for name, endpoint in said.items():
        if not is_url(endpoint):  # the library would panic
            raise UserError(f"the variable {name}: write http:// or https:// and the server's name")
    return {**CLIENT, "allow_http": any(endpoint.startswith("http://") for endpoint in said.values())}
