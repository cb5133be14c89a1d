"""The contract of a transport, run against every adapter. Processes talk over loopback."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from cluster import Unavailable, packages
from relay_host import RelayHost

from lmj_trainer.relay.address import Address
from lmj_trainer.relay.line import RelayLine
from lmj_trainer.transport.inbox import ViewBrokenError
from lmj_trainer.transport.packing import Packed

pytestmark = pytest.mark.integration

_spec = importlib.util.spec_from_file_location("engine_peers", Path(__file__).with_name("peers.py"))
peers = sys.modules["engine_peers"] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(peers)

SILENCE = 0.5  # seconds: a machine that is silent for so long is lost
SETTLES = 5.0  # seconds for what ends a moment later
LOST = 20.0  # seconds within which a death must be told, far more than it takes


@pytest.fixture(scope="module")
def nursery() -> Iterator[Any]:
    result = peers.Nursery()
    yield result
    result.close()


@pytest.fixture(params=["memory", "tensorpipe", "relayed"])
def peer(request: pytest.FixtureRequest) -> Iterator[Callable[[], Any]]:
    """Makes peers of one network."""
    if request.param == "memory":
        network: dict[str, Any] = {}
        yield lambda: peers.MemoryPeer(network)
        return
    made = []
    nursery = request.getfixturevalue("nursery")
    relays, lines, addresses = [], [], []

    def make(timeout: float = 60.0) -> Any:
        if request.param == "relayed":
            relays.append(RelayHost(SILENCE))
        made.append(peers.ProcessPeer(nursery, timeout, relay=relays[-1].path if relays else None))
        if relays:  # as agents do, because the operator says so
            addresses.append(made[-1].address())
            lines.append(RelayLine(relays[-1].path))
            for line in lines:
                line.admit(addresses)
        return made[-1]

    yield make
    for relay in relays:
        relay.close()
    for each in made:
        with contextlib.suppress(ProcessLookupError):
            os.kill(each.pid, signal.SIGKILL)


@pytest.fixture
def process_peer(nursery: Any) -> Iterator[Callable[..., Any]]:
    made = []

    def make(*arguments: Any) -> Any:
        made.append(peers.ProcessPeer(nursery, *arguments))
        return made[-1]

    yield make
    for each in made:
        with contextlib.suppress(ProcessLookupError):
            os.kill(each.pid, signal.SIGKILL)


def form(view: int, *members: Any) -> None:
    """All ``members``, in order of rank, join ``view``."""
    addresses = {rank: member.address() for rank, member in enumerate(members)}
    for rank, member in enumerate(members):
        member.join(view, rank, {r: a for r, a in addresses.items() if r != rank})


def broken(member: Any, sender: int) -> str:
    """Why the view that ``member`` waits in breaks."""
    started = time.monotonic()
    with pytest.raises(ViewBrokenError) as caught:
        member.take(sender, peers.DEADLINE, step=999)
    assert time.monotonic() - started < LOST
    return str(caught.value)


def test_what_is_sent_arrives(peer) -> None:
    a, b = peer(), peer()
    form(1, a, b)
    a.send(1, {"losses": [1.5, None], "name": "x"})
    b.send(0, 7)
    assert b.take(0) == {"losses": [1.5, None], "name": "x"}
    assert a.take(1) == 7


def test_messages_are_taken_by_name_not_by_order(peer) -> None:
    a, b = peer(), peer()
    form(1, a, b)
    for step, index in ((1, 0), (0, 2), (0, 1)):
        a.send(1, [step, index], step=step, index=index)
    a.flush()
    assert b.take(0, step=0, index=1) == [0, 1]
    assert b.take(0, step=0, index=2) == [0, 2]
    assert b.take(0, step=1, index=0) == [1, 0]


def test_flushed_is_taken_by_the_other_side(peer) -> None:
    a, b = peer(), peer()
    form(1, a, b)
    for index in range(50):
        a.send(1, index, index=index)
    a.flush()
    assert all(b.waiting(0, 0, index) for index in range(50))


def test_a_large_tensor_arrives_whole(peer) -> None:
    a, b = peer(), peer()
    form(1, a, b)
    a.send_large(1, 16 << 20, 3)
    assert b.take_large(0, 16 << 20, 3)


def test_packed_values_arrive_to_the_bit(peer) -> None:
    a, b = peer(), peer()
    form(1, a, b)
    values = peers.large(5000, 3)
    a.send(1, Packed.of(values))
    assert torch.equal(b.take(0).unpack(5000), values)


def test_messages_of_a_view_that_the_other_has_yet_to_join_wait(peer) -> None:
    a, b = peer(), peer()
    form(1, a, b)
    a.join(2, 0, {1: b.address()})
    a.send(1, "two")
    a.flush()
    assert not b.waiting(0)
    b.join(2, 1, {0: a.address()})
    assert b.take(0) == "two"


def test_messages_of_an_older_view_are_refused(peer) -> None:
    a, b = peer(), peer()
    form(1, a, b)
    b.join(2, 1, {0: a.address()})
    a.send(1, "late")
    a.flush()
    assert not b.waiting(0)
    a.join(2, 0, {1: b.address()})
    a.send(1, "in time")
    assert b.take(0) == "in time"


def test_a_dead_peer_breaks_the_view_with_its_rank(peer) -> None:
    a, b = peer(), peer()
    form(1, a, b)
    b.kill()
    a.send(1, 1)
    assert "rank 1 " in broken(a, 1)
    a.flush(LOST)
    a.send(1, 2)  # nothing is raised, also later


def test_what_is_late_for_a_rank_that_the_next_view_lacks_is_for_nobody(peer) -> None:
    """As the end of a checkpoint that was begun before a replica was lost."""
    a, b, c = peer(), peer(), peer()
    form(1, a, b, c)
    form(2, a, b)
    a.send(2, "late", view=1)
    a.send(1, "in time")
    assert b.take(0) == "in time"
    a.send(2, "wrong", view=2)
    assert "rank 2 (not in the view)" in broken(a, 1)


def test_a_replacement_joins_and_the_survivors_go_on(peer) -> None:
    a, b, c = peer(), peer(), peer()
    form(1, a, b, c)
    b.kill()
    a.send(1, 1)
    assert "rank 1 " in broken(a, 1)
    # The other survivor has not sent anything and knows nothing: the next view is news enough.
    fresh = peer()
    form(2, a, fresh, c)
    a.send(1, "to the new")
    fresh.send(0, "from the new")
    c.send(1, "from the other")
    a.send(2, "as before")
    assert fresh.take(0) == "to the new"
    assert a.take(1) == "from the new"
    assert fresh.take(2) == "from the other"
    assert c.take(0) == "as before"


def test_a_peer_that_left_and_came_back_is_joined_anew(peer) -> None:
    a, b, c = peer(), peer(), peer()
    form(1, a, b)
    a.send(1, "first")
    assert b.take(0) == "first"
    for view in range(2, 12, 2):
        form(view, a, c)
        form(view + 1, a, b)
        for index in range(5):
            a.send(1, view, index=index)
            b.send(0, view, index=index)
        for index in range(5):
            assert b.take(0, index=index) == view
            assert a.take(1, index=index) == view


def settled(sizes: list[tuple[int, ...]], *members: Any) -> tuple[int, ...]:
    """Their threads and descriptors. A link's heartbeats may end a moment later than it: that is waited for, and a leak does not end."""
    early, deadline = [max(size) for size in zip(*sizes[:10], strict=True)], time.monotonic() + SETTLES
    while True:
        now = tuple(count for member in members for count in member.resources())
        if len(sizes) < 10 or all(map(lambda n, most: n <= most + 3, now, early)) or time.monotonic() > deadline:
            return now
        time.sleep(0.05)


def assert_steady(sizes: list[tuple[int, ...]]) -> None:
    """Threads and descriptors do not get more. A link has three, and may end a moment later."""
    early, late = ([max(size) for size in zip(*part, strict=True)] for part in (sizes[:10], sizes[-10:]))
    assert all(end <= begin + 3 for end, begin in zip(late, early, strict=True)), (early, late)


def test_many_replacements_leave_nothing_behind(peer) -> None:
    a, steady = peer(), peer()
    sizes = []
    for view in range(1, 26):
        b = peer()
        form(view, a, b, steady)
        a.send(1, view)
        b.send(0, view)
        steady.send(1, view)
        # These two are asked whether they are there now and then: their links are made from the first.
        a.send(2, view)
        steady.send(0, view)
        assert b.take(0) == view
        assert b.take(2) == view
        assert a.take(1) == view
        assert a.take(2) == view
        assert steady.take(0) == view
        b.kill()
        # One survivor learns of the death by a failed call, the other by the next view.
        a.send(1, view, index=1)
        assert "rank 1 " in broken(a, 1)
        sizes.append(settled(sizes, a, steady))
    assert_steady(sizes)


def test_many_streams_to_a_follower_that_lives_leave_nothing_behind(peer) -> None:
    a, b = peer(), peer()
    sizes = []
    for _ in range(20):
        assert a.told(b.address()) == "the stream is over"
        sizes.append(settled(sizes, a, b))
    assert_steady(sizes)


def test_a_stopped_peer_is_noticed_by_time_out(process_peer) -> None:
    a, b = process_peer(1.0), process_peer(1.0)
    form(1, a, b)
    a.send(1, 1)
    assert b.take(0) == 1
    b.stop()
    a.send(1, 2, index=1)
    assert "rank 1 " in broken(a, 1)


@pytest.fixture
def two_machines() -> Iterator[tuple[Path, Path, Callable[[], object]]]:
    """Two network namespaces, and what cuts the power of the second: nobody sends a reset."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("network namespaces are made by root on Linux")
    try:
        packages.ensure(["ip"])
    except Unavailable as reason:
        pytest.skip(f"network namespaces are made with ip: {reason}")

    def ip(*words: str) -> bytes:
        return subprocess.run(["ip", *words], check=True, timeout=peers.DEADLINE, capture_output=True).stdout

    names = [f"lmj-silence-{os.getpid()}-{k}" for k in range(2)]
    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", "eth0", "netns", names[0], "type", "veth", "peer", "name", "eth0", "netns", names[1])
        for k, name in enumerate(names):
            ip("-n", name, "addr", "add", f"10.255.254.{k + 1}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")
        deadline = time.monotonic() + peers.DEADLINE
        while not all(b"state UP" in ip("-n", name, "link", "show", "eth0") for name in names):
            assert time.monotonic() < deadline, "the link does not come up"
        first, second = (Path("/run/netns", name) for name in names)
        yield first, second, lambda: ip("-n", second.name, "link", "set", "eth0", "down")
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, timeout=peers.DEADLINE, capture_output=True)


def test_a_peer_without_power_is_noticed_by_its_silence(two_machines, process_peer) -> None:
    first, second, cut = two_machines
    pairs = [(process_peer(600.0, SILENCE, first), process_peer(600.0, SILENCE, second)) for _ in range(3)]
    for a, b in pairs:
        form(1, a, b)
        a.send(1, 1)
        b.send(0, 2)
        assert (b.take(0), a.take(1)) == (1, 2)
    waits_for_an_answer, has_sent_nothing, has_heartbeats = (a for a, _ in pairs)
    has_heartbeats.settled(1)
    cut()
    waits_for_an_answer.send(1, 2, index=1)
    for a in (waits_for_an_answer, has_sent_nothing, has_heartbeats):
        assert "rank 1 " in broken(a, 1)


def test_a_peer_without_power_is_noticed_though_its_link_is_idle(two_machines, process_peer) -> None:
    """By the heartbeats, long before a call to it would fail; the next view has a new link to it."""
    first, second, cut = two_machines
    a, b = process_peer(600.0, SILENCE, first), process_peer(600.0, SILENCE, second)
    form(1, a, b)
    a.settled(1)
    cut()
    assert broken(a, 1).endswith("is lost: its machine is silent")
    form(2, a)
    a.join(3, 0, {1: b.address()})
    assert "rank 1 " in broken(a, 1)


@pytest.fixture
def behind_relays(two_machines, nursery) -> Iterator[tuple[Any, Any]]:
    """A peer on each machine, behind a relay each."""
    places = list(zip(two_machines, ("10.255.254.1", "10.255.254.2"), strict=False))
    relays = [RelayHost(SILENCE, host, namespace) for namespace, host in places]
    made = [
        peers.ProcessPeer(nursery, 600.0, SILENCE, namespace, relay.path)
        for (namespace, _), relay in zip(places, relays, strict=True)
    ]
    yield made[0], made[1]
    for each in made:
        os.kill(each.pid, signal.SIGKILL)
    for relay in relays:
        relay.close()


@pytest.mark.parametrize("settled", [True, False])
def test_a_peer_without_power_is_noticed_through_relays(behind_relays, two_machines, settled) -> None:
    """By its heartbeats, which go by no relay; before there are any, by the relay's connections."""
    a, b = behind_relays
    form(1, a, b)
    a.send(1, 1)
    b.send(0, 2)
    assert (b.take(0), a.take(1)) == (1, 2)
    if settled:
        a.settled(1)
    two_machines[2]()
    begin = time.monotonic()
    reason = broken(a, 1)
    print(f"noticed after {time.monotonic() - begin:.3f} s: {reason}")
    assert "rank 1 (tls://10.255.254.2:" in reason


def test_nobody_reaches_a_worker_behind_a_relay_but_through_it(behind_relays) -> None:
    """Its port is open on loopback alone, and so is the one where it takes calls."""
    for peer in behind_relays:
        inner = Address.of(peer.address()).worker
        open_at = [line.split()[1] for line in Path(f"/proc/{peer.pid}/net/tcp").read_text().splitlines() if " 0A " in line]
        assert f"0100007F:{inner:04X}" in open_at
        assert not any(place.endswith(f":{inner:04X}") and not place.startswith("0100007F") for place in open_at)


def test_a_peer_that_is_behind_no_relay_is_lost_to_one_that_is(nursery) -> None:
    relay = RelayHost(SILENCE)
    a = peers.ProcessPeer(nursery, 60.0, relay=relay.path)
    try:
        a.join(1, 0, {1: "uv://127.0.0.1:1"})
        a.send(1, 1)
        assert "rank 1 (uv://127.0.0.1:1" in broken(a, 1)
    finally:
        a.kill()
        relay.close()


def test_rpc_behind_a_relay_listens_where_nobody_else_reaches_it() -> None:
    from lmj_trainer.transport.tensorpipe import _loopback_port

    assert _loopback_port("uv://127.0.0.1:41234") == 41234
    with pytest.raises(RuntimeError, match="it is to listen on the loopback interface"):
        _loopback_port("uv://10.0.0.1:41234")


def test_a_stopped_process_is_lost_when_a_call_has_timed_out(process_peer) -> None:
    """Its kernel acknowledges heartbeats for ever, and nobody had sent it anything."""
    a, b = process_peer(2.0, SILENCE), process_peer(2.0, SILENCE)
    form(1, a, b)
    a.settled(1)
    b.stop()
    assert "rank 1 " in broken(a, 1)
    b.kill()


def test_heartbeats_that_end_after_the_link_keep_nobody_busy(process_peer) -> None:
    a, b = process_peer(600.0, SILENCE), process_peer(600.0, SILENCE)
    form(1, a, b)
    a.settled(1)
    a.unlink(b.address())
    b.kill()
    assert "rank 1 " in broken(a, 1)
    assert a.spent(1.0) < 0.5


def test_peers_with_heartbeats_are_not_called_for_nothing(process_peer) -> None:
    """A call costs both ends a hundred times as much."""
    a, b = process_peer(600.0, SILENCE), process_peer(600.0, SILENCE)
    form(1, a, b)
    a.settled(1)
    assert a.calls(4 * SILENCE) == 0
    b.kill()
    assert "rank 1 " in broken(a, 1)


def test_a_stopped_process_is_not_silent(process_peer) -> None:
    """Its kernel answers for it: a busy or starved peer is not lost."""
    a, b = process_peer(600.0, SILENCE), process_peer(600.0, SILENCE)
    form(1, a, b)
    a.send(1, 1)
    assert b.take(0) == 1
    b.stop()
    a.send(1, 2, index=1)
    with pytest.raises(ViewBrokenError, match=r"no activation 0 of step 999 from rank 1 within 2 s"):
        a.take(1, 4 * SILENCE, step=999)
    os.kill(b.pid, signal.SIGCONT)
    assert b.take(0, index=1) == 2


def test_views_only_grow(peer) -> None:
    a, b = peer(), peer()
    form(3, a, b)
    with pytest.raises(ValueError, match="view 3 is not newer than 3"):
        a.join(3, 0, {1: b.address()})


def test_one_to_a_process() -> None:
    """torch keeps the agent in a global."""
    import lmj_trainer.transport.tensorpipe as module

    kept, module._inbox = module._inbox, module.Inbox()
    try:
        with pytest.raises(RuntimeError, match="already has a TensorPipeTransport"):
            module.TensorPipeTransport()
    finally:
        module._inbox = kept
