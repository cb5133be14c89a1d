"""The job's Secret as files: read as a whole, again when it has changed, and never told."""

from __future__ import annotations

from pathlib import Path

import pytest
from secret_folder import NAME, SecretFolder

from lmj_trainer.errors import UserError
from lmj_trainer.store import renewed as module
from lmj_trainer.store.port import RenewableError
from lmj_trainer.store.renewed import Renewed
from lmj_trainer.store.secret import Secret
from lmj_trainer.store.variables import Given

OLD, NEW = {"AWS_KEY": "old", "AWS_SECRET": "sesame", "OTHER": "x"}, {"AWS_KEY": "new", "AWS_TOKEN": "abracadabra"}


class ExpiredError(Exception):
    """What the server says to what it does not take."""


class Clock:
    """Time goes by sleeping, and something happens meanwhile."""

    def __init__(self) -> None:
        self.now, self.at, self.act = 0.0, 1e9, lambda: None

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.now >= self.at:
            self.at = 1e9
            self.act()


class Server:
    """Takes the keys ``right``; a client of it is the key that it was opened with."""

    def __init__(self, secret: Secret | None) -> None:
        self.right, self.asked = {"old"}, list[str]()
        self.renewed = Renewed(secret, self.open, lambda given: "AWS_KEY" in given)

    def open(self, given: Given) -> str:
        if given.get("AWS_KEY") == "nowhere":
            raise UserError("the variable AWS_ENDPOINT_URL: write http://")
        return given.get("AWS_KEY", "of the environment")

    def ask(self) -> str:
        def ask(client: str) -> str:
            self.asked.append(client)
            if client not in self.right:
                raise ExpiredError(client)
            return f"answer to {client}"

        return self.renewed.ask(ask, lambda error: isinstance(error, ExpiredError))


@pytest.fixture
def folder(tmp_path: Path) -> SecretFolder:
    return SecretFolder(tmp_path / "secret", OLD)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def server(folder: SecretFolder, clock: Clock) -> Server:
    return Server(secret_in(folder))


def secret_in(folder: SecretFolder) -> Secret:
    secret = Secret.of_job("AWS_", folder.environment)
    assert secret is not None
    return secret


def test_its_keys_are_read_without_what_ends_a_line(folder: SecretFolder) -> None:
    secret = secret_in(folder)
    assert (secret.name, secret.read()) == (NAME, {"AWS_KEY": "old", "AWS_SECRET": "sesame"})
    folder.put(NEW)
    assert secret.read() == NEW, "a key that is gone is none"
    assert Secret.of_job("AWS_", {}) is None


def test_a_folder_without_versions_will_do(tmp_path: Path) -> None:
    (tmp_path / "AWS_KEY").write_text("k")
    assert Secret(tmp_path, NAME, "AWS_").read() == {"AWS_KEY": "k"}


def test_all_keys_are_of_one_version(folder: SecretFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """It changes after the first key was read: the folder of that version is gone."""
    secret, real, reads = secret_in(folder), Secret._text, list[str]()

    def text(self: Secret, path: Path) -> str:
        reads.append(path.name)
        if len(reads) == 2:
            folder.put(NEW)
        return real(self, path)

    monkeypatch.setattr(Secret, "_text", text)
    assert secret.read() == NEW


@pytest.mark.parametrize("content", [b"\xff\xfe", b"x" * ((1 << 20) + 1)], ids=["no text", "too large"])
def test_what_is_no_key_is_named_and_not_told(folder: SecretFolder, content: bytes) -> None:
    (folder.folder / "..data" / "AWS_KEY").write_bytes(content)
    with pytest.raises(UserError, match=r"^the Secret bucket: its key AWS_KEY is no text, as a key or a token is$"):
        secret_in(folder).read()
    assert secret_in(folder).latest(OLD) is OLD


def test_a_folder_that_cannot_be_read_is_told_when_it_is_opened_and_waited_for_later(
    folder: SecretFolder, server: Server, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=r"^the Secret bucket: .* cannot be read$"):
        Secret(tmp_path / "none", NAME, "AWS_").read()
    (folder.folder / "..data").rename(folder.folder / "..aside")
    (folder.folder / "..data").symlink_to("..nowhere")
    assert server.ask() == "answer to old"


def test_a_change_is_seen_by_the_next_request(folder: SecretFolder, server: Server) -> None:
    assert server.ask() == "answer to old"
    first = server.renewed.now
    assert server.renewed.now is first, "there is one client as long as nothing changes"
    folder.put(NEW)
    server.right = {"new"}
    assert (server.ask(), server.asked) == ("answer to new", ["old", "new"])


def test_what_expired_is_waited_for_and_asked_again(folder: SecretFolder, server: Server, clock: Clock) -> None:
    server.ask()
    server.right = {"new"}
    clock.at, clock.act = 20.0, lambda: folder.put(NEW)
    assert server.ask() == "answer to new"
    assert server.asked[1:] == ["old", "new"], "one request each: nobody is asked while it is waited"
    assert 20 <= clock.now <= 21


def test_it_is_waited_as_long_as_is_said_and_once(folder: SecretFolder, server: Server, clock: Clock) -> None:
    server.ask()
    server.right = set()
    with pytest.raises(ExpiredError):
        server.ask()
    assert module.RENEWAL_SECONDS <= clock.now <= module.RENEWAL_SECONDS + module.LOOK_SECONDS
    waited = clock.now
    with pytest.raises(ExpiredError):
        server.ask()
    assert clock.now == waited, "who cleans up after that is not kept for another minute"
    server.right = {"new"}
    folder.put(NEW)
    assert server.ask() == "answer to new"


def test_what_was_never_right_is_told_at_once(server: Server, clock: Clock) -> None:
    server.right = set()
    with pytest.raises(ExpiredError):
        server.ask()
    assert (server.asked, clock.now) == (["old"], 0.0)


def test_other_errors_are_not_asked_again(server: Server, clock: Clock) -> None:
    server.ask()
    asked: list[str] = []

    def ask(client: str) -> str:
        asked.append(client)
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        server.renewed.ask(ask, lambda error: isinstance(error, ExpiredError))
    assert (len(asked), clock.now) == (1, 0.0)


def test_a_secret_that_changes_again_and_again_has_an_end(folder: SecretFolder, server: Server) -> None:
    def ask(client: str) -> str:
        server.asked.append(client)
        folder.put({"AWS_KEY": f"{client}+"})
        raise ExpiredError

    with pytest.raises(ExpiredError):
        server.renewed.ask(ask, lambda error: True)
    assert server.asked == ["old", "old+", "old++"]


def test_a_change_that_leads_nowhere_ends_no_thread(folder: SecretFolder, server: Server) -> None:
    """A UserError in the thread of a checkpoint would end the worker."""
    folder.put({"AWS_KEY": "nowhere"})
    said = r"^the variable AWS_ENDPOINT_URL: write http://: renew the Secret bucket$"
    for act in (server.ask, lambda: server.renewed.now):
        with pytest.raises(RenewableError, match=said):
            act()
    folder.put(OLD)
    assert server.ask() == "answer to old"


def test_without_a_secret_there_is_one_client_and_nothing_to_wait_for(clock: Clock) -> None:
    server = Server(None)
    server.right = {"of the environment"}
    assert server.ask() == "answer to of the environment"
    server.right = set()
    with pytest.raises(ExpiredError):
        server.ask()
    assert (clock.now, server.renewed.secret) == (0.0, None)


@pytest.mark.parametrize(("values", "name"), [(OLD, NAME), ({"AWS_REGION": "eu"}, None)], ids=["a key", "an identity"])
def test_it_is_named_where_requests_are_signed_by_it(values: dict[str, str], name: str | None, tmp_path: Path) -> None:
    assert Server(secret_in(SecretFolder(tmp_path / "s", values))).renewed.secret == name


def test_no_value_is_shown(folder: SecretFolder, server: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    folder.put(NEW)
    server.right = {"new"}
    server.ask()
    said = caplog.text + repr(secret_in(folder)) + repr(server.renewed)
    assert "the Secret bucket has changed" in said
    assert not any(value in said for value in ("abracadabra", "sesame"))
