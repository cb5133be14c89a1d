"""Whose pod a token is. The API server signs it for the kubelet, and publishes the keys by which everybody can see that."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

import jwt
from jwt.types import Options

from lmj_api.bounds import printable
from lmj_api.pod_token import AUDIENCE, LONGEST
from lmj_operator.backend.channel import ProofError
from lmj_operator.backend.kubernetes.api import Api, ApiError

ALGORITHMS = ("RS256", "ES256", "ES384", "ES512")
"""By which Kubernetes signs. None of them has a key that both sides know."""
KINDS = ("RSA", "EC")
NO_TIMES: Options = {"verify_exp": False, "verify_nbf": False, "verify_iat": False}
"""Clocks of nodes and servers differ, and what counts is that only this pod was ever given the token."""
AGAIN_SECONDS = 10.0
"""The keys are asked for again after so long at least: anybody can name one that is not there."""
SHOWN = 100


class PodTokens:
    """Compares tokens with the pods that they are to be of."""

    def __init__(self, api: Api, clock: Callable[[], float] = time.monotonic) -> None:
        self._api, self._clock = api, clock
        self._keys: dict[str, jwt.PyJWK] = {}
        self._asked: float | None = None
        self._asking: asyncio.Task[None] | None = None
        self._problem: str | None = None
        """Why they are not known."""

    async def check(self, pod: str, token: str) -> None:
        """Return when ``token`` is of the pod with uid ``pod``. Raises ProofError."""
        try:
            if len(token) > LONGEST:
                raise ProofError(f"its token has {len(token)} characters, and {LONGEST} are the most")
            key = await self._key(str(jwt.get_unverified_header(token).get("kid", "")))
            claims = jwt.decode(token, key, algorithms=ALGORITHMS, audience=AUDIENCE, options=NO_TIMES)
        except (jwt.PyJWTError, ValueError, RecursionError) as error:
            raise ProofError(f"the API server has not signed its token for {AUDIENCE}: {_shown(str(error))}") from None
        of = claims.get("kubernetes.io")
        named = (of.get("pod") if isinstance(of, dict) else None) or {}
        if not isinstance(named, dict) or named.get("uid") != pod:
            raise ProofError("its token is of another pod")

    async def _key(self, name: str) -> jwt.PyJWK:
        """Raises ProofError: there is none of that name."""
        if name not in self._keys and (self._asked is None or self._clock() - self._asked >= AGAIN_SECONDS):
            if self._asking is None:
                self._asking = asyncio.create_task(self._ask())
            # Who asks has little time, and the next one is to find what came of it.
            await asyncio.wait([self._asking])
        try:
            return self._keys[name]
        except KeyError:
            if self._problem is not None:
                raise ProofError(f"the API server does not say by which keys it signs tokens: {self._problem}") from None
            raise ProofError(f"its token is signed with a key that the API server does not name: {_shown(name)}") from None

    async def _ask(self) -> None:
        try:
            self._keys = _keys(await self._api.token_keys())
            self._problem, self._asked = None, self._clock()
        except ApiError as error:
            self._problem, self._asked = str(error), None if error.unknown else self._clock()
        finally:
            self._asking = None


def _keys(found: dict[str, Any]) -> dict[str, jwt.PyJWK]:
    """By their names, without those that are for something else."""
    keys = {}
    for each in found.get("keys") or ():
        if each.get("kty") in KINDS and each.get("kid"):
            with contextlib.suppress(jwt.PyJWTError):
                keys[each["kid"]] = jwt.PyJWK.from_dict(each)
    return keys


def _shown(text: str) -> str:
    return printable(text)[:SHOWN]
