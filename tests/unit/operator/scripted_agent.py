"""A stand-in for the trainer's agent: the protocol over HTTP, and a worker that is ready at once and does nothing."""

import argparse
import asyncio
import json
import os
import sys
import threading
import time
from pathlib import Path

from aiohttp import web

from lmj_api.protocol import (
    AgentState,
    Event,
    EventKind,
    Holding,
    RecutRequest,
    Source,
    StartWorker,
    ViewNumber,
    WorkerPhase,
    WorkerState,
)
from lmj_api.signed import CHALLENGE
from lmj_api.view import Member, View
from lmj_trainer.agent.gate import Gate, RefusedError


def clock() -> float:
    """This machine's, which is not the operator's."""
    return time.time() + float(os.environ.get("CLOCK_AHEAD", "0"))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=int)
    parser.add_argument("--standby", action="store_true")
    parser.add_argument("--pod")
    parser.add_argument("--dir", type=Path)
    parser.add_argument("--uid")
    parser.add_argument("--trust", action="append")
    parser.add_argument("--fail", action="store_true")
    arguments = parser.parse_args()
    if arguments.fail:
        print("error: it was told to fail", file=sys.stderr)
        sys.exit(2)
    threading.Thread(target=_lifeline, daemon=True).start()
    asyncio.run(serve(arguments))


def _lifeline() -> None:
    while os.read(0, 4096):
        pass
    os._exit(1)


async def serve(arguments: argparse.Namespace) -> None:
    gate = Gate("", arguments.uid, arguments.trust)
    state = AgentState(pod=arguments.pod, rank=arguments.rank, started=clock(), scanned=True)
    events: list[Event] = []
    news = asyncio.Event()

    def happen(kind: EventKind, **changes: object) -> web.Response:
        nonlocal state
        state = state.model_copy(update=changes)
        events.append(Event(seq=len(events) + 1, time=clock(), kind=kind))
        news.set()
        return web.Response(text=state.model_copy(update={"clock": clock()}).to_json())

    @web.middleware
    async def authorized(request: web.Request, handler):  # type: ignore[no-untyped-def]
        try:
            digest = gate.admit(request.method, request.raw_path, request.headers.get("Authorization", ""))
            gate.check(await request.read(), digest)
        except RefusedError as error:
            return web.Response(status=401, text=str(error))
        return await handler(request)

    async def challenge(_: web.Request, answer: web.StreamResponse) -> None:
        answer.headers[CHALLENGE] = gate.challenge

    async def get_state(_: web.Request) -> web.Response:
        return web.Response(text=state.model_copy(update={"clock": clock()}).to_json())

    async def put_worker(request: web.Request) -> web.Response:
        start = StartWorker.model_validate_json(await request.read())
        wanted = start.incarnation
        if wanted < state.worker.incarnation:
            return web.Response(status=409, text="older")
        worker = WorkerState(incarnation=wanted, phase=WorkerPhase.READY, since=clock(), address=f"127.0.0.1:{wanted}")
        return happen(EventKind.READY, worker=worker, rank=state.rank if start.rank is None else start.rank)

    async def put_view(request: web.Request) -> web.Response:
        return happen(EventKind.JOINED, view=View.model_validate_json(await request.read()))

    async def leave(request: web.Request) -> web.Response:
        left = ViewNumber.model_validate_json(await request.read()).number
        return happen(EventKind.LOST_PEER, worker=state.worker.model_copy(update={"view": left, "holding": Holding(step=left)}))

    async def recut(request: web.Request) -> web.Response:
        return happen(EventKind.WARNING, recut=RecutRequest.model_validate_json(await request.read()).recut)

    async def source(request: web.Request) -> web.Response:
        told = Source.model_validate_json(await request.read()).address
        return happen(EventKind.WARNING, follower=Member(rank=0, pod="told", incarnation=1, address=told))

    async def drain(_: web.Request) -> web.Response:
        return happen(EventKind.DRAINED, draining=True)

    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        sent = int(request.query["after"])
        while True:
            for event in events[sent:]:
                await response.write(event.to_json().encode() + b"\n")
            sent = len(events)
            news.clear()
            await news.wait()

    app = web.Application(middlewares=[authorized])
    app.on_response_prepare.append(challenge)
    app.add_routes([web.get("/v1/state", get_state), web.get("/v1/events", stream), web.put("/v1/worker", put_worker)])
    app.add_routes([web.put("/v1/view", put_view), web.post("/v1/leave", leave), web.post("/v1/drain", drain)])
    app.add_routes([web.put("/v1/recut", recut), web.post("/v1/source", source)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    written = json.dumps({"host": "127.0.0.1", "port": runner.addresses[0][1], "pid": os.getpid()})
    (arguments.dir / "agent.json.new").write_text(written)
    (arguments.dir / "agent.json.new").rename(arguments.dir / "agent.json")
    await asyncio.Event().wait()


if __name__ == "__main__":
    main()
