"""How Kopf logs in, and what the operator's process loads for it."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import kopf
import pytest
from aiohttp import web
from kubernetes.aio.client import Configuration
from served import served

from lmj_operator.controller.controller import Controller, registry
from lmj_operator.controller.session import session_of

pytestmark = pytest.mark.integration
OPERATOR = """
import sys
from lmj_operator.controller.one_client import import_one_client
import_one_client()
import lmj_operator.controller.operator
print(*sys.modules)
"""


@pytest.mark.parametrize(
    ("keys", "sent"), [({"BearerToken": "Bearer abc"}, "Bearer abc"), ({"BearerToken": "abc"}, "Bearer abc"), ({}, "")]
)
async def test_kopf_has_the_credentials_of_the_client(keys: dict[str, str], sent: str) -> None:
    async def handle(request: web.Request) -> web.Response:
        return web.Response(text=request.headers.get("Authorization", ""))

    async with served(handle) as api:
        made = Configuration(host=api._client.configuration.host)
        made.api_key = keys
        session = (await session_of(made)).aiohttp_session
        async with session, session.get(made.host) as answer:
            assert await answer.text() == sent


async def test_a_token_that_is_renewed_is_asked_for() -> None:
    made = Configuration(host="http://127.0.0.1:1")

    async def renew(asked: Configuration) -> None:
        asked.api_key = {"BearerToken": "Bearer new"}

    made.refresh_api_key_hook = renew
    async with (await session_of(made)).aiohttp_session as session:
        assert session.headers["Authorization"] == "Bearer new"


async def test_without_a_cluster_there_is_no_login(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    (login,) = registry(Controller())._activities.get_all_handlers()
    fn: Any = login.fn
    with pytest.raises(kopf.LoginError, match=r"no cluster: .*; set KUBECONFIG"):
        await fn()


def test_the_operator_loads_one_client() -> None:
    """The other one brings what it needs to log in anywhere, which is a tenth of the operator's memory."""
    run = subprocess.run([sys.executable, "-c", OPERATOR], capture_output=True, text=True, timeout=120, check=True)
    loaded = set(run.stdout.split())
    assert "kubernetes.aio.client" in loaded
    assert loaded & {"kubernetes.config", "kubernetes.client.api", "google.auth", "requests"} == set()
