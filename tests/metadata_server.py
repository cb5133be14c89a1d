"""Metadata services of AWS, GCP and Azure as their documentation has them, over real HTTP. There is none of them here.

``tests/cloud/test_metadata.py`` asks a real one where ``LMJ_TEST_CLOUD`` names the cloud of this machine.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

NAME = "workers_3"
"""Of the machine, in Azure."""
TOKEN = "token-1"


@dataclass
class Machine:
    """What is true of it; a test changes that while it is asked."""

    instance_action: dict[str, Any] | None = None
    rebalance: bool = False
    preempted: bool = False
    maintenance: str = "NONE"
    events: list[Any] = field(default_factory=list)
    broken: bytes | None = None
    """What is answered to everything."""
    tokens: list[str] = field(default_factory=lambda: [TOKEN])
    """Those of AWS that hold, the newest last."""
    asked: list[str] = field(default_factory=list)


class Metadata:
    """The service of one machine, of all clouds at once; with ``machines``, of each at its name's path."""

    def __init__(self, host: str = "127.0.0.1", machines: Sequence[str] = ()) -> None:
        self.machine = Machine()
        self.machines = {name: Machine() for name in machines}
        find = self._find

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None:
                pass

            def do_GET(self) -> None:
                machine, path = find(self.path)
                self._answer(machine, *_get(machine, path, self.headers))

            def do_PUT(self) -> None:
                machine, path = find(self.path)
                self._answer(machine, *_put(machine, path, self.headers))

            def _answer(self, machine: Machine, status: int, body: bytes) -> None:
                machine.asked.append(f"{self.command} {self.path}")
                if machine.broken is not None:
                    status, body = 200, machine.broken
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        self._server = ThreadingHTTPServer((host, 0), Handler)
        self._server.daemon_threads = True
        self.address = f"http://{host}:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def _find(self, path: str) -> tuple[Machine, str]:
        name, _, rest = path.removeprefix("/").partition("/")
        return (self.machines[name], f"/{rest}") if name in self.machines else (self.machine, path)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _put(machine: Machine, path: str, headers: Any) -> tuple[int, bytes]:
    if path != "/latest/api/token" or not 1 <= int(headers.get("X-aws-ec2-metadata-token-ttl-seconds", 0)) <= 21600:
        return 400, b"bad request"
    return 200, machine.tokens[-1].encode()


def _get(machine: Machine, path: str, headers: Any) -> tuple[int, bytes]:
    if path.startswith("/latest/"):
        if headers.get("X-aws-ec2-metadata-token") != machine.tokens[-1]:
            return 401, b"unauthorized"
        if path == "/latest/meta-data/spot/instance-action" and machine.instance_action is not None:
            return 200, json.dumps(machine.instance_action).encode()
        if path == "/latest/meta-data/events/recommendations/rebalance" and machine.rebalance:
            return 200, b'{"noticeTime": "2026-11-26T10:00:00Z"}'
        return 404, b"not found"
    if path.startswith("/computeMetadata/v1/"):
        if headers.get("Metadata-Flavor") != "Google":
            return 403, b"forbidden"
        if path == "/computeMetadata/v1/instance/preempted":
            return 200, b"TRUE" if machine.preempted else b"FALSE"
        if path == "/computeMetadata/v1/instance/maintenance-event":
            return 200, machine.maintenance.encode()
    if path.startswith("/metadata/"):
        if headers.get("Metadata") != "true" or "api-version=" not in path:
            return 400, b"bad request"
        if path.startswith("/metadata/instance/compute/name?") and "format=text" in path:
            return 200, NAME.encode()
        if path.startswith("/metadata/scheduledevents?"):
            return 200, json.dumps({"DocumentIncarnation": 1, "Events": machine.events}).encode()
    return 404, b"not found"
