"""The token of a job's agents."""

import asyncio
import base64
from typing import Any

from cluster_jobs import job

from lmj_operator.backend.kubernetes.token import Token


class SlowApi:
    """Has the job's Secret, and takes its time."""

    def __init__(self) -> None:
        self.asked = 0

    async def get(self, resource: object, namespace: str | None, name: str) -> dict[str, Any]:
        self.asked += 1
        await asyncio.sleep(0.01)
        owner = {"uid": job().metadata.uid, "controller": True}
        return {"metadata": {"name": name, "ownerReferences": [owner]}, "data": {"token": base64.b64encode(b"t").decode()}}


async def test_a_new_operator_that_asks_all_agents_at_once_reads_their_token_once() -> None:
    api = SlowApi()
    token = Token(api)  # type: ignore[arg-type]
    assert await asyncio.gather(*(token.read(job()) for _ in range(50))) == ["t"] * 50
    assert api.asked == 1
