"""How fast a pod starts that no operator has made: what is measured of a job that does not depend on the operator."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import time

import aiohttp
from cluster.api import Api

from operator_load.load import insisted, opened
from operator_load.plane import NAMESPACE

LONGEST = 60.0
"""Seconds. A start that takes longer counts as this."""
_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
_SPEC = {"containers": [{"name": "main", "image": "registry.invalid/none"}]}


async def bare_pod(api: Api) -> float:
    """Seconds from the making of one to Running. It is taken away then."""
    # No name is used twice: kwok may not have heard yet that another of the name is gone.
    name = f"bare-{secrets.token_hex(4)}"
    pod = json.dumps({"metadata": {"name": name}, "spec": _SPEC}).encode()
    async with opened(api) as session:
        begin = time.monotonic()
        await insisted(session, "POST", _PODS, pod)
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(_runs(session, name), LONGEST)
            return min(time.monotonic() - begin, LONGEST)
        finally:
            await insisted(session, "DELETE", f"{_PODS}/{name}?gracePeriodSeconds=0", None, (404,))


async def _runs(session: aiohttp.ClientSession, name: str) -> None:
    query = f"{_PODS}?watch=true&fieldSelector=metadata.name={name}"
    async with session.get(query, timeout=aiohttp.ClientTimeout(total=None)) as answer:
        async for line in answer.content:
            if (json.loads(line)["object"].get("status") or {}).get("phase") == "Running":
                return
    raise RuntimeError("the API server has ended the watch of a pod")
