"""What a relay is made of that knows no network."""

import asyncio
import ssl
from dataclasses import replace

import pytest

from lmj_trainer.relay.address import Address
from lmj_trainer.relay.admission import LINGER_SECONDS, Admission
from lmj_trainer.relay.brochure import LONGEST, Brochure
from lmj_trainer.relay.hello import HELLO_BYTES, NONCE_BYTES, Hello
from lmj_trainer.relay.identity import Identity, key_of
from lmj_trainer.relay.tls import Tls

KEY = "Q" * 43


@pytest.mark.parametrize("text", [f"tls://10.1.2.3:9463/41234#{KEY}", f"tls://[fd00::7]:9463/41234#{KEY}"])
def test_an_address_is_read_as_it_is_written(text: str) -> None:
    address = Address.of(text)
    assert str(address) == text
    assert (address.port, address.worker, address.key) == (9463, 41234, KEY)
    assert address.host in ("10.1.2.3", "fd00::7")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "uv://10.1.2.3:41234",
        f"tls://10.1.2.3:9463#{KEY}",
        f"tls://10.1.2.3:9463/0#{KEY}",
        f"tls://10.1.2.3:9463/65536#{KEY}",
        f"tls://10.1.2.3:99999/41234#{KEY}",
        f"tls://10.1.2.3:9463/41234#{KEY}A",
        f"tls://10.1.2.3:9463/41234#{KEY}\n",
        f"tls://localhost:9463/41234#{KEY}",
        f"tls://10.1.2.3:9463/41234#{'A' * 43}",  # of order 4: everybody can sign with it
        f"tls://10.1.2.3:9463/41234#AQ{'A' * 41}",
        f"tls://999.1.2.3:9463/41234#{KEY}",
        f"tls://.......:9463/41234#{KEY}",
        f"tls://[:::::]:9463/41234#{KEY}",
        f"tls://[10.1.2.3]:9463/41234#{KEY}",
        f"tls://10.1.2.3:٩٤٦٢/41234#{KEY}",
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not the address of a worker behind a relay"):
        Address.of(text)


def test_a_hello_holds_for_one_relay_and_one_nonce() -> None:
    client, server, other, nonce = Identity(), Identity(), Identity(), b"n" * NONCE_BYTES
    hello = Hello.made(client, server.key, nonce, 41234)
    again = Hello.of(hello.to_bytes())
    assert again == hello
    assert (again.key, again.worker) == (client.key, 41234)
    assert again.holds(server.key, nonce)
    assert not again.holds(other.key, nonce)
    assert not again.holds(server.key, b"m" * NONCE_BYTES)


@pytest.mark.parametrize("place", [0, 32, 34, HELLO_BYTES - 1])
def test_a_hello_in_which_anything_is_changed_does_not_hold(place: int) -> None:
    client, server, nonce = Identity(), Identity(), b"n" * NONCE_BYTES
    data = bytearray(Hello.made(client, server.key, nonce, 41234).to_bytes())
    data[place] ^= 1
    assert not Hello.of(bytes(data)).holds(server.key, nonce)


def test_a_hello_without_a_signature_does_not_hold() -> None:
    client, server, nonce = Identity(), Identity(), b"n" * NONCE_BYTES
    made = Hello.made(client, server.key, nonce, 41234)
    assert not replace(made, signature=bytes(64)).holds(server.key, nonce)


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_listener_s_first_answer_names_the_place_that_is_here(size: int) -> None:
    said = b"\x40\0\0\0{uv 127.0.0.1:41234 basic}" + b"127.0.0.1:41234 later"
    brochure, passed = Brochure("127.0.0.1:41234", "127.0.0.1:50000"), b""
    for begin in range(0, len(said), size):
        passed += brochure.passed(said[begin : begin + size])
    assert passed == b"\x40\0\0\0{uv 127.0.0.1:50000 basic}127.0.0.1:41234 later"
    assert brochure.done


def test_a_listener_that_never_says_where_it_is_is_none() -> None:
    brochure = Brochure("127.0.0.1:41234", "127.0.0.1:50000")
    assert brochure.passed(b"x" * LONGEST) == b""
    with pytest.raises(ValueError, match=r"does not say within 16384 bytes that it listens at 127\.0\.0\.1:41234"):
        brochure.passed(b"x")


def test_places_of_two_lengths_would_change_the_message() -> None:
    with pytest.raises(ValueError, match="are not of one length"):
        Brochure("127.0.0.1:41234", "127.0.0.1:8080")


class TestAdmission:
    def setup_method(self) -> None:
        self.now = 1000.0
        self.admission = Admission(lambda: self.now)

    def test_those_are_let_in_whom_somebody_names(self) -> None:
        self.admission.name("worker", ["a", "b"])
        self.admission.name("agent", ["b", "c"])
        assert [key for key in "abcd" if self.admission.may(key)] == ["a", "b", "c"]
        self.admission.name("worker", ["a"])
        assert [key for key in "abcd" if self.admission.may(key)] == ["a", "b", "c"]
        self.admission.name("agent", ())
        assert [key for key in "abcd" if self.admission.may(key)] == ["a"]

    def test_who_is_named_no_more_may_stay_for_a_minute(self) -> None:
        self.admission.name("worker", ["a"])
        self.admission.name("worker", ["b"])
        self.now += LINGER_SECONDS - 1
        assert not self.admission.may("a")
        assert self.admission.may_stay("a")
        self.admission.name("worker", ["c"])  # does not begin the minute anew
        self.now += 1
        assert not self.admission.may_stay("a")
        assert self.admission.may_stay("b")
        assert not self.admission.may_stay("never there")

    def test_who_is_named_again_stays(self) -> None:
        self.admission.name("worker", ["a"])
        self.admission.name("worker", ())
        self.admission.name("worker", ["a"])
        self.now += 2 * LINGER_SECONDS
        assert self.admission.may_stay("a")

    async def test_who_comes_first_waits_to_be_named(self) -> None:
        waits = asyncio.create_task(self.admission.admitted("a", 10.0))
        await asyncio.sleep(0)
        self.admission.name("worker", ["b"])
        await asyncio.sleep(0)
        assert not waits.done()
        self.admission.name("worker", ["a", "b"])
        await asyncio.wait_for(waits, 5.0)
        with pytest.raises(TimeoutError):
            await self.admission.admitted("c", 0.01)


def shaken(client: Tls, server: Tls) -> None:
    for _ in range(10):
        client.shake()
        server.receive(client.take())
        server.shake()
        client.receive(server.take())
        if client.shaken and server.shaken:
            return
    raise AssertionError("no handshake")


def test_what_goes_in_comes_out_of_the_other_end() -> None:
    ours, theirs = Identity(), Identity()
    client, server = Tls(ours.client, server=False), Tls(theirs.server, server=True)
    shaken(client, server)
    assert key_of(client.certificate) == theirs.key
    data = bytes(range(256)) * 300  # several records
    client.write(data)
    sent = client.take()
    assert data[:256] not in sent
    server.receive(sent)
    buffer = memoryview(bytearray(50_000))
    got = [bytes(buffer[: server.read(buffer)]) for _ in range(3)]
    assert [len(part) for part in got] == [50_000, 26_800, 0]
    assert b"".join(got) == data
    assert not server.over
    client.close()
    server.receive(client.take())
    assert server.read(buffer) == 0
    assert server.over


def test_a_record_in_which_a_bit_was_changed_is_an_error() -> None:
    client, server = Tls(Identity().client, server=False), Tls(Identity().server, server=True)
    shaken(client, server)
    client.write(b"word")
    sent = bytearray(client.take())
    sent[-1] ^= 1
    server.receive(bytes(sent))
    with pytest.raises(ssl.SSLError):
        server.read(memoryview(bytearray(100)))


def test_who_speaks_an_older_version_is_refused() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    client, server = Tls(context, server=False), Tls(Identity().server, server=True)
    client.shake()
    server.receive(client.take())
    with pytest.raises(ssl.SSLError, match=r"(?i)unsupported.protocol"):
        server.shake()


def test_a_certificate_that_cannot_be_read_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"(?i)asn1|parse|der"):
        key_of(b"nothing")


def test_a_certificate_of_a_version_that_there_is_not_is_an_error_too() -> None:
    client, server = Tls(Identity().client, server=False), Tls(Identity().server, server=True)
    shaken(client, server)
    third, second = b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x01"
    assert third in client.certificate
    with pytest.raises(ValueError, match="version"):
        key_of(client.certificate.replace(third, second, 1))
