"""Whose pod a token is: by a key of the API server, for the operator, and of this pod."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from lmj_api.pod_token import AUDIENCE, LONGEST
from lmj_operator.backend.channel import ProofError
from lmj_operator.backend.kubernetes.api import ApiError
from lmj_operator.backend.kubernetes.pod_tokens import AGAIN_SECONDS, PodTokens

POD = "22222222-3333-4444-5555-666666666666"
RSA, OTHER = (rsa.generate_private_key(public_exponent=65537, key_size=2048) for _ in range(2))
ELLIPTIC = ec.generate_private_key(ec.SECP256R1())


def public(key: Any, name: str) -> dict[str, Any]:
    algorithm = RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else ECAlgorithm
    return {**json.loads(algorithm.to_jwk(key.public_key())), "kid": name, "use": "sig"}


class Server:
    """What says by which keys it signs."""

    def __init__(self) -> None:
        self.keys: list[dict[str, Any]] = [
            public(RSA, "one"),
            {"kty": "oct", "kid": "both", "k": "c2VjcmV0"},
            {"kty": "RSA", "kid": "x"},
        ]
        self.asked = 0
        self.answers = asyncio.Event()
        self.answers.set()
        self.error: ApiError | None = None

    async def token_keys(self) -> dict[str, Any]:
        self.asked += 1
        await self.answers.wait()
        if self.error is not None:
            raise self.error
        return {"keys": self.keys}


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def now() -> list[float]:
    return [100.0]


@pytest.fixture
def tokens(server: Server, now: list[float]) -> PodTokens:
    return PodTokens(server, lambda: now[0])  # type: ignore[arg-type]


def token(key: Any = RSA, name: str = "one", algorithm: str = "RS256", **changed: Any) -> str:
    claims = {"aud": [AUDIENCE], "exp": 1, "nbf": 1 << 40, "iat": 1 << 40, "kubernetes.io": {"pod": {"name": "p", "uid": POD}}}
    return jwt.encode(claims | changed, key, algorithm=algorithm, headers={"kid": name})


async def test_a_token_of_the_pod_is_one_whatever_the_time_is(tokens: PodTokens, server: Server) -> None:
    for _ in range(3):
        await tokens.check(POD, token())
    assert server.asked == 1


async def test_a_server_signs_with_elliptic_curves_too(tokens: PodTokens, server: Server) -> None:
    server.keys.append(public(ELLIPTIC, "curve"))
    await tokens.check(POD, token(ELLIPTIC, "curve", "ES256"))


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (lambda: token(**{"kubernetes.io": {"pod": {"uid": "another"}}}), "of another pod"),
        (lambda: token(**{"kubernetes.io": {"serviceaccount": {"uid": POD}}}), "of another pod"),
        (lambda: token(**{"kubernetes.io": {"pod": POD}}), "of another pod"),
        (lambda: token(**{"kubernetes.io": [POD]}), "of another pod"),
        (lambda: token(aud=["https://kubernetes.default.svc"]), "has not signed its token for"),
        (lambda: token(OTHER), "has not signed its token for"),
        (lambda: token(OTHER, "of my own"), "does not name: of my own"),
        (lambda: token("secret" * 8, "both", "HS256"), "does not name: both"),
        (lambda: token("secret" * 8, "one", "HS256"), "has not signed its token for"),
        (lambda: token(None, "one", "none"), "has not signed its token for"),
        (lambda: token(name="\x1b[2J" + "x" * 999), "does not name"),
        (lambda: "no token", "has not signed its token for"),
        (lambda: "", "has not signed its token for"),
        (lambda: "é.é.é", "has not signed its token for"),
        (lambda: "x" * (LONGEST + 1), "characters"),
    ],
)
async def test_what_is_no_token_of_the_pod(tokens: PodTokens, made: Callable[[], str], why: str) -> None:
    with pytest.raises(ProofError, match=why) as raised:
        await tokens.check(POD, made())
    assert str(raised.value).isprintable()
    assert len(str(raised.value)) < 250


async def test_a_key_that_comes_later_is_asked_for_and_not_too_often(tokens: PodTokens, server: Server, now: list[float]) -> None:
    for number in range(20):
        with pytest.raises(ProofError):
            await tokens.check(POD, token(OTHER, f"made up {number}"))
    assert server.asked == 1
    server.keys = [public(OTHER, "two")]
    now[0] += AGAIN_SECONDS
    await tokens.check(POD, token(OTHER, "two"))
    assert server.asked == 2
    with pytest.raises(ProofError):
        await tokens.check(POD, token())  # it is not one of the server's any more


async def test_a_server_that_does_not_answer_is_asked_again(tokens: PodTokens, server: Server) -> None:
    server.error = ApiError("get", "/openid/v1/jwks", 0, "Unreachable", "")
    with pytest.raises(ProofError, match="does not say by which keys it signs tokens"):
        await tokens.check(POD, token())
    server.error = None
    await tokens.check(POD, token())


async def test_a_server_that_refuses_is_not_asked_at_once(tokens: PodTokens, server: Server, now: list[float]) -> None:
    server.error = ApiError("get", "/openid/v1/jwks", 403, "Forbidden", "")
    for _ in range(2):
        with pytest.raises(ProofError):
            await tokens.check(POD, token())
    assert server.asked == 1
    now[0] += AGAIN_SECONDS
    server.error = None
    await tokens.check(POD, token())


async def test_a_server_that_answers_late_is_asked_once_by_all_who_wait(tokens: PodTokens, server: Server) -> None:
    server.answers.clear()
    for _ in range(2):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(tokens.check(POD, token()), 0.01)
    waiting = asyncio.gather(*(tokens.check(POD, token()) for _ in range(3)))
    await asyncio.sleep(0)
    server.answers.set()
    await waiting
    assert server.asked == 1
