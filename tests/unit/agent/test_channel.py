"""The operator meets agents inside TLS: who is between the two, or answers in an agent's place, gets nothing and is believed nothing."""

import asyncio
import contextlib
import ssl
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from signing import KEY, POD

from lmj_api.signed import digest_of
from lmj_api.tls import context
from lmj_api.topology import Topology
from lmj_operator.backend.agent_client import AgentClient, AgentError, AnswerError
from lmj_operator.backend.caller import Caller
from lmj_operator.backend.channel import Channel, ProofError
from lmj_trainer.agent.gate import Gate
from lmj_trainer.agent.server import make_app
from lmj_trainer.certificate import certified

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(sys.platform != "linux", reason="an agent with a token runs in a pod"),
]

TOKEN, DEADLINE = "the pod's own token", 10.0


def identity() -> tuple[ssl.SSLContext, str]:
    tls, certificate = certified(Ed25519PrivateKey.generate(), "lmj agent")
    return tls, digest_of(certificate)


class Agent:
    """A real one, but for its worker."""

    def __init__(self, rig: Any, token: Path) -> None:
        self.rig, self._token, self._runner = rig, token, None
        self.port = 0

    async def listen(self) -> None:
        """With another key each time, at the same port."""
        tls, certificate = identity()
        app = make_app(self.rig.supervisor, Gate("", POD, [KEY.public], certificate=certificate), Topology(2), token=self._token)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, ssl_context=tls).start()
        self.port = self._runner.addresses[0][1]

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()


class Proofs:
    """Which tokens were shown."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    async def check(self, token: str) -> None:
        self.shown.append(token)
        if token != TOKEN:
            raise ProofError("its token is of another pod")


class Between:
    """Ends TLS with a certificate of its own, and passes on what it hears, both ways."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.heard = bytearray()
        """What the agent answered, which must never have its token."""

    async def open(self) -> int:
        tls, _ = identity()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=tls)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection("127.0.0.1", self._port, ssl=context(ssl.PROTOCOL_TLS_CLIENT))
        with contextlib.suppress(OSError):
            await asyncio.gather(self._pass(reader, there[1]), self._pass(there[0], writer, self.heard))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, heard: bytearray | None = None) -> None:
        while data := await reader.read(1 << 16):
            if heard is not None:
                heard += data
            writer.write(data)
        writer.close()

    def close(self) -> None:
        self._server.close()


@pytest.fixture
async def agent(rig: Callable[..., Any], tmp_path: Path) -> AsyncIterator[Agent]:
    (tmp_path / "token").write_text(TOKEN + "\n")
    made = Agent(rig(""), tmp_path / "token")
    await made.listen()
    yield made
    await made.close()


@pytest.fixture
def proofs() -> Proofs:
    return Proofs()


@pytest.fixture
async def meet(proofs: Proofs) -> AsyncIterator[Callable[[int], AgentClient]]:
    async with aiohttp.ClientSession() as session:
        yield lambda port: AgentClient(session, f"127.0.0.1:{port}", Caller(KEY, "", POD, Channel(proofs.check)))


async def test_who_shows_the_pods_token_is_its_agent(agent: Agent, proofs: Proofs, meet: Callable[[int], AgentClient]) -> None:
    client = meet(agent.port)
    states = await asyncio.gather(*(client.state() for _ in range(4)))
    assert {state.pod for state in states} == {"job-r0-1"}
    await client.drain()
    assert proofs.shown == [TOKEN], "it is met once"
    agent.rig.supervisor.warn("something happened")
    async with asyncio.timeout(DEADLINE):
        assert (await anext(aiter(client.events(0)))).message == "something happened"
    assert proofs.shown == [TOKEN]


async def test_an_agent_tells_nothing_to_who_is_between(agent: Agent, proofs: Proofs, meet: Callable[[int], AgentClient]) -> None:
    between = Between(agent.port)
    client = meet(await between.open())
    calls: tuple[Callable[[], Any], ...] = (client.state, client.drain, lambda: anext(aiter(client.events(0))))
    for call in calls:
        with pytest.raises(AgentError, match="a connection to somebody else"):
            await call()
    assert proofs.shown == []
    assert b"401 Unauthorized" in between.heard
    assert TOKEN.encode() not in between.heard
    between.close()


async def test_who_has_no_token_of_the_pod_is_not_its_agent(proofs: Proofs, meet: Callable[[int], AgentClient]) -> None:
    """As whoever changes packets: it answers in the agent's place, with a worker's address that is its own."""
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.json_response({"token": "a token of my own pod", "pod": "job-r0-1"})

    app, (tls, _) = web.Application(), identity()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    client = meet(runner.addresses[0][1])
    for _ in range(2):
        with pytest.raises(AnswerError, match="it is not known whose certificate this is: its token is of another pod"):
            await client.state()
    assert asked == ["/v1/token"] * 2, "it is asked nothing else"
    await runner.cleanup()


async def for_ever(call: Callable[[], Any]) -> None:
    while True:
        await call()


async def test_an_agent_with_another_certificate_is_met_again(
    agent: Agent, proofs: Proofs, meet: Callable[[int], AgentClient]
) -> None:
    client = meet(agent.port)
    await client.state()
    for number, call in enumerate((client.state, lambda: anext(aiter(client.events(0)))), 2):
        await agent.close()
        await agent.listen()
        with pytest.raises(AgentError):  # the connection that was kept has ended, or who answers there is another
            await for_ever(call)
        assert (await client.state()).pod == "job-r0-1"
        assert proofs.shown == [TOKEN] * number


async def test_an_agent_takes_nothing_in_the_clear(agent: Agent) -> None:
    async with aiohttp.ClientSession() as session:
        with pytest.raises(AgentError):
            await AgentClient(session, f"127.0.0.1:{agent.port}", Caller(KEY, "", POD)).state()


async def test_a_token_that_cannot_be_read_is_told(
    agent: Agent, tmp_path: Path, proofs: Proofs, meet: Callable[[int], AgentClient]
) -> None:
    (tmp_path / "token").unlink()
    client = meet(agent.port)
    with pytest.raises(AgentError, match="the pod's token cannot be read"):
        await client.state()
    (tmp_path / "token").write_text(TOKEN)
    assert (await client.state()).pod == "job-r0-1"


async def test_who_says_nothing_is_not_waited_for(meet: Callable[[int], AgentClient]) -> None:
    server = await asyncio.start_server(lambda reader, writer: asyncio.sleep(DEADLINE), "127.0.0.1", 0)
    client = meet(server.sockets[0].getsockname()[1])
    async with asyncio.timeout(DEADLINE):
        for _ in range(2):
            with pytest.raises(AgentError, match="it is not known whose certificate this is"):
                await client.state()
    server.close()
