"""An agent without a rank: it gets warm, says so, and becomes the rank that it is told."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from signing import KEY, POD, SignedClient

from lmj_api.protocol import EventKind, WorkerPhase
from lmj_api.topology import Topology
from lmj_trainer.agent import standby
from lmj_trainer.agent.gate import Gate
from lmj_trainer.agent.server import make_app
from lmj_trainer.agent.standby import PreparationError
from lmj_trainer.errors import UserError

pytestmark = pytest.mark.integration

Make = Callable[..., Any]
TOPOLOGY = Topology(2)
PREPARED = 'say:{"time":1,"kind":"preparing","message":"all-is-here"}'


async def test_it_gets_warm_and_becomes_a_rank(rig: Make) -> None:
    it = rig(f"{PREPARED} exit:0", "ready wait", rank=None)
    waiting = asyncio.create_task(standby.wait(it.supervisor))
    warm = await it.until(lambda s: s.warm)
    assert (warm.rank, warm.worker.incarnation) == (None, 0)
    assert [(e.kind, e.message) for e in it.supervisor.log.after(0)] == [(EventKind.WARM, "all-is-here")]
    assert not waiting.done()
    await it.supervisor.put_worker(2, 1)
    async with asyncio.timeout(10):
        await waiting
    ready = await it.until(lambda s: s.worker.phase is WorkerPhase.READY)
    assert (ready.rank, ready.warm, ready.worker.incarnation) == (1, False, 2)


@pytest.mark.parametrize(
    ("acts", "error", "text"),
    [
        ("err:error:no-such-model exit:1", PreparationError, "a standby could not prepare: error:no-such-model"),
        ("kill:9", PreparationError, "a standby could not prepare: killed by SIGKILL"),
        ("exit:2", UserError, "left with exit code 2"),
    ],
)
async def test_one_that_cannot_prepare_ends(rig: Make, acts: str, error: type[Exception], text: str) -> None:
    it = rig(acts, rank=None)
    with pytest.raises(error, match=text):
        async with asyncio.timeout(20):
            await standby.wait(it.supervisor)
    assert not it.state.warm


async def test_a_rank_that_comes_early_ends_the_preparation(rig: Make) -> None:
    it = rig("tell wait", "ready wait", rank=None, server="load")
    waiting = asyncio.create_task(standby.wait(it.supervisor))
    await asyncio.sleep(0)
    await it.supervisor.put_worker(2, 0)
    async with asyncio.timeout(20):
        await waiting
    ready = await it.until(lambda s: s.worker.phase is WorkerPhase.READY)
    assert (ready.rank, ready.warm) == (0, False)
    assert EventKind.WARM not in [e.kind for e in it.supervisor.log.after(0)]


async def test_what_is_told_over_http(rig: Make) -> None:
    it = rig("ready wait", rank=None)
    gate = Gate("", POD, [KEY.public])
    http: TestClient[Any, Any] = TestClient(TestServer(make_app(it.supervisor, gate, TOPOLOGY)))
    client = SignedClient(http, gate)
    await http.start_server()
    try:
        assert 'lmj_agent_warm{pod="job-r0-1",rank="",replica="",stage=""}' in await (await client.get("/metrics")).text()
        for body, status in (
            ({"incarnation": 1}, 409),
            ({"incarnation": 1, "rank": 1}, 200),
            ({"incarnation": 2, "rank": 0}, 409),
        ):
            assert (await client.put("/v1/worker", data=json.dumps(body))).status == status, body
        assert 'lmj_agent_warm{pod="job-r0-1",rank="1",replica="0",stage="1"} 0.0' in await (await client.get("/metrics")).text()
    finally:
        await it.supervisor.stop(0)
        await http.close()
