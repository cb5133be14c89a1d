"""Real servers whose keys end while a store is used, and a Secret that has the next ones sooner or later."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from bucket_fixture import KINDS
from renewable_server import RenewableServer
from secret_folder import SecretFolder

from lmj_trainer.errors import UserError
from lmj_trainer.store import objects, renewed
from lmj_trainer.store.port import Ref, RefusedError, RenewableError
from lmj_trainer.store.registry import open_place

pytestmark = pytest.mark.integration
PART = bytes(range(256)) * (objects.CHUNK // 256)


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RenewableServer]:
    with RenewableServer(request.param, tmp_path) as server:
        yield server


@pytest.fixture
def secret(server: RenewableServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SecretFolder:
    secret = SecretFolder(tmp_path / "secret", server.environment)
    secret.lead(monkeypatch)
    return secret


@pytest.fixture
def root(server: RenewableServer, secret: SecretFolder) -> Ref:
    return open_place(f"{server.server.bucket('own')}/x")


def test_the_next_request_has_the_next_keys(root: Ref, server: RenewableServer, secret: SecretFolder) -> None:
    """No process is started again, and no store opened."""
    (root / "f").put([b"one"])
    server.renew()
    secret.put(server.environment)
    assert (root / "f").get() == b"one"
    (root / "f").put([b"two"])
    assert (root / "g").create(b"x")
    assert (root.files(), (root / "f").entry().size) == (["f", "g"], 3)


def test_what_is_refused_waits_for_the_next_keys(root: Ref, server: RenewableServer, secret: SecretFolder) -> None:
    """The kubelet takes a minute to bring them."""
    (root / "f").put([b"one"])
    server.renew()
    done: list[object] = []
    acts = (
        lambda: (root / "f").put([b"two"]),
        lambda: root.files(),
        lambda: (root / "g").create(b"x"),
        lambda: (root / "f").get(),
        lambda: (root / "f").entry(),
    )
    threads = [threading.Thread(target=lambda act=act: done.append(act())) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(0.5)
    assert not done
    secret.put(server.environment)
    for thread in threads:
        thread.join(renewed.RENEWAL_SECONDS)
    assert len(done) == len(acts)
    assert (root / "f").get() == b"two"


def test_keys_that_nobody_renews_are_told_with_the_secret_that_has_to_be(
    root: Ref, server: RenewableServer, secret: SecretFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renewed, "RENEWAL_SECONDS", 0.0)
    (root / "f").put([b"one"])
    server.renew()
    acts = (
        root.files,
        lambda: (root / "f").put([b"x"]),
        lambda: (root / "g").create(b"x"),
        lambda: (root / "f").get(0, 3),
        (root / "f").exists,
    )
    for act in acts:
        with pytest.raises(RenewableError, match=r"^\w+://own/x(/[fg])?: .*[\w']: renew the Secret bucket$") as raised:
            act()
        assert "\n" not in str(raised.value)
        for name, value in server.environment.items():
            assert value not in str(raised.value) or not name.endswith(("KEY", "TOKEN"))


@pytest.mark.parametrize("server", ["s3", "azblob"], indirect=True)
def test_each_part_of_a_large_file_is_signed_by_what_the_secret_has_then(
    root: Ref, server: RenewableServer, secret: SecretFolder
) -> None:
    """The library asks again and again, not once a file: so keys that are renewed in time are used for the rest of it."""
    wrong = {name: "d3Jvbmc=" if name.endswith("KEY") else value for name, value in server.environment.items()}

    def pieces() -> Iterator[bytes]:
        for number in range(12):
            if number == 8:
                secret.put(wrong)
            yield PART

    with pytest.raises(RenewableError, match=r"/large: .*: renew the Secret bucket$"):
        (root / "large").put(pieces())
    secret.put(server.environment)
    assert not (root / "large").exists()


@pytest.mark.parametrize("server", ["azfile"], indirect=True)
def test_a_large_file_goes_on_with_the_next_keys(root: Ref, server: RenewableServer, secret: SecretFolder) -> None:
    """The content comes once, as of a checkpoint: who wrote half of it cannot begin again."""

    def pieces() -> Iterator[bytes]:
        for number in range(6):
            if number == 3:
                server.renew()
                secret.put(server.environment)
            yield PART

    (root / "large").put(pieces())
    assert (root / "large").entry().size == 6 * len(PART)
    assert (root / "large").get(3 * len(PART) - 3, 6) == PART[-3:] + PART[:3]


def test_a_large_file_is_read_on_with_the_next_keys(root: Ref, server: RenewableServer, secret: SecretFolder) -> None:
    (root / "large").put([PART, PART])
    buffer = memoryview(bytearray(len(PART)))
    (root / "large").fill(0, [buffer])
    server.renew()
    secret.put(server.environment)
    (root / "large").fill(len(PART), [buffer])
    assert bytes(buffer) == PART


@pytest.mark.parametrize("server", ["s3"], indirect=True)
def test_a_secret_whose_endpoint_is_none_costs_a_request_and_no_process(
    root: Ref, server: RenewableServer, secret: SecretFolder
) -> None:
    secret.put({**server.environment, "AWS_ENDPOINT_URL": "nowhere"})
    with pytest.raises(RenewableError, match=r"^the variable AWS_ENDPOINT_URL: .*: renew the Secret bucket$"):
        root.files()
    with pytest.raises(UserError, match=r"^the variable AWS_ENDPOINT_URL: "):
        open_place("s3://own/x")
    secret.put(server.environment)
    (root / "f").put([b"x"])


def test_a_bucket_that_is_not_there_is_not_waited_for(root: Ref, server: RenewableServer) -> None:
    (root / "f").put([b"x"])
    kind = str(root).partition("://")[0]
    with pytest.raises(RefusedError) as raised:
        open_place(f"{kind}://nothing-here/x").files()
    assert not isinstance(raised.value, RenewableError)
