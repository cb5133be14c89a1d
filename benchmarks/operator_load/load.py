"""The processes of one run, and what is known of them: the operator, and the agents of all pods."""

from __future__ import annotations

import asyncio
import json
import os
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
from cluster.api import Api
from cluster.process import Process

from operator_load.audit import Call, calls
from operator_load.plane import NAMESPACE, Plane, free_port, python

BENCHMARKS = Path(__file__).parents[1]
CALL_SECONDS = 60.0
AT_ONCE = 16
TRIES = 5
"""Of a call that the API server had no time for."""
TIMED_OUT, CONFLICT = 504, 409


def opened(api: Api, kind: str = "application/json", **options: Any) -> aiohttp.ClientSession:
    """A session for calls to the API server, whose bodies are of that ``kind``."""
    headers = {"Authorization": f"Bearer {api.token}", "Content-Type": kind}
    return aiohttp.ClientSession(api.server, connector=aiohttp.TCPConnector(ssl=api.tls or False), headers=headers, **options)


async def insisted(session: aiohttp.ClientSession, method: str, path: str, data: bytes | None, also: Sequence[int] = ()) -> None:
    """A call, made again where the API server had no time for it. Raises RuntimeError for one that is refused, but not with ``also``."""
    for left in reversed(range(TRIES)):
        try:
            async with session.request(method, path, data=data, timeout=aiohttp.ClientTimeout(CALL_SECONDS)) as answer:
                status, text = answer.status, await answer.text()
        except TimeoutError:
            status, text = TIMED_OUT, f"no answer within {CALL_SECONDS:.0f} s"
        if status < 300 or status in also:
            return
        if status != TIMED_OUT or not left:
            raise RuntimeError(f"{method} {path}: {status}: {text[:300]}")
        if method == "POST":
            # What it had no time for may have been made all the same.
            also = (*also, CONFLICT)


class Load:
    """So many jobs of so many ranks each, in ``namespaces``."""

    def __init__(self, plane: Plane, jobs: int, ranks: int, namespaces: Sequence[str] = (NAMESPACE,)) -> None:
        self.plane, self.jobs, self.ranks, self._namespaces = plane, jobs, ranks, namespaces
        self.agents, self.operator = Process("agents", plane.folder), Process("operator", plane.folder)
        self.control, self.port = free_port(), free_port()
        self.api = Api(plane.admin)

    def start(self) -> None:
        """Start them."""
        path = os.pathsep.join([str(BENCHMARKS), str(BENCHMARKS.parent / "tests")])
        arguments: list[str | Path] = ["--kubeconfig", self.plane.admin, "--control", str(self.control)]
        self.agents.start([python(), "-m", "operator_load.agents", *arguments], {"PYTHONPATH": path})
        command = [python(), "-m", "lmj_operator.cli.main", "operator", "--listen", f"127.0.0.1:{self.port}"]
        command += ["--trainer-image", "registry.invalid/lmj-trainer:1"]
        for namespace in self._namespaces:
            command += ["--namespace", namespace]
        self.operator.start(command, {"KUBECONFIG": str(self.plane.kubeconfig)})

    def stop(self) -> None:
        """End them."""
        self.operator.stop()
        self.agents.stop()

    @property
    def pid(self) -> int:
        """Of the operator. Raises ClusterError when one of the processes ended."""
        self.agents.check()
        self.operator.check()
        return int(self.operator.pid() or 0)

    def metric(self, name: str) -> float | None:
        """One of the operator's own figures; None while it does not answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=CALL_SECONDS) as answer:
                lines = answer.read().decode().splitlines()
        except OSError:
            return None
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))

    def running(self) -> int:
        """Jobs that run."""
        return int(self.metric('lmj_jobs{phase="Running"}') or 0)

    def calls(self, begin: float = 0.0, end: float = float("inf")) -> list[Call]:
        """Of the operator, between these times."""
        return [call for call in calls(self.plane.audit) if begin <= call.at < end]

    async def send(
        self,
        method: str,
        paths: Sequence[str],
        bodies: Sequence[dict[str, Any] | bytes | None],
        kind: str = "application/json",
        at_once: int = AT_ONCE,
    ) -> list[tuple[float, float]]:
        """Calls to the API server, a few at once; when each was begun and how long it took. Raises RuntimeError for one that is refused."""
        gate = asyncio.Semaphore(at_once)
        async with opened(self.api, kind) as session:

            async def one(path: str, body: dict[str, Any] | bytes | None) -> tuple[float, float]:
                async with gate:
                    begin = time.time()
                    data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
                    await insisted(session, method, path, data)
                    return begin, time.time() - begin

            return list(await asyncio.gather(*(one(path, body) for path, body in zip(paths, bodies, strict=True))))

    def ask_agents(self, what: str, seconds: float = CALL_SECONDS) -> Any:
        """What the process of the agents answers. ``what``: see :mod:`operator_load.agents`."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.control}/{what}", method="POST")
        with urllib.request.urlopen(request, timeout=seconds) as answer:
            return json.load(answer)
