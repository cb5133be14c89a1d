"""The relay that an agent keeps, and whom it is told to let in."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from relay_host import RelayHost
from tests.planned import job_spec

from lmj_api.spec import LiveMigrationJob
from lmj_api.view import MOST_RANKS, Member, Resume, View
from lmj_trainer.agent import main
from lmj_trainer.agent.children import Children
from lmj_trainer.agent.kind import worker_kind
from lmj_trainer.agent.launcher import RESTARTS
from lmj_trainer.agent.peers import Peers
from lmj_trainer.agent.relay import RelayEndedError, keep_relay, relay_command
from lmj_trainer.errors import UserError
from lmj_trainer.relay.line import RelayError, RelayLine

LOOPBACK = "127.0.0.1"
DEADLINE = 30.0
WORDS = ["--job", "j", "--rank", "1", "--pod", "p", "--dir", "d", "--uid", "u", "--trust=key"]


def address(number: int) -> str:
    return f"tls://10.0.0.1:9463/{number}#{'Q' * 43}"


def test_sources_are_kept_once_and_the_newest_of_too_many() -> None:
    peers = Peers()
    first = peers.changed
    peers.follow(address(1))
    assert first.is_set()
    second = peers.changed
    peers.follow(address(1))
    assert not second.is_set()
    assert peers.addresses == [address(1)]
    for number in range(2, MOST_RANKS + 2):
        peers.follow(address(number))
    assert (len(peers.addresses), peers.addresses[0], peers.addresses[-1]) == (MOST_RANKS, address(2), address(MOST_RANKS + 1))
    with pytest.raises(ValueError, match="is not the address of a worker behind a relay"):
        peers.follow("uv://10.0.0.1:1")


def test_members_are_those_of_the_newest_view() -> None:
    def view(number: int, *addresses: str) -> View:
        members = [Member(rank=rank, pod="p", incarnation=1, address=text) for rank, text in enumerate(addresses)]
        return View(number=number, members=members, resume=Resume(step=0), reason="r")

    peers = Peers()
    peers.follow(address(9))
    peers.join(view(1, address(1), address(2), "uv://10.0.0.1:3"))
    assert peers.addresses == [address(1), address(2)], "it follows nobody any more"
    peers.follow(address(9))
    changed = peers.changed
    peers.join(view(1, address(1), address(2), "uv://10.0.0.1:3"))  # told once more
    assert not changed.is_set()
    assert peers.addresses == [address(1), address(2), address(9)]
    peers.join(view(2, address(1), address(2)))
    assert changed.is_set()
    assert peers.addresses == [address(1), address(2)]
    changed = peers.changed
    peers.join(view(3, address(1), address(2)))
    assert not changed.is_set()
    peers.join(view(4, address(1), address(3)))
    assert changed.is_set()
    assert peers.addresses == [address(1), address(3)]


def job() -> LiveMigrationJob:
    return LiveMigrationJob.model_validate(
        {"metadata": {"name": "tiny"}, "spec": job_spec(2).model_dump(by_alias=True, mode="json")}
    )


def test_a_worker_behind_a_relay_is_told_where_it_is_and_listens_on_loopback() -> None:
    arguments = main.parser().parse_args([*WORDS, "--address", LOOPBACK, "--relay", "9463"])
    kind = worker_kind(job_spec(2))
    assert main.program(kind, arguments, {}, lambda: None).arguments(3)[-2:] == ["--relay", "d/relay"]
    arguments.interface = "eth9"
    assert main._environment(arguments, job(), kind, None)["TP_SOCKET_IFNAME"] == "lo"  # type: ignore[arg-type]
    with pytest.raises(UserError, match="--relay needs --address"):
        main._environment(main.parser().parse_args([*WORDS, "--relay", "9463"]), job(), kind, None)  # type: ignore[arg-type]


@pytest.mark.integration
class TestKept:
    @pytest.fixture
    async def kept(self, tmp_path: Path) -> AsyncIterator[Any]:
        self.path, self.peers, self.children = tmp_path / "r", Peers(), Children()
        self.warnings: list[str] = []
        command = relay_command(LOOPBACK, 0, self.path, 0.5)
        keeping = asyncio.create_task(keep_relay(command, self.path, self.peers, self.children, self.warnings.append))
        yield self
        keeping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await keeping
        assert self.children._own == {}, "its process is gone"

    async def line(self) -> RelayLine:
        return await asyncio.to_thread(RelayLine, self.path, DEADLINE)

    async def test_it_lets_in_whom_the_operator_names(self, kept: Any) -> None:
        other = RelayHost(0.5)
        try:
            with socket.create_server((LOOPBACK, 0)) as listening:
                listening.setblocking(False)
                line, source = await kept.line(), RelayLine(other.path)
                own = line.publish(listening.getsockname()[1])
                host, _, port = source.reach(own).partition(":")
                with socket.create_connection((host, int(port)), DEADLINE):
                    accepted = asyncio.create_task(asyncio.get_running_loop().sock_accept(listening))
                    done, _ = await asyncio.wait({accepted}, timeout=0.5)
                    assert not done
                    kept.peers.follow(source.publish(9))
                    connection, _ = await asyncio.wait_for(accepted, DEADLINE)
                    connection.close()
        finally:
            other.close()

    async def test_another_takes_the_place_of_one_that_ends(self, kept: Any) -> None:
        before = (await kept.line()).publish(41234)
        kept.peers.follow(before)
        (pid,) = kept.children._own
        os.kill(pid, signal.SIGKILL)
        async with asyncio.timeout(DEADLINE):
            while not kept.warnings:  # noqa: ASYNC110 - what is waited for tells nobody
                await asyncio.sleep(0.01)
        assert kept.warnings == ["the relay ended with code -9: another is started, and the worker with it"]
        async with asyncio.timeout(DEADLINE):
            while True:
                try:
                    assert (await kept.line()).publish(41234) != before
                    break
                except RelayError:  # the one before ends
                    await asyncio.sleep(0.01)

    async def test_one_that_cannot_live_ends_the_agent(self, tmp_path: Path) -> None:
        command, warnings = [sys.executable, "-c", "raise SystemExit(3)"], list[str]()
        with pytest.raises(RelayEndedError, match=rf"ended {RESTARTS + 1} times, at last with code 3"):
            await keep_relay(command, tmp_path / "r", Peers(), Children(), warnings.append)
        assert len(warnings) == RESTARTS
