"""Requests to agents, signed as the operator does, for tests that are the operator."""

import json as text
from http.client import HTTPResponse
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from aiohttp.test_utils import TestClient

from lmj_api.signed import CHALLENGE, digest_of
from lmj_operator.backend.caller import Caller
from lmj_operator.backend.signing_key import SigningKey
from lmj_trainer.agent.gate import Gate

KEY = SigningKey.generate()
POD = "22222222-3333-4444-5555-666666666666"
"""Uid of the pod that a test is about."""


class SignedClient:
    """Of an agent in the same process, whose job has no uid."""

    def __init__(self, client: TestClient[Any, Any], gate: Gate) -> None:
        self.client, self._gate, self._caller = client, gate, Caller(KEY, "", POD)

    def request(self, method: str, path: str, *, data: bytes | str = b"", json: Any = None) -> Any:
        """As the client's own."""
        body = text.dumps(json).encode() if json is not None else data.encode() if isinstance(data, str) else data
        self._caller.heard(self._gate.challenge)
        headers = {"Authorization": self._caller.authorization(method, path, digest_of(body))}
        return self.client.request(method, path, data=body or None, headers=headers)

    def get(self, path: str) -> Any:
        """A GET request."""
        return self.request("GET", path)

    def put(self, path: str, **content: Any) -> Any:
        """A PUT request."""
        return self.request("PUT", path, **content)

    def post(self, path: str, **content: Any) -> Any:
        """A POST request."""
        return self.request("POST", path, **content)


def ask(address: str, caller: Caller, method: str, path: str, body: bytes | None = None, seconds: float = 10.0) -> HTTPResponse:
    """The answer of the agent at ``address`` (``host:port``), once it has told a challenge. Raises HTTPError."""
    while True:
        signed = caller.challenge
        signature = caller.authorization(method, path, digest_of(body or b""))
        headers = {"Authorization": signature, "Content-Type": "application/json"}
        try:
            answer: HTTPResponse = urlopen(Request(f"http://{address}{path}", body, headers, method=method), timeout=seconds)
        except HTTPError as error:
            caller.heard(error.headers[CHALLENGE])
            if error.code != 401 or caller.challenge == signed:
                raise
        else:
            return answer
