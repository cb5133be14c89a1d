"""The operator's keys: files that come and go while jobs run."""

import logging
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat

from lmj_operator.backend.kubernetes.keys import AGAIN_SECONDS, MOST_KEYS, Keys, KeysError, open_keys
from lmj_operator.backend.kubernetes.trust import trust_options, trusted_by
from lmj_operator.backend.signing_key import SigningKey


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def put(folder: Path, name: str) -> SigningKey:
    key = SigningKey.generate()
    (folder / name).write_bytes(key.pem())
    return key


def test_the_last_by_name_is_for_new_pods_and_each_is_found_by_its_public_half(tmp_path: Path) -> None:
    second, first = put(tmp_path, "0002.pem"), put(tmp_path, "0001.pem")
    put(tmp_path, "note.txt")
    put(tmp_path, ".0003.pem")
    keys = Keys(tmp_path)
    assert keys.current.public == second.public
    for key in (first, second):
        found = keys.of([key.public, SigningKey.generate().public])
        assert found is not None
        assert found.public == key.public
        assert found.sign(b"x") == key.sign(b"x")
    both = keys.of([first.public, second.public])
    assert both is not None
    assert both.public == second.public
    assert keys.of([]) is None
    assert keys.of([SigningKey.generate().public]) is None


def test_keys_come_and_go_while_it_runs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock = Clock()
    old = put(tmp_path, "0001.pem")
    keys = Keys(tmp_path, clock)
    new = put(tmp_path, "0002.pem")
    assert keys.current.public == old.public
    clock.now += AGAIN_SECONDS
    assert (keys.current.public, keys.of([old.public]) is not None) == (new.public, True)
    assert f"new pods trust {new.public}; those made before may trust {old.public}" in caplog.text
    (tmp_path / "0001.pem").unlink()
    assert keys.of([old.public]) is not None
    clock.now += AGAIN_SECONDS
    assert keys.of([old.public]) is None


def test_what_cannot_be_read_changes_nothing_and_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    key = put(tmp_path, "0001.pem")
    keys = Keys(tmp_path, clock)
    (tmp_path / "0002.pem").write_text("half of a ke")
    for _ in range(3):
        clock.now += AGAIN_SECONDS
        assert keys.current.public == key.public
    assert caplog.text.count("0002.pem: it has no private key in PEM") == 1
    (tmp_path / "0002.pem").unlink()
    (tmp_path / "0001.pem").unlink()
    clock.now += AGAIN_SECONDS
    assert keys.of([key.public]) is not None
    assert "no key (*.pem) is there" in caplog.text


def test_keys_are_replaced_as_a_kubelet_does_it(tmp_path: Path) -> None:
    """It writes a folder beside the old one, and renames a link to it; files are links through that link."""
    clock, folder = Clock(), tmp_path / "mounted"
    (folder / "..1").mkdir(parents=True)
    (folder / "..2").mkdir()
    old, new = put(folder / "..1", "0001.pem"), put(folder / "..2", "0001.pem")
    (folder / "..data").symlink_to("..1")
    (folder / "0001.pem").symlink_to("..data/0001.pem")
    keys = Keys(folder, clock)
    (folder / "..data").unlink()  # no kubelet does this: what is looked for meanwhile is not there
    clock.now += AGAIN_SECONDS
    assert keys.current.public == old.public
    (folder / "..data").symlink_to("..2")
    assert keys.current.public == old.public, "it was read just now"
    clock.now += AGAIN_SECONDS
    assert keys.current.public == new.public
    assert keys.of([old.public]) is None


def pem(kind: str) -> bytes:
    if kind == "locked":
        locked = BestAvailableEncryption(b"word")
        return SigningKey.generate()._private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, locked)
    if kind == "other":
        return generate_private_key(SECP256R1()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return {"empty": b"", "text": b"-----BEGIN PRIVATE KEY-----\nx\n-----END PRIVATE KEY-----\n", "large": b"x" * (1 << 20)}[kind]


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("empty", "it has no private key in PEM"),
        ("text", "it has no private key in PEM"),
        ("large", "it has no private key in PEM"),
        ("locked", "without a password"),
        ("other", "its key is not one of Ed25519"),
    ],
)
def test_a_file_that_is_no_key_is_told_in_a_line(tmp_path: Path, kind: str, why: str) -> None:
    (tmp_path / "0001.pem").write_bytes(pem(kind))
    with pytest.raises(KeysError, match=f"0001.pem: .*{why}") as told:
        Keys(tmp_path)
    assert str(told.value).count("\n") == 0


def test_a_folder_that_cannot_be_used_is_told_in_a_line(tmp_path: Path) -> None:
    with pytest.raises(KeysError, match=r"no key .* is there; make one: openssl genpkey -algorithm ed25519 -out .*0001\.pem"):
        Keys(tmp_path)
    with pytest.raises(KeysError, match="cannot be read: No such file"):
        Keys(tmp_path / "absent")
    for number in range(MOST_KEYS + 1):
        put(tmp_path, f"{number:04}.pem")
    with pytest.raises(KeysError, match=f"{MOST_KEYS + 1} keys are there, and {MOST_KEYS} are the most"):
        Keys(tmp_path)


def test_outside_of_a_cluster_a_key_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "keys"
    made = open_keys(folder, make=True).current.public
    assert open_keys(folder, make=True).current.public == made
    (file,) = folder.iterdir()
    assert (file.stat().st_mode & 0o777, folder.stat().st_mode & 0o777) == (0o600, 0o700)
    with pytest.raises(KeysError, match="no key can be made there"):
        open_keys(file / "below", make=True)


def test_in_a_cluster_none_is_made(tmp_path: Path) -> None:
    with pytest.raises(KeysError, match="no key"):
        open_keys(tmp_path, make=False)
    assert not list(tmp_path.iterdir())


def test_what_openssl_makes_is_a_key(tmp_path: Path) -> None:
    """As the documentation has it made."""
    file = tmp_path / "0001.pem"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", str(file)], check=True, timeout=60)
    assert len(Keys(tmp_path).current.sign(b"x")) == 64


def test_what_a_pod_trusts_is_on_its_command_line() -> None:
    keys = tuple(SigningKey.generate().public for _ in range(2))
    words = ["python", "-m", "lmj_trainer", "agent", *trust_options(keys), "--lifeline"]

    def of(*containers: dict[str, object]) -> tuple[str, ...]:
        return trusted_by({"containers": containers})

    assert of({"name": "trainer", "command": words}) == keys
    assert of({"name": "trainer", "command": ["/wrapper"], "args": words}) == keys, (
        "as some webhooks start what is in a container"
    )
    assert of({"name": "sidecar", "command": words}, {"name": "trainer"}) == ()
    assert of({"name": "trainer", "command": ["--trust=short", "--trust", keys[0], "x--trust=" + keys[0]]}) == ()
    assert of({"name": "trainer", "command": ["x"] * 100_000, "args": words}) == (), "it is not gone through for ever"
    assert of() == trusted_by({}) == trusted_by({"containers": None}) == ()
