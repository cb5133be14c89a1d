"""Two relays with real sockets: what goes through, who gets in, and what is noticed."""

import asyncio
import hashlib
import random
import socket
import ssl
import struct
import sys
from dataclasses import replace

import pytest

from lmj_trainer.relay import admission, dial, entrance
from lmj_trainer.relay.channel import EARLY_RAW_BYTES, Channel
from lmj_trainer.relay.connection import CHUNK_BYTES, HIGH_BYTES, Room
from lmj_trainer.relay.hello import HELLO_BYTES, NONCE_BYTES, WELCOME, Hello
from lmj_trainer.relay.identity import Identity
from lmj_trainer.relay.relay import Relay
from lmj_trainer.relay.tls import Tls

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(sys.platform != "linux", reason="a relay runs in pods"),
]

SOON = 1.0
"""Seconds within which an end is told, far more than it takes."""
USER_TIMEOUT = 18


async def stranger(pair, identity: Identity | None = None) -> Channel:
    """A TLS connection to the relay of the worker, that says nothing yet."""
    identity = identity or Identity()
    host, port = pair.there.address.split(":")
    _, channel = await asyncio.get_running_loop().create_connection(
        lambda: Channel(Room(), Tls(identity.client, server=False)), host, int(port)
    )
    await channel.shaken()
    return channel


def says_hello(pair, identity: Identity, nonce: bytes, worker: int | None = None) -> bytes:
    return Hello.made(identity, pair.there.identity.key, nonce, pair.worker.port if worker is None else worker).to_bytes()


async def test_a_pipe_goes_both_ways_and_its_further_connections_too(pair, tools) -> None:
    reader, writer, named = await pair.greeted()
    assert named != pair.worker.port
    writer.write(b"over")
    assert await tools.within(reader.readexactly(4)) == b"over"
    # As TensorPipe goes on: what is said there first is passed on as it is.
    reader, writer = await asyncio.open_connection(tools.LOOPBACK, named)
    writer.write(b"again")
    assert await tools.within(reader.readexactly(len(pair.worker.greeting))) == pair.worker.greeting
    writer.close()


async def test_what_is_small_waits_for_no_acknowledgement(pair, tools) -> None:
    """A loop does so for sockets that it makes, and that of who connects is made before."""
    await pair.greeted()
    ends = [channel.opened for relay in (pair.here, pair.there) for channel in relay._channels]
    assert len(ends) == 2
    assert all(end.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for end in ends)


async def test_large_data_arrives_whole_both_ways_at_once(pair, tools) -> None:
    there = random.Random(1).randbytes(16 << 20)
    back = random.Random(2).randbytes(16 << 20)
    heard: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(5)
        writer.write(pair.worker.greeting + back)
        heard.set_result(hashlib.sha256(await reader.readexactly(len(there))).hexdigest())

    pair.worker.serve = serve
    reader, writer, _ = await pair.greeted()
    writer.write(there)
    assert hashlib.sha256(await tools.within(reader.readexactly(len(back)))).hexdigest() == hashlib.sha256(back).hexdigest()
    assert await tools.within(heard) == hashlib.sha256(there).hexdigest()


async def test_who_does_not_read_holds_up_the_other_and_no_more(pair, tools) -> None:
    gate = asyncio.Event()
    size = 64 << 20

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(5)
        writer.write(pair.worker.greeting)
        writer.transport.pause_reading()
        await gate.wait()
        writer.transport.resume_reading()
        while size - 5 > sum(map(len, parts)):
            parts.append(await reader.read(1 << 20))
        writer.write(b"all")

    parts: list[bytes] = []
    pair.worker.serve = serve
    reader, writer, _ = await pair.greeted()
    writer.write(bytes(size - 5))
    waiting = -1
    while waiting != (waiting := writer.transport.get_write_buffer_size()):  # noqa: ASYNC110 - the kernel tells nobody
        await asyncio.sleep(0.2)
    assert waiting > size // 4, "the kernel's buffers are small beside it"
    held = [c.transport.get_write_buffer_size() for relay in (pair.here, pair.there) for c in relay._channels]
    held += [c._other.transport.get_write_buffer_size() for relay in (pair.here, pair.there) for c in relay._channels]
    assert max(held) <= HIGH_BYTES + 2 * CHUNK_BYTES
    gate.set()
    assert await tools.within(reader.readexactly(3), 60.0) == b"all"


@pytest.mark.parametrize("reset", [False, True])
async def test_a_worker_s_end_is_told_at_once_after_all_that_it_sent(pair, tools, reset) -> None:
    last = random.Random(3).randbytes(3 << 20)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(5)
        writer.write(pair.worker.greeting + last)
        await writer.drain()
        while writer.transport.get_write_buffer_size():  # noqa: ASYNC110 - the kernel tells nobody
            await asyncio.sleep(0.01)
        if reset:
            await asyncio.sleep(0.2)  # a reset drops what the kernel has not sent yet
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    pair.worker.serve = serve
    reader, _, _ = await pair.greeted()
    assert await tools.end_of(reader, SOON) == last


async def test_the_end_of_who_connected_is_told_at_once(pair, tools) -> None:
    _, writer, _ = await pair.greeted()
    writer.transport.abort()
    await tools.within(pair.worker.ended.wait(), SOON)


async def test_the_death_of_a_relay_is_told_at_once(pair, tools) -> None:
    reader, _, _ = await pair.greeted()
    for channel in pair.there._channels:
        channel.abort()
    assert await tools.end_of(reader, SOON) == b""
    await tools.within(pair.worker.ended.wait(), SOON)


async def test_a_relay_with_another_key_is_not_talked_to(pair, tools) -> None:
    reader, writer = await pair.connect(replace(pair.address, key=Identity().key))
    writer.write(b"hello")
    assert await tools.end_of(reader, SOON) == b""
    assert pair.worker.connections == []


async def test_a_pod_that_is_gone_is_told_at_once(pair, tools) -> None:
    with socket.create_server((tools.LOOPBACK, 0)) as free:
        port = free.getsockname()[1]
    reader, _ = await pair.connect(replace(pair.address, port=port))
    assert await tools.end_of(reader, SOON) == b""


async def test_a_machine_that_does_not_answer_is_given_up(pair, tools, monkeypatch) -> None:
    monkeypatch.setattr(dial, "CONNECT_SECONDS", 0.2)
    with socket.socket() as full:
        full.bind((tools.LOOPBACK, 0))
        full.listen(0)
        port = full.getsockname()[1]
        others = [socket.socket() for _ in range(4)]
        for other in others:  # the queue is full: the next first packet is dropped
            other.setblocking(False)
            other.connect_ex((tools.LOOPBACK, port))
        reader, _ = await pair.connect(replace(pair.address, port=port))
        assert await tools.end_of(reader, 2 * SOON) == b""
        for other in others:
            other.close()


async def test_a_key_that_no_view_names_waits_and_is_refused(pair, tools, monkeypatch) -> None:
    monkeypatch.setattr(entrance, "HOLD_SECONDS", 0.3)
    pair.there.admit("worker", [])
    reader, writer = await pair.connect()
    writer.write(b"hello")
    assert await tools.end_of(reader) == b""
    assert pair.worker.connections == []


async def test_who_is_named_a_moment_later_gets_in(pair, tools) -> None:
    pair.there.admit("worker", [])
    greeted = asyncio.create_task(pair.greeted())
    await asyncio.sleep(0.2)
    assert pair.worker.connections == []
    pair.there.admit("worker", [str(replace(pair.address, key=pair.here.identity.key))])
    await tools.within(greeted)
    assert pair.worker.connections != []


async def test_who_waits_and_goes_makes_room(pair, tools) -> None:
    identity = Identity()
    channel = await stranger(pair, identity)
    channel.send(says_hello(pair, identity, await channel.exactly(NONCE_BYTES)))
    await asyncio.sleep(0.1)
    assert pair.there._entrance._waiting.total() == 1
    channel.abort()
    async with asyncio.timeout(SOON):
        while pair.there._entrance._waiting.total():  # noqa: ASYNC110 - what is waited for tells nobody
            await asyncio.sleep(0.01)


async def test_a_port_that_no_worker_published_is_not_reached(pair, tools) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        secret.set_result(None)

    secret: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    server = await asyncio.start_server(serve, tools.LOOPBACK, 0)
    reader, writer = await pair.connect(replace(pair.address, worker=server.sockets[0].getsockname()[1]))
    writer.write(b"hello")
    assert await tools.end_of(reader, SOON) == b""
    assert not secret.done()
    server.close()


async def test_a_worker_that_is_gone_is_not_reached(pair, tools) -> None:
    pair.there.publish("worker", 1)
    reader, _ = await pair.connect()
    assert await tools.end_of(reader, SOON) == b""
    assert pair.worker.connections == []


@pytest.mark.parametrize(
    "said",
    [b"", b"GET / HTTP/1.1\r\n\r\n", bytes(4096), b"\x80\x04\x95cos\nsystem\n(S'true'\ntR.", random.Random(4).randbytes(100_000)],
)
async def test_garbage_gets_nothing(pair, tools, monkeypatch, said) -> None:
    monkeypatch.setattr(entrance, "HELLO_SECONDS", 0.5)
    host, port = pair.there.address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(said)
    answer = await tools.end_of(reader)
    assert len(answer) < 16, "an alert at most"
    writer.close()
    assert pair.worker.connections == []
    await pair.greeted()  # the others do not notice


async def test_a_handshake_that_does_not_end_takes_next_to_no_memory(pair, tools) -> None:
    host, port = pair.there.address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    # A first word of 64 KB is announced, and all of it would be kept until the rest comes.
    record = b"\x16\x03\x01\x40\x00"
    writer.write(record + b"\x01\x01\x00\x00" + bytes(16_380) + record + bytes(16_384))
    assert await tools.end_of(reader, SOON) == b""
    writer.close()
    await pair.greeted()


async def test_of_a_stranger_little_is_read_at_once(pair) -> None:
    channel = await stranger(pair)
    (other,) = pair.there._channels
    assert len(other.get_buffer(-1)) == EARLY_RAW_BYTES
    await pair.greeted()
    (joined,) = pair.here._channels
    assert len(joined.get_buffer(-1)) == CHUNK_BYTES
    channel.abort()


async def test_garbage_inside_tls_gets_a_nonce_and_nothing_else(pair, tools, monkeypatch) -> None:
    monkeypatch.setattr(entrance, "HELLO_SECONDS", 0.5)
    for said in (b"", b"x" * 10, bytes(HELLO_BYTES), random.Random(5).randbytes(1 << 20)):
        channel = await stranger(pair)
        await channel.exactly(NONCE_BYTES)
        if said:
            channel.send(said)
        with pytest.raises(ConnectionError):
            await tools.within(channel.exactly(1))
    assert pair.worker.connections == []


async def test_a_key_of_the_view_is_of_no_use_without_its_private_half(pair, tools) -> None:
    thief = Identity()
    thief.key = pair.here.identity.key
    channel = await stranger(pair, thief)
    channel.send(says_hello(pair, thief, await channel.exactly(NONCE_BYTES)))
    with pytest.raises(ConnectionError):
        await tools.within(channel.exactly(1), SOON)
    assert pair.worker.connections == []


async def test_a_hello_that_was_heard_before_is_of_no_use(pair, tools) -> None:
    identity = pair.here.identity
    first = await stranger(pair, identity)
    hello = says_hello(pair, identity, await first.exactly(NONCE_BYTES))
    first.send(hello)
    assert await tools.within(first.exactly(1)) == WELCOME
    second = await stranger(pair, identity)
    await second.exactly(NONCE_BYTES)
    second.send(hello)
    with pytest.raises(ConnectionError):
        await tools.within(second.exactly(1), SOON)
    first.abort()


async def test_a_hello_to_one_relay_is_of_no_use_at_another(pair, tools) -> None:
    """A member of the view that is hostile passes on what it is told."""
    identity, elsewhere = pair.here.identity, Identity()
    channel = await stranger(pair, identity)
    nonce = await channel.exactly(NONCE_BYTES)
    channel.send(Hello.made(identity, elsewhere.key, nonce, pair.worker.port).to_bytes())
    with pytest.raises(ConnectionError):
        await tools.within(channel.exactly(1), SOON)


async def test_who_talks_before_it_is_let_in_is_not(pair, tools) -> None:
    pair.there.admit("worker", [])
    identity = Identity()
    channel = await stranger(pair, identity)
    channel.send(says_hello(pair, identity, await channel.exactly(NONCE_BYTES)) + b"more")
    with pytest.raises(ConnectionError):
        await tools.within(channel.exactly(1), SOON)


async def test_one_address_does_not_take_the_room_of_others(pair, tools, monkeypatch) -> None:
    monkeypatch.setattr(entrance, "MOST_WAITING_OF_HOST", 2)
    waiting = [await stranger(pair) for _ in range(2)]
    with pytest.raises(ConnectionError):
        await tools.within(stranger(pair))
    for channel in waiting:
        channel.abort()
    async with asyncio.timeout(SOON):
        while pair.there._entrance._waiting.total():  # noqa: ASYNC110 - what is waited for tells nobody
            await asyncio.sleep(0.01)
    await pair.greeted()


async def test_the_connections_of_a_pod_that_is_in_no_view_any_more_are_ended(pair, tools, monkeypatch) -> None:
    reader, _, _ = await pair.greeted()
    pair.there._entrance.sweep()
    pair.there.admit("worker", [])
    pair.there._entrance.sweep()
    writer = pair.opened[-1]
    writer.write(b"a last word")
    assert await tools.within(reader.readexactly(11)) == b"a last word"
    monkeypatch.setattr(admission, "LINGER_SECONDS", 0.0)
    pair.there._entrance.sweep()
    assert await tools.end_of(reader, SOON) == b""


async def test_the_kernel_watches_what_is_under_way_and_not_what_has_no_room(pair, tools) -> None:
    _, _, _ = await pair.greeted()
    (channel,) = pair.here._channels

    def timeout() -> int:
        return channel.opened.getsockopt(socket.IPPROTO_TCP, USER_TIMEOUT)

    channel.send(b"")
    channel._sending = True
    channel.watch(700)
    assert timeout() == 700
    # The other relay takes nothing, until this one's kernel has no room to send to.
    for other in pair.there._channels:
        other.hold()
    async with asyncio.timeout(DEADLINE):
        while timeout():
            channel.send(bytes(1 << 20))
            await asyncio.sleep(0.05)
            channel.watch(700)


DEADLINE = 20.0


async def test_a_worker_that_connects_while_the_relay_closes_is_told(tools) -> None:
    relay = Relay(0.5)
    await relay.open(tools.LOOPBACK)
    address = relay.publish("worker", 41234)
    assert address == f"tls://{relay.address}/41234#{relay.identity.key}"
    with pytest.raises(ValueError, match="is not the address of a worker behind a relay"):
        await relay.reach("worker", "uv://127.0.0.1:41234")
    way = await relay.reach("worker", address)
    relay.forget("worker", address)
    relay.forget("worker", address)
    host, _, port = way.partition(":")
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(host, int(port))
    await relay.close()


async def test_two_versions_back_is_refused_at_the_port(pair, tools) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    host, port = pair.there.address.split(":")
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await tools.within(asyncio.open_connection(host, int(port), ssl=context))
