"""One process that is the agent of every pod of the cluster: ``python -m operator_load.agents --help``.

The pods' addresses are this machine's own, so the address that was dialled says whose agent is asked. What the benchmark wants done
comes in on another port: POST /exit?job= (the worker of rank 0 dies; answers when it has a successor), POST /train?jobs=&seconds=.
"""

import argparse
import asyncio
import json
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from cluster.api import Api

from operator_load.agent import FakeAgent, Job
from operator_load.hostile_agent import agent_of
from operator_load.plane import NAMESPACE

PORT = 9461
KEEP_ALIVE_SECONDS = 5.0
NOISE_SECONDS = 0.02
"""Between two pieces of an agent's noise."""
START_SECONDS = 0.5
DEADLINE = 60.0


class Agents:
    """By address, and by job and rank."""

    def __init__(self) -> None:
        self._by_address: dict[str, FakeAgent] = {}
        self._by_job: dict[Job, dict[str, FakeAgent]] = defaultdict(dict)
        self._unknown: dict[str, list[asyncio.Event]] = defaultdict(list)
        self._replaced: dict[str, asyncio.Future[float]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    # --- what the cluster tells ----------------------------------------------------------------------------------------

    async def watch(self, kubeconfig: Path) -> None:
        """Follow the pods, for ever; a watch that the server ends because we are slow goes on where it was. Raises RuntimeError."""
        api = Api(kubeconfig)
        url = f"{api.server}/api/v1/pods?watch=true&labelSelector=lmj.dev/job&timeoutSeconds=7200&resourceVersion="
        headers = {"Authorization": f"Bearer {api.token}"}
        connector, timeout = aiohttp.TCPConnector(ssl=api.tls or False), aiohttp.ClientTimeout(total=None)
        version = "0"
        async with aiohttp.ClientSession(connector=connector, headers=headers, timeout=timeout, read_bufsize=2**20) as session:
            while True:
                async with session.get(url + version) as answer:
                    async for line in answer.content:
                        event = json.loads(line)
                        if event["type"] == "ERROR":
                            raise RuntimeError(f"the watch of the pods: {line.decode()[:500]}")
                        version = event["object"]["metadata"]["resourceVersion"]
                        self._pod(event["type"], event["object"])
                        await asyncio.sleep(0)

    def _pod(self, kind: str, pod: dict[str, Any]) -> None:
        metadata = pod["metadata"]
        name, job = metadata["name"], (metadata["namespace"], metadata["labels"]["lmj.dev/job"])
        address = pod["status"].get("podIP")
        if kind == "DELETED":
            gone = self._by_job[job].pop(name, None)
            if gone is None:
                return
            if self._by_address.get(gone.address) is gone:
                del self._by_address[gone.address]
            gone.leave()
            self._lost(gone)
        elif address and name not in self._by_job[job]:
            rank = metadata["labels"].get("lmj.dev/rank")  # a standby has none
            agent = agent_of(name, job, None if rank is None else int(rank), address, time.time())
            self._by_job[job][name] = self._by_address[address] = agent
            for waiting in self._unknown.pop(address, ()):
                waiting.set()

    def _lost(self, gone: FakeAgent) -> None:
        for peer in list(self._by_job[gone.job].values()):
            if peer is not gone:
                peer.drop(gone.pod, time.time())

    # --- what the operator asks ----------------------------------------------------------------------------------------

    async def state(self, request: web.Request) -> web.Response:
        return await _answer(await self._asked(request))

    async def worker(self, request: web.Request) -> web.Response:
        agent, wanted = await self._asked(request), await request.json()
        if agent.start(wanted["incarnation"], time.time()):
            waiting = self._replaced.pop(agent.pod, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(time.time())
            self._later(self._start(agent, agent.incarnation))
        return await _answer(agent)

    async def view(self, request: web.Request) -> web.Response:
        agent = await self._asked(request)
        agent.join(await request.json(), time.time())
        return await _answer(agent)

    async def drain(self, request: web.Request) -> web.Response:
        agent = await self._asked(request)
        agent.draining = True
        return await _answer(agent)

    async def events(self, request: web.Request) -> web.StreamResponse:
        agent = await self._asked(request)
        assert request.transport is not None
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        cursor = int(request.query.get("after", "0"))
        try:
            while not agent.gone:
                changed = agent.changed
                if batch := agent.events[cursor:]:
                    cursor += len(batch)
                    await response.write(b"".join(json.dumps(event).encode() + b"\n" for event in batch))
                    continue
                if (noise := agent.noise(time.time())) is not None:
                    await response.write(noise)
                    await asyncio.sleep(NOISE_SECONDS)
                    continue
                try:
                    async with asyncio.timeout(KEEP_ALIVE_SECONDS):
                        await changed.wait()
                except TimeoutError:
                    await response.write(b"\n")
        except ConnectionError:
            return response
        request.transport.abort()  # its machine is gone: nobody says goodbye
        return response

    async def _asked(self, request: web.Request) -> FakeAgent:
        assert request.transport is not None
        address = request.transport.get_extra_info("sockname")[0]
        if address not in self._by_address:
            known = asyncio.Event()
            self._unknown[address].append(known)
            try:
                async with asyncio.timeout(1.0):
                    await known.wait()
            except TimeoutError:
                raise web.HTTPServiceUnavailable(text=f"no pod has {address}") from None
        return self._by_address[address]

    async def _start(self, agent: FakeAgent, incarnation: int) -> None:
        await asyncio.sleep(START_SECONDS)
        if agent.incarnation == incarnation and agent.phase == "Starting":
            agent.ready(time.time())

    # --- what the benchmark wants --------------------------------------------------------------------------------------

    async def exit(self, request: web.Request) -> web.Response:
        """Answers with the seconds from the event until StartWorker came."""
        agent = next(a for a in self._by_job[NAMESPACE, request.query["job"]].values() if a.rank == 0)
        waiting = self._replaced[agent.pod] = asyncio.get_running_loop().create_future()
        begin = time.time()
        agent.die(begin)
        self._lost(agent)
        async with asyncio.timeout(DEADLINE):
            return web.json_response({"seconds": await waiting - begin})

    async def train(self, request: web.Request) -> web.Response:
        """The first ``jobs`` commit a step each second, on all ranks, for ``seconds``."""
        chosen = sorted(self._by_job)[: int(request.query["jobs"])]
        end = time.time() + float(request.query["seconds"])
        while time.time() < end:
            begin = time.monotonic()
            for job in chosen:
                for agent in self._by_job[job].values():
                    agent.commit(time.time())
                await asyncio.sleep(0)
            await asyncio.sleep(max(0.0, 1.0 - (time.monotonic() - begin)))
        return web.json_response({"jobs": len(chosen)})

    def _later(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _answer(agent: FakeAgent) -> web.Response:
    said = agent.said(time.time())
    await asyncio.sleep(said.after)
    return web.Response(body=said.body, status=said.status, headers=said.headers)


async def serve(kubeconfig: Path, control: int) -> None:
    agents = Agents()
    spoken, wanted = web.Application(), web.Application()
    spoken.add_routes(
        [
            web.get("/v1/state", agents.state),
            web.get("/v1/events", agents.events),
            web.put("/v1/worker", agents.worker),
            web.put("/v1/view", agents.view),
            web.post("/v1/drain", agents.drain),
            # What else an operator may ask for changes nothing here.
            web.route("*", "/v1/{what}", agents.state),
        ]
    )
    wanted.add_routes([web.post("/exit", agents.exit), web.post("/train", agents.train)])
    for app, host, port in ((spoken, "0.0.0.0", PORT), (wanted, "127.0.0.1", control)):
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0, keepalive_timeout=75.0)
        await runner.setup()
        await web.TCPSite(runner, host, port, backlog=4096).start()
    await agents.watch(kubeconfig)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--control", type=int, required=True, help="port of 127.0.0.1 for what the benchmark wants")
    options = parser.parse_args()
    asyncio.run(serve(options.kubeconfig, options.control))


if __name__ == "__main__":
    main()
