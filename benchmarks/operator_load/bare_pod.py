"""How fast a pod starts that no operator has made: what is measured of a job that does not depend on the operator."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time

import aiohttp
from cluster.api import Api

from operator_load.load import insisted
from operator_load.plane import NAMESPACE

LONGEST = 60.0
"""Seconds. A start that takes longer counts as this."""
_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
_NAME = "bare"
_POD = json.dumps({"metadata": {"name": _NAME}, "spec": {"containers": [{"name": "main", "image": "registry.invalid/none"}]}})


async def bare_pod(api: Api) -> float:
    """Seconds from the making of one to Running. It is taken away then."""
    connector = aiohttp.TCPConnector(ssl=api.tls or False)
    headers = {"Authorization": f"Bearer {api.token}", "Content-Type": "application/json"}
    async with aiohttp.ClientSession(api.server, connector=connector, headers=headers) as session:
        begin = time.monotonic()
        await insisted(session, "POST", _PODS, _POD.encode())
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(_runs(session), LONGEST)
            return min(time.monotonic() - begin, LONGEST)
        finally:
            await insisted(session, "DELETE", f"{_PODS}/{_NAME}?gracePeriodSeconds=0", None, (404,))


async def _runs(session: aiohttp.ClientSession) -> None:
    query = f"{_PODS}?watch=true&fieldSelector=metadata.name={_NAME}"
    async with session.get(query, timeout=aiohttp.ClientTimeout(total=None)) as answer:
        async for line in answer.content:
            if (json.loads(line)["object"].get("status") or {}).get("phase") == "Running":
                return
    raise RuntimeError("the API server has ended the watch of a pod")
