"""The agent's HTTP interface."""

import asyncio
import hmac
import json
from pathlib import Path
from typing import TypeVar

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from pydantic import ValidationError

from lmj_api.base import Message
from lmj_api.pod_token import PodToken
from lmj_api.protocol import FollowRequest, LookThrough, RecutRequest, Source, StartWorker, ViewNumber
from lmj_api.signed import CHALLENGE, SCHEME
from lmj_api.topology import Topology
from lmj_api.view import View
from lmj_trainer.agent import metrics
from lmj_trainer.agent.fencing import Admission, Answer
from lmj_trainer.agent.gate import Gate, RefusedError
from lmj_trainer.agent.supervisor import Supervisor

LARGEST_BODY = 1 << 20
"""Bytes; a view of 1,024 members has about 120 KB."""
KEEP_ALIVE_SECONDS = 5.0
"""A silent event stream carries an empty line every so often, so that either side notices when the other is gone."""

M = TypeVar("M", bound=Message)


def make_app(
    supervisor: Supervisor, gate: Gate, topology: Topology, scraper: str | None = None, token: Path | None = None
) -> web.Application:
    """The application; every path but ``/healthz`` wants a signature (see :mod:`lmj_api.signed`). Errors are JSON: ``{"error": reason}``.

    ``topology``: of the job. ``scraper``: who sends this as a bearer token may read ``/metrics``, and nothing else; None: nobody may by that.
    ``token``: the pod's own, which the operator is shown (see :mod:`lmj_api.pod_token`); None: it has none.
    """
    routes = Routes(supervisor, topology, token)
    app = web.Application(client_max_size=LARGEST_BODY, middlewares=[_errors, _admitted(gate, scraper)])

    async def challenge(_: web.Request, answer: web.StreamResponse) -> None:
        answer.headers[CHALLENGE] = gate.challenge

    app.on_response_prepare.append(challenge)
    app.add_routes(
        [
            web.get("/healthz", routes.healthz),
            web.get("/metrics", routes.metrics),
            web.get("/v1/token", routes.token),
            web.get("/v1/state", routes.state),
            web.get("/v1/events", routes.events),
            web.put("/v1/worker", routes.worker),
            web.put("/v1/view", routes.view),
            web.post("/v1/leave", routes.leave),
            web.post("/v1/look", routes.look),
            web.post("/v1/source", routes.source),
            web.put("/v1/follower", routes.follower),
            web.put("/v1/recut", routes.recut),
            web.post("/v1/handover", routes.handover),
            web.post("/v1/pause", routes.pause),
            web.post("/v1/stay", routes.stay),
            web.post("/v1/drain", routes.drain),
        ]
    )
    return app


class Routes:
    """What each path does."""

    def __init__(self, supervisor: Supervisor, topology: Topology, token: Path | None) -> None:
        self._supervisor, self._topology, self._token = supervisor, topology, token

    async def healthz(self, _: web.Request) -> web.Response:
        """The event loop turns: that is all that it says."""
        return web.Response(text="ok\n")

    async def metrics(self, _: web.Request) -> web.Response:
        """Prometheus text."""
        supervisor = self._supervisor
        body = metrics.render(supervisor.state, self._topology, supervisor.log.newest, supervisor.launcher.server_bytes)
        return web.Response(body=body, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def token(self, _: web.Request) -> web.Response:
        """The PodToken, as it is now: the kubelet renews it. 404: the pod has none; 503: it cannot be read."""
        if self._token is None:
            return _error(404, "this pod has no token")
        try:
            text = await asyncio.to_thread(self._token.read_text)
        except (OSError, ValueError) as error:
            return _error(503, f"{self._token}: the pod's token cannot be read: {error}")
        return web.Response(text=PodToken(token=text.strip()).to_json(), content_type="application/json")

    async def state(self, request: web.Request) -> web.Response:
        """The AgentState. With ``?view=NUMBER``, as in all answers that are one: without that view, which whoever asks knows."""
        return self._answer(request)

    async def worker(self, request: web.Request) -> web.Response:
        """Body: StartWorker. Answers the AgentState, or 409."""
        wanted = await _body(request, StartWorker)
        try:
            verdict = await self._supervisor.put_worker(wanted.incarnation, wanted.rank)
        except TimeoutError:
            return _error(503, f"worker {wanted.incarnation} cannot be started: the one before it does not end")
        return self._verdict(request, verdict)

    async def view(self, request: web.Request) -> web.Response:
        """Body: View. Answers the AgentState, or 409."""
        return self._verdict(request, self._supervisor.put_view(await _body(request, View)))

    async def leave(self, request: web.Request) -> web.Response:
        """Body: ViewNumber. Answers the AgentState."""
        self._supervisor.leave_view((await _body(request, ViewNumber)).number)
        return self._answer(request)

    async def look(self, request: web.Request) -> web.Response:
        """Body: LookThrough. Answers the AgentState."""
        wanted = await _body(request, LookThrough)
        self._supervisor.looks.ask(wanted.number, wanted.names)
        return self._answer(request)

    async def source(self, request: web.Request) -> web.Response:
        """Body: Source. Answers the AgentState, or 400."""
        try:
            self._supervisor.peers.follow((await _body(request, Source)).address)
        except ValueError as error:
            return _error(400, str(error))
        return self._answer(request)

    async def follower(self, request: web.Request) -> web.Response:
        """Body: FollowRequest. Answers the AgentState."""
        self._supervisor.put_follower((await _body(request, FollowRequest)).follower)
        return self._answer(request)

    async def recut(self, request: web.Request) -> web.Response:
        """Body: RecutRequest. Answers the AgentState."""
        self._supervisor.put_recut((await _body(request, RecutRequest)).recut)
        return self._answer(request)

    async def handover(self, request: web.Request) -> web.Response:
        """Body: ViewNumber. Answers the AgentState."""
        self._supervisor.hand_over((await _body(request, ViewNumber)).number)
        return self._answer(request)

    async def pause(self, request: web.Request) -> web.Response:
        """Body: ViewNumber. Answers the AgentState."""
        self._supervisor.pause((await _body(request, ViewNumber)).number)
        return self._answer(request)

    async def stay(self, request: web.Request) -> web.Response:
        """Answers the AgentState."""
        self._supervisor.stay()
        return self._answer(request)

    async def drain(self, request: web.Request) -> web.Response:
        """Answers the AgentState."""
        self._supervisor.drain()
        return self._answer(request)

    async def events(self, request: web.Request) -> web.StreamResponse:
        """Events after number ``after`` (default 0), one JSON line each, without end."""
        supervisor = self._supervisor
        cursor = _after(request, supervisor.log.newest)
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson", "Cache-Control": "no-store"})
        await response.prepare(request)
        try:
            while True:
                changed = supervisor.changed
                if batch := supervisor.log.after(cursor):
                    cursor = batch[-1].seq
                    await response.write(b"".join(event.to_json().encode() + b"\n" for event in batch))
                elif supervisor.closing:
                    break
                else:
                    await _wait_or_keep_alive(changed, response)
            await response.write_eof()
        except ConnectionError:
            pass  # the reader left: it asks again from where it was
        return response

    def _verdict(self, request: web.Request, verdict: Admission) -> web.Response:
        if verdict.answer is Answer.REFUSED:
            return _error(409, verdict.reason)
        return self._answer(request)

    def _answer(self, request: web.Request) -> web.Response:
        known = _number(request, "view")
        return web.Response(text=self._supervisor.answer.for_one_who_knows(known).to_json(), content_type="application/json")


async def _wait_or_keep_alive(changed: asyncio.Event, response: web.StreamResponse) -> None:
    try:
        async with asyncio.timeout(KEEP_ALIVE_SECONDS):
            await changed.wait()
    except TimeoutError:
        await response.write(b"\n")


def _admitted(gate: Gate, scraper: str | None) -> Middleware:
    @web.middleware
    async def admitted(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path == "/healthz" or _is_scraper(request, scraper):
            return await handler(request)
        try:
            digest = gate.admit(request.method, request.raw_path, request.headers.get("Authorization", ""))
            gate.check(await request.read(), digest)
        except RefusedError as error:
            return _error(401, str(error), {"WWW-Authenticate": SCHEME})
        return await handler(request)

    return admitted


def _is_scraper(request: web.Request, token: str | None) -> bool:
    given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
    wanted = f"Bearer {token}".encode("utf-8", "surrogateescape")
    return bool(token) and (request.method, request.path) == ("GET", "/metrics") and hmac.compare_digest(given, wanted)


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPException as error:
        return _error(error.status, error.text or error.reason)


async def _body(request: web.Request, kind: type[M]) -> M:
    try:
        return kind.model_validate_json(await request.read(), extra="ignore")
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise web.HTTPBadRequest(text=f"not a {kind.__name__}: {where + ': ' if where else ''}{first['msg']}") from None


def _after(request: web.Request, newest: int) -> int:
    number = _number(request, "after")
    if number > newest:
        raise web.HTTPBadRequest(text=f"after={number} is beyond event {newest}, the newest of this agent: begin at 0")
    return number


def _number(request: web.Request, name: str) -> int:
    """The number ``name`` in the query; 0: there is none."""
    text = request.query.get(name, "0")
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise web.HTTPBadRequest(text=f"{name}={text[:40]} is not the number of {'an event' if name == 'after' else 'a view'}")
    return int(text)


def _error(status: int, reason: str, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(status=status, text=json.dumps({"error": reason}), content_type="application/json", headers=headers)
