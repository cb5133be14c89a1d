"""The operator's own HTTP."""

import asyncio
from collections.abc import Iterable

import pytest

from lmj_operator.backend.rounds import ROUNDS
from lmj_operator.controller.http import listen
from lmj_operator.controller.metrics import Metrics

pytestmark = pytest.mark.integration


class Written(asyncio.Transport):
    """What was sent is there, and nowhere else."""

    def __init__(self) -> None:
        super().__init__()
        self.data = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.data += data

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.data += b"".join(list_of_data)

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        """Nothing is open."""


async def test_a_probe_is_answered_before_others_have_the_slices_of_the_round_in_which_it_came() -> None:
    runner = await listen("127.0.0.1", 0, Metrics(list), list)
    try:
        assert runner.server is not None
        connection, sent = runner.server(), Written()
        connection.connection_made(sent)
        for _ in range(10):
            await asyncio.sleep(0)
        connection.data_received(b"GET /healthz HTTP/1.1\r\nHost: operator\r\n\r\n")
        rounds = 0
        while not sent.data:
            await asyncio.sleep(0)
            rounds += 1
        assert sent.data.startswith(b"HTTP/1.1 200 ")
        assert rounds <= ROUNDS - 2, "one more is full of slices when it comes, and in one it is read"
        connection.connection_lost(None)
    finally:
        await runner.cleanup()
