"""What it costs an operator to report a view to all its members, over HTTP on loopback to a process that answers as their agents do."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from multiprocessing.connection import Connection
from statistics import median
from typing import TYPE_CHECKING

import aiohttp
from aiohttp import web

from lmj_operator.backend.agent_client import AgentClient
from lmj_operator.backend.caller import Caller
from lmj_operator.backend.signing_key import SigningKey

if TYPE_CHECKING:
    from lmj_api.protocol import AgentState
    from lmj_api.view import View

_SECONDS = 60.0
AT_ONCE = 64
"""Calls under way. Each is to an agent of its own, with a connection that is there."""


def _answer(line: Connection, state: str) -> None:
    async def serve() -> None:
        async def put(request: web.Request) -> web.Response:
            await request.read()
            return web.Response(text=state, content_type="application/json")

        app = web.Application()
        app.router.add_put("/v1/view", put)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        line.send(runner.addresses[0][1])
        await asyncio.to_thread(line.recv)
        await runner.cleanup()

    asyncio.run(serve())


async def _tell(port: int, view: View, members: int) -> float:
    """Seconds of this process's processor time."""
    connector = aiohttp.TCPConnector(limit=AT_ONCE)
    async with aiohttp.ClientSession(trust_env=False, connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as session:
        agent = AgentClient(session, f"127.0.0.1:{port}", Caller(SigningKey.generate(), "job", "pod"), view.number)
        await asyncio.gather(*(agent.put_view(view) for _ in range(AT_ONCE)))  # connections, which an operator has
        begin, body = time.process_time(), view.to_json()
        for first in range(0, members, AT_ONCE):
            await asyncio.gather(*(agent.put_view(view, body) for _ in range(min(AT_ONCE, members - first))))
        return time.process_time() - begin


def measure(view: View, state: AgentState, repeats: int) -> float:
    """Seconds of a processor until all of ``view`` have answered with ``state``, the median of so many times."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    server = context.Process(target=_answer, args=(theirs, state.to_json()), daemon=True)
    server.start()
    try:
        if not ours.poll(_SECONDS):
            raise TimeoutError("the process that answers did not start")
        port = ours.recv()
        times = [asyncio.run(_tell(port, view, len(view.members))) for _ in range(repeats)]
        ours.send(None)
        server.join(_SECONDS)
    finally:
        server.kill()
    return median(times)
