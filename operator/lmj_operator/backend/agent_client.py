"""Talks to one agent: HTTP, JSON, each request signed for it alone, every call with a deadline.

An agent answers what whatever runs in its pod makes it answer. All that it can do is not to be believed: :class:`AgentError`.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from functools import lru_cache

import aiohttp
from pydantic import ValidationError
from yarl import URL

from lmj_api.bounds import printable
from lmj_api.pod_token import PodToken
from lmj_api.protocol import AgentState, Event, FollowRequest, LookThrough, Recut, RecutRequest, Source, StartWorker, ViewNumber
from lmj_api.signed import CHALLENGE, digest_of
from lmj_api.view import Member, View
from lmj_operator.backend.caller import Caller
from lmj_operator.backend.channel import ProofError, shown_at
from lmj_operator.backend.event_stream import (
    ChallengedError,
    Excess,
    Pace,
    StrangerError,
    StreamError,
    lines,
    slowly,
)
from lmj_operator.backend.reach import is_there
from lmj_operator.backend.rounds import turn

CALL_SECONDS = 5.0
STATE_SECONDS = 1.0
PATIENCE_SECONDS = 0.05
"""An agent that has not answered by then may be slow, or without power: its machine is asked."""
REACH_SECONDS = 0.2
"""A machine that has taken none of three connections by then is not there. In a cluster it takes one in a millisecond."""
LEAST_SECONDS = 0.05
"""A request that is sent once more has so long at least."""
QUIET_SECONDS = 12.0
"""An event stream without a line for so long is opened again: an agent with nothing to tell sends an empty one every 5 s."""


LONG_ANSWER = 32 << 10
"""Bytes of one that takes the loop for long when it is parsed: one in a round is."""
LONGEST_ANSWER = 1 << 20
"""Bytes: a state of 1,000 checkpoints has a fifth of them."""
SHOWN_CHARACTERS = 200
NO_BODY = digest_of(b"")
_UNKNOWN = "it is not known whose certificate this is"


class AgentError(Exception):
    """The agent did not answer, or refused; the text says which."""


class MachineError(AgentError):
    """The agent did not answer, and its machine takes no connection: it is off, or there is no way to it."""


class _RefusedError(AgentError):
    """The agent does not take the request for one of somebody whom it obeys (HTTP 401)."""


class AnswerError(AgentError):
    """The agent answered, with what is no agent's state; the text says why."""


class AgentClient:
    """One agent at ``address`` (``host:port``)."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        address: str,
        caller: Caller,
        view: int = 0,
        excess: Excess = slowly,
    ) -> None:
        """``caller``: signs for this agent. ``view``: the number of the newest view that the caller knows; an agent that is in it does not list
        its members again. ``excess``: waited for before more is taken than any agent tells.
        """
        self._session, self._caller, self._view = session, caller, view
        self._excess = excess
        self._pace: Pace | None = None
        self._address = address
        self._base = f"{'http' if caller.channel is None else 'https'}://{address}"

    async def state(self) -> AgentState:
        """What the agent knows. Raises :class:`AgentError`, as all calls do, and :class:`MachineError` when its machine is not there."""
        return await self._call("GET", "state", None, STATE_SECONDS)

    async def start_worker(self, incarnation: int, rank: int | None = None) -> AgentState:
        """Have worker ``incarnation`` running, in a standby as ``rank``; what the agent knows then. Raises :class:`AgentError`."""
        return await self._call("PUT", "worker", StartWorker(incarnation=incarnation, rank=rank).to_json(), CALL_SECONDS)

    async def put_view(self, view: View, body: str | None = None) -> AgentState:
        """Tell the agent ``view``, which ``body`` is as JSON, if that was written already; what it knows then. Raises :class:`AgentError`."""
        return await self._call("PUT", "view", body or view.to_json(), CALL_SECONDS, view.number)

    async def leave_view(self, number: int) -> AgentState:
        """Have the worker leave view ``number`` and all before it; what the agent knows then. Raises :class:`AgentError`."""
        return await self._call("POST", "leave", ViewNumber(number=number).to_json(), CALL_SECONDS)

    async def look(self, number: int, names: Sequence[str]) -> AgentState:
        """Have it look through the checkpoints again, now that view ``number`` is over, and for ``names``. Raises :class:`AgentError`."""
        body = LookThrough(number=number, names=list(names)).to_json()
        return await self._call("POST", "look", body, CALL_SECONDS)

    async def let_in(self, address: str) -> AgentState:
        """Have the pod's relay let in that of the worker at ``address``; what the agent knows then. Raises :class:`AgentError`."""
        return await self._call("POST", "source", Source(address=address).to_json(), CALL_SECONDS)

    async def put_follower(self, follower: Member | None) -> AgentState:
        """Have ``follower`` follow the pod's worker; what the agent knows then. Raises :class:`AgentError`."""
        return await self._call("PUT", "follower", FollowRequest(follower=follower).to_json(), CALL_SECONDS)

    async def put_recut(self, recut: Recut | None) -> AgentState:
        """Have workers of another cut follow the pod's worker; what the agent knows then. Raises :class:`AgentError`."""
        return await self._call("PUT", "recut", RecutRequest(recut=recut).to_json(), CALL_SECONDS)

    async def pause(self, number: int) -> AgentState:
        """Have the worker's group leave view ``number`` at the next step boundary."""
        return await self._call("POST", "pause", ViewNumber(number=number).to_json(), CALL_SECONDS)

    async def hand_over(self, number: int) -> AgentState:
        """Have all of view ``number`` leave it at the next step boundary, those that follow with them. Raises :class:`AgentError`."""
        return await self._call("POST", "handover", ViewNumber(number=number).to_json(), CALL_SECONDS)

    async def stay(self) -> AgentState:
        """Say that it may stay for a part of its grace period; what the agent knows then. Raises :class:`AgentError`."""
        return await self._call("POST", "stay", None, CALL_SECONDS)

    async def drain(self) -> AgentState:
        """Ask for a last checkpoint; what the agent knows then. Raises :class:`AgentError`."""
        return await self._call("POST", "drain", None, CALL_SECONDS)

    async def events(self, after: int, opened: Callable[[], None] = lambda: None) -> AsyncIterator[Event]:
        """Events with numbers above ``after``, as they come, until the stream ends. Raises :class:`AgentError` when it breaks.

        ``opened`` is called when the agent has answered: from then on nothing is missed.
        """
        path = f"/v1/events?after={after}"
        self._pace = pace = self._pace or Pace(excess=self._excess)
        pin = await self._met(STATE_SECONDS)
        for last in (False, True):
            signed = self._caller.challenge
            headers = self._headers("GET", path, NO_BODY, pin)
            try:
                async for line in lines(self._address, path, headers, opened, STATE_SECONDS, QUIET_SECONDS, pace, pin):
                    yield Event.model_validate_json(line, extra="ignore")
                    del line
                return
            except ValidationError as error:
                raise AnswerError(f"GET {self._base}/v1/events: not an event: {_first(error)}") from error
            except ChallengedError as error:
                self._caller.heard(error.challenge)
                if last or self._caller.challenge == signed:
                    raise AgentError(f"GET {self._base}/v1/events: {error}") from error
            except StreamError as error:
                if isinstance(error, StrangerError):
                    self._forget(pin)
                raise AgentError(f"GET {self._base}/v1/events: {error}") from error

    async def _call(self, method: str, path: str, body: str | None, seconds: float, view: int = 0) -> AgentState:
        """The answer of the agent, for which a slow one has ``seconds``; a machine that is not there is not waited for so long.

        ``view``: the newest that is known by now.
        """
        doubting: list[asyncio.Task[None]] = []

        async def doubt() -> None:
            if not await is_there(self._address, REACH_SECONDS):
                waits.reschedule(0.0)

        # A call is made often and seldom slow: no task of its own.
        timer = asyncio.get_running_loop().call_later(PATIENCE_SECONDS, lambda: doubting.append(asyncio.create_task(doubt())))
        try:
            async with asyncio.timeout(None) as waits:
                return await self._ask(method, path, body, seconds, max(view, self._view))
        except TimeoutError as error:
            raise MachineError(f"{method} {self._base}/v1/{path}: its machine takes no connection") from error
        finally:
            timer.cancel()
            for task in doubting:
                task.cancel()

    async def _ask(self, method: str, path: str, body: str | None, seconds: float, view: int) -> AgentState:
        end = time.monotonic() + seconds
        path = f"/v1/{path}?view={view}" if view else f"/v1/{path}"
        pin = await self._met(seconds)
        said = await self._asked(method, path, body, end, pin)
        if len(said) > LONG_ANSWER:
            await turn(long=True)
        try:
            return AgentState.model_validate_json(said, extra="ignore")
        except ValidationError as error:
            raise AnswerError(f"{method} {self._base}{path}: not an agent's state: {_first(error)}") from error

    async def _met(self, seconds: float) -> aiohttp.Fingerprint | None:
        """Of the certificate that the agent has, when it is proven; None: the agent takes requests in the clear. Raises :class:`AgentError`."""
        channel = self._caller.channel
        if channel is None:
            return None
        if channel.pin is not None:
            return channel.pin
        end = time.monotonic() + seconds
        try:
            async with asyncio.timeout(seconds), channel.turn:
                if channel.pin is None:
                    pin = await shown_at(self._address)
                    said = await self._asked("GET", "/v1/token", None, end, pin)
                    await channel.prove(PodToken.model_validate_json(said, extra="ignore").token)
                    channel.pin = pin
        except (ValidationError, ProofError) as error:
            why = _first(error) if isinstance(error, ValidationError) else _shown(str(error))
            raise AnswerError(f"{self._base}: {_UNKNOWN}: {why}") from error
        except OSError as error:
            raise AgentError(f"{self._base}: {_UNKNOWN}: {_shown(str(error)) or type(error).__name__}") from error
        return channel.pin

    def _forget(self, pin: aiohttp.Fingerprint | None) -> None:
        if pin is not None and self._caller.channel is not None:
            self._caller.channel.forget(pin)

    async def _asked(self, method: str, path: str, body: str | None, end: float, pin: aiohttp.Fingerprint | None) -> bytes:
        """The answer to the request; once more where the agent wants it signed over a challenge that was not known, or is over."""
        signed = self._caller.challenge
        try:
            return await self._asked_once(method, path, body, end - time.monotonic(), pin)
        except _RefusedError:
            if self._caller.challenge == signed:
                raise
        return await self._asked_once(method, path, body, end - time.monotonic(), pin)

    async def _asked_once(
        self, method: str, path: str, body: str | None, seconds: float, pin: aiohttp.Fingerprint | None
    ) -> bytes:
        data, digest = _encoded(body) if body is not None else (None, NO_BODY)
        headers = self._headers(method, path, digest, pin)
        if data is not None:
            headers["Content-Type"] = "application/json"
        # As it was signed.
        url = URL(f"{self._base}{path}", encoded=True)
        try:
            # As it is, and from nowhere else: what is small when it is compressed may be large, and an agent may send its caller anywhere.
            async with self._session.request(
                method,
                url,
                data=data,
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=max(seconds, LEAST_SECONDS)),
                allow_redirects=False,
                auto_decompress=False,
                ssl=pin or True,
            ) as answer:
                said = await _read(answer.content)
                self._caller.heard(answer.headers.get(CHALLENGE))
                if said is None:
                    raise AnswerError(f"{method} {url}: an answer of more than {LONGEST_ANSWER} bytes")
                if answer.status != 200:
                    kind = _RefusedError if answer.status == 401 else AgentError
                    raise kind(f"{method} {url}: HTTP {answer.status}: {_shown(said.decode(errors='replace'))}")
                return said
        except aiohttp.ServerFingerprintMismatch as error:
            self._forget(pin)
            raise AgentError(f"{method} {url}: somebody else answers there: its certificate is another") from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise AgentError(f"{method} {url}: {_shown(str(error)) or type(error).__name__}") from error

    def _headers(self, method: str, path: str, digest: str, pin: aiohttp.Fingerprint | None) -> dict[str, str]:
        certificate = "" if pin is None else pin.fingerprint.hex()
        return {"Authorization": self._caller.authorization(method, path, digest, certificate), "Accept-Encoding": "identity"}


@lru_cache(maxsize=4)
def _encoded(body: str) -> tuple[bytes, str]:
    """``body`` as it is sent, with its digest. All members of a view are told the same, which may have 120 KB."""
    data = body.encode()
    return data, digest_of(data)


async def _read(content: aiohttp.StreamReader) -> bytes | None:
    """All of ``content``; None: it is too long."""
    said = bytearray()
    async for part in content.iter_any():
        said += part
        if len(said) > LONGEST_ANSWER:
            return None
    return bytes(said)


def _shown(text: str) -> str:
    """What fits in a line of a log, and is only text there."""
    text = text[: 2 * SHOWN_CHARACTERS]
    return " ".join(printable(text).split())[:SHOWN_CHARACTERS]


def _first(error: ValidationError) -> str:
    """The first of what is wrong; lists report one thing only, so there are few."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where + ': ' if where else ''}{first['msg']}"
