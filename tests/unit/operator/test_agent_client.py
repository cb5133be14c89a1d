"""An agent's client, against one that answers whatever bytes a test wants: all that they can be is an error of that agent."""

import asyncio
import gzip
from collections.abc import AsyncIterator, Callable

import aiohttp
import pytest
from counted_turns import CountedTurns
from planned import view_of_one
from signing import KEY, POD

from lmj_api.protocol import AgentState
from lmj_api.signed import CHALLENGE, digest_of, parse
from lmj_operator.backend import agent_client
from lmj_operator.backend.agent_client import LONG_ANSWER, LONGEST_ANSWER, AgentClient, AgentError, AnswerError
from lmj_operator.backend.caller import Caller
from lmj_operator.backend.kubernetes.agents import LONGEST_RECONNECT_SECONDS, RECONNECT_SECONDS, Agents

STATE = AgentState(pod="p", rank=0, started=1.0).to_json().encode()


class Server:
    """Answers each call with the next of ``answers``, or with ``answer``, and ends the connection."""

    def __init__(self) -> None:
        self.answer = b""
        self.answers: list[bytes] = []
        self.asked: list[bytes] = []
        self.sent = 0
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.asked.append(await reader.readuntil(b"\r\n\r\n"))
        answer = self.answers.pop(0) if self.answers else self.answer
        try:
            for at in range(0, len(answer), 1 << 16):
                writer.write(answer[at : at + (1 << 16)])
                await writer.drain()
                self.sent = at
        except ConnectionError:
            return  # it was not read to the end
        finally:
            writer.close()


def answer(body: bytes, status: str = "200 OK", *fields: str) -> bytes:
    return (
        "\r\n".join([f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *fields, "", ""]).encode() + body
    )


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    made = Server()
    listening = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = listening.sockets[0].getsockname()[1]
    yield made
    listening.close()


@pytest.fixture
async def client(server: Server) -> AsyncIterator[AgentClient]:
    async with aiohttp.ClientSession() as session:
        yield AgentClient(session, f"127.0.0.1:{server.port}", Caller(KEY, "job", POD))


async def test_an_answer_is_an_agents_state(server: Server, client: AgentClient) -> None:
    server.answer = answer(STATE)
    assert (await client.state()).pod == "p"
    assert b"\r\nAccept-Encoding: identity\r\n" in server.asked[0]
    assert signed(server.asked[0]) == ("", digest_of(b""))


async def test_an_agent_is_told_which_view_is_known(server: Server) -> None:
    server.answer = answer(STATE)
    view = view_of_one(7)
    async with aiohttp.ClientSession() as session:
        for known in (0, 6):
            client = AgentClient(session, f"127.0.0.1:{server.port}", Caller(KEY, "job", POD), known)
            await client.state()
            await client.put_view(view)
    first = [asked.split(b" HTTP", 1)[0] for asked in server.asked]
    assert first == [b"GET /v1/state", b"PUT /v1/view?view=7", b"GET /v1/state?view=6", b"PUT /v1/view?view=7"]


def signed(asked: bytes) -> tuple[str, str]:
    """The challenge and the digest of the body that the request is signed over; that it is signed is looked at."""
    first, *fields = asked.decode().split("\r\n")
    method, path, _ = first.split(" ")
    header = next(value for name, _, value in (field.partition(": ") for field in fields) if name == "Authorization")
    credential, signature = parse(header)
    assert credential.key == KEY.public
    KEY._private.public_key().verify(signature, credential.statement("job", POD, method, path))
    return credential.challenge, credential.digest


def refusal(challenge: str | None) -> bytes:
    return answer(b"{}", "401 X", *([f"{CHALLENGE}: {challenge}"] if challenge is not None else []))


FIRST, SECOND = "Challenge-of-the-first", "challenge_of_the_second"


async def test_a_request_is_signed_once_more_over_the_challenge_that_is_told(server: Server, client: AgentClient) -> None:
    server.answers, server.answer = [refusal(FIRST)], answer(STATE, "200 OK", f"{CHALLENGE}: {SECOND}")
    view = view_of_one(7)
    assert (await client.put_view(view)).pod == "p"
    await client.state()
    body = digest_of(view.to_json().encode())
    assert [signed(asked) for asked in server.asked] == [("", body), (FIRST, body), (SECOND, digest_of(b""))]


@pytest.mark.parametrize(
    ("answers", "calls"),
    [
        ([refusal(None)], 1),
        ([refusal("no challenge")], 1),
        ([refusal(FIRST), refusal(FIRST)], 2),
        ([refusal(FIRST), refusal(SECOND), refusal(FIRST)], 2),
    ],
)
async def test_one_who_refuses_all_is_not_asked_for_ever(
    server: Server, client: AgentClient, answers: list[bytes], calls: int
) -> None:
    server.answers = list(answers)
    with pytest.raises(AgentError, match="HTTP 401"):
        await client.state()
    assert len(server.asked) == calls
    server.answers, server.asked = list(answers), []
    with pytest.raises(AgentError, match="HTTP 401"):
        await anext(aiter(AgentClient(client._session, client._address, Caller(KEY, "job", POD)).events(0)))
    assert len(server.asked) == calls


async def test_one_who_wants_another_challenge_each_time_is_asked_later_and_later(
    server: Server, client: AgentClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answers = [refusal(f"challenge-number-{number:06}") for number in range(1000)]
    waits: list[float] = []
    enough, sleep = asyncio.Event(), asyncio.sleep

    async def slept(seconds: float) -> None:
        if seconds >= RECONNECT_SECONDS:
            waits.append(seconds)
            if len(waits) == 7:
                enough.set()
                await asyncio.Event().wait()
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", slept)
    agents = Agents(0.0)
    assert await agents.state("uid", "p", 0, client) is None
    async with asyncio.timeout(30):
        await enough.wait()
    assert waits == [0.2, 0.4, 0.8, 1.6, 3.2, LONGEST_RECONNECT_SECONDS, LONGEST_RECONNECT_SECONDS]
    assert len(server.asked) == 2 + 2 * len(waits), "twice for each time"
    await agents.close()


async def test_a_stream_is_opened_once_more_over_the_challenge_that_is_told(server: Server, client: AgentClient) -> None:
    event = b'{"seq":4,"time":5,"kind":"ready"}'
    server.answers, server.answer = [refusal(FIRST)], b"HTTP/1.1 200 OK\r\n\r\n" + event + b"\n"
    opened: list[bool] = []
    assert (await anext(aiter(client.events(3, lambda: opened.append(True))))).seq == 4
    assert [signed(asked) for asked in server.asked] == [("", digest_of(b"")), (FIRST, digest_of(b""))]
    assert opened == [True]


@pytest.mark.parametrize(
    ("body", "fields", "why"),
    [
        (b"\xff\xfe{", ["Content-Type: application/json; charset=utf-8"], "Invalid JSON"),
        (b'{"pod":"\xff","started":1}', [], "Invalid JSON"),
        (b"a" * 9 + b"-" + b"a" * 9, ["Content-Type: text/plain; charset=punycode"], "Invalid JSON"),
        (gzip.compress(STATE), ["Content-Encoding: gzip"], "Invalid JSON"),
        (b'{"pod":"p","started":Infinity}', [], "started: Input should be a finite number"),
        (b'{"pod":"p","started":1e300}', [], "started: Input should be less than or equal to"),
        (b'{"pod":"p","started":1,"checkpoints":[' + b"{}," * 300_000 + b"{}]}", [], "checkpoints.0.name: Field required"),
        (b"[" * 10_000, [], "Invalid JSON: recursion limit exceeded"),
    ],
)
async def test_what_is_no_state_is_an_error_of_that_agent(
    server: Server, client: AgentClient, body: bytes, fields: list[str], why: str
) -> None:
    server.answer = answer(body, "200 OK", *fields)
    with pytest.raises(AnswerError, match=why) as told:
        await client.state()
    assert len(str(told.value)) < 300


async def test_of_long_answers_one_is_parsed_in_a_round_of_the_loop(
    server: Server, client: AgentClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = CountedTurns(monkeypatch, agent_client)
    server.answer = answer(STATE)
    assert (await client.state()).pod == "p"
    assert turns.long == 0, "what is short waits for nobody"
    server.answer = answer(STATE + b" " * LONG_ANSWER)
    assert (await client.state()).pod == "p"
    assert turns.long == 1


async def test_an_answer_without_end_is_not_read_to_its_end(server: Server, client: AgentClient) -> None:
    server.answer = answer(b" " * (16 * LONGEST_ANSWER))
    with pytest.raises(AnswerError, match=f"an answer of more than {LONGEST_ANSWER} bytes"):
        await client.drain()
    await asyncio.sleep(0)
    assert server.sent < 12 * LONGEST_ANSWER  # sockets of both ends hold some


async def test_an_agent_does_not_send_its_caller_elsewhere(server: Server, client: AgentClient) -> None:
    server.answer = answer(b"", "307 X", f"Location: http://127.0.0.1:{server.port}/internal")
    for call in (client.state, client.drain):
        with pytest.raises(AgentError, match="HTTP 307"):
            await call()
    assert [asked.split(b" HTTP", 1)[0] for asked in server.asked] == [b"GET /v1/state", b"POST /v1/drain"]


async def test_a_reason_is_one_line_of_a_log(server: Server, client: AgentClient) -> None:
    server.answer = answer(b"no\r\n2026 ERROR\x1b[31m all is lost" + b"!" * 10_000, "409 X")
    with pytest.raises(AgentError, match=r"HTTP 409: no 2026 ERROR \[31m all is lost!") as told:
        await client.state()
    assert len(str(told.value)) < 300
    assert str(told.value).isprintable()


@pytest.mark.parametrize(
    "line",
    [
        b'{"seq":1,"time":Infinity,"kind":"committed","progress":{"step":1,"steps":2,"epoch":0}}',
        b'{"seq":1,"time":5,"kind":"committed","progress":{"step":1,"steps":2,"epoch":Infinity}}',
        b'{"seq":1,"time":5,"kind":"warning","message":"\xff"}',
        b'{"seq":1,"time":5,"kind":"checkpointed","removed":[' + b"0," * 60_000 + b"0]}",
        b"[]",
    ],
)
async def test_what_is_no_event_is_an_error_of_that_agent(server: Server, client: AgentClient, line: bytes) -> None:
    server.answer = b"HTTP/1.1 200 OK\r\n\r\n" + line + b"\n"
    with pytest.raises(AnswerError, match="/v1/events: not an event: ") as told:
        await anext(aiter(client.events(0)))
    assert len(str(told.value)) < 300


async def test_what_no_call_expects_of_http_is_an_error_too(server: Server, client: AgentClient) -> None:
    for raw in (b"SSH-2.0\r\n\r\n", b"HTTP/1.1 200 OK\r\nX: \x00\r\n\r\n", b"HTTP/1.1 204 No\r\n\r\n", b""):
        server.answer = raw
        with pytest.raises(AgentError) as told:
            await client.state()
        assert str(told.value).isprintable()


def test_a_line_of_a_log_is_short() -> None:
    shown: Callable[[str], str] = agent_client._shown
    assert shown("a\n\tb") == "a b"
    assert len(shown("x" * 10_000)) == agent_client.SHOWN_CHARACTERS
