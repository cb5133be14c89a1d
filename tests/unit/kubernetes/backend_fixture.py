"""A backend between an API server in memory and an agent."""

import asyncio

import aiohttp
from aiohttp import web
from cluster_jobs import SETTINGS, UID, MemoryApi, MemoryKeys, job, job_body
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from lmj_api.protocol import AgentState, Event, EventKind
from lmj_api.signed import CHALLENGE, decoded, parse
from lmj_operator.backend.kubernetes.backend import KubernetesBackend
from lmj_operator.backend.kubernetes.cache import Cache
from lmj_operator.backend.kubernetes.canaries import turns_to_knock
from lmj_operator.backend.kubernetes.start_trouble import event_lists
from lmj_operator.backend.kubernetes.status_store import StatusStore

ASKED = "q" * 22
"""Its challenge."""


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Fixture:
    """A backend between an API server in memory and an agent at 127.0.0.1."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.api, self.clock, self.session, self.keys = MemoryApi(), Clock(), session, MemoryKeys()
        self.woken: list[tuple[str, str]] = []
        self.cache = Cache(self.woken.append)
        body = self.api.objects["livemigrationjobs", "tiny"] = job_body()
        store = StatusStore(self.api, body, 2.0, self.clock)  # type: ignore[arg-type]
        lists, turns = event_lists(), turns_to_knock()
        self.backend = KubernetesBackend(
            job(), self.api, self.cache, store, session, SETTINGS, self.keys, lists, turns, self.clock
        )  # type: ignore[arg-type]
        self.told: list[str] = []
        self.healthy = True
        """The agent has an answer when it is asked for its state."""
        self.state = AgentState(pod="tiny-r0-1", rank=0, started=1.0)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if not self._is_signed(request):
            return web.Response(status=401, headers={CHALLENGE: ASKED})
        if request.path == "/v1/events":
            response = web.StreamResponse()
            await response.prepare(request)
            await response.write(Event(seq=1, time=0, kind=EventKind.READY).to_json().encode() + b"\n")
            await asyncio.Event().wait()
        self.told.append(f"{request.method} {request.path}")
        if not self.healthy:
            return web.Response(status=503)
        return web.Response(text=self.state.to_json())

    def _is_signed(self, request: web.Request) -> bool:
        """Over the challenge, for the pod that the agent is of: all of these tests share one address."""
        try:
            credential, signature = parse(request.headers.get("Authorization", ""))
        except ValueError:
            return False
        key = Ed25519PublicKey.from_public_bytes(decoded(credential.key))
        for pod in self.cache.pods(self.backend.key):
            said = credential.statement(UID, pod["metadata"]["uid"], request.method, request.raw_path)
            try:
                key.verify(signature, said)
            except InvalidSignature:
                continue
            return credential.challenge == ASKED and credential.key in pod["trust"]
        return False

    def calls(self, verb: str, plural: str) -> int:
        return sum(call[:2] == (verb, plural) for call in self.api.calls)
