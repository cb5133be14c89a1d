"""What is peculiar to buckets. What every store must do is in the contract."""

import hashlib
import threading
import time
from pathlib import Path

import gcs_server
import pytest
from azurite import Azurite
from bucket_fixture import lead
from gcs_server import GcsServer
from obstore.store import S3Store
from s3_server import S3Server, serving
from secret_folder import SecretFolder
from storage_server import StorageServer
from tests.on_disk import commit_manifest, file_digest, make_folder

from lmj_api.manifest import Manifest, ManifestFile
from lmj_trainer.__main__ import main
from lmj_trainer.errors import UserError
from lmj_trainer.store import objects as adapter
from lmj_trainer.store.port import Ref
from lmj_trainer.store.registry import open_place
from lmj_trainer.store.renewed import Renewed

pytestmark = pytest.mark.integration
LARGE = bytes(range(256)) * ((2 * adapter.CHUNK + 12_345) // 256)


@pytest.fixture
def root(server: StorageServer, tmp_path: Path) -> Ref:
    return open_place(f"{server.bucket('own')}/{tmp_path.name}")


def test_a_large_file_goes_in_parts_and_comes_back_as_it_was(root: Ref) -> None:
    file = root / "large"
    file.put([LARGE[:100], memoryview(LARGE)[100:]])
    assert file.entry().size == len(LARGE)
    assert bool(file.entry().tag) != str(file).startswith("azfile:"), "streamed rows are pinned by it; in a share by less"
    assert hashlib.sha256(file.get()).digest() == hashlib.sha256(LARGE).digest()
    buffer = bytearray(len(LARGE) - 7)
    view = memoryview(buffer)
    file.fill(7, [view[:1000], view[1000 : adapter.CHUNK + 1], view[adapter.CHUNK + 1 :]])
    assert buffer == LARGE[7:]
    with file.local() as path:
        assert path.read_bytes() == LARGE
    assert not path.exists()


def test_of_a_file_that_is_not_finished_nothing_is_left(s3: S3Server) -> None:
    root = open_place(f"{s3.bucket('torn')}")

    def torn() -> object:
        yield LARGE
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        (root / "f").put(torn())  # type: ignore[arg-type]
    assert not (root / "f").exists()
    assert (
        sum(path.stat().st_size for path in s3.folder.rglob("*") if path.is_file() and "large" not in path.name) < adapter.CHUNK
    )


def test_a_server_that_comes_back_is_asked_again(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(tmp_path) as first:
        lead(first, monkeypatch)
        file = open_place(f"{first.bucket('kept')}/x") / "f"
        file.put([b"old"])
    done: list[bytes] = []
    thread = threading.Thread(target=lambda: (file.put([LARGE]), done.append(file.get(0, 4))))
    thread.start()
    time.sleep(0.5)
    assert not done
    with serving(tmp_path, first.port, first.secret):
        thread.join(adapter.RETRY_SECONDS)
        assert done == [LARGE[:4]]


@pytest.mark.parametrize(("name", "value", "said"), [
    ("AWS_SECRET_ACCESS_KEY", "wrong-secret", "SignatureDoesNotMatch: The request signature we calculated does not match"),
    ("AWS_ACCESS_KEY_ID", "nobody", "(InvalidAccessKeyId|XAdminUserNotFound): "),
])  # fmt: skip
def test_who_may_not_is_told_in_a_line_without_a_key(
    name: str, value: str, said: str, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    root = open_place(f"{s3.bucket('own')}/x")
    for call in (root.files, root.is_folder, lambda: (root / "f").put([b"x"]), lambda: (root / "f").create(b"x")):
        with pytest.raises(OSError, match=rf"^s3://own/x(/f)?: {said}") as raised:
            call()
        assert not any(secret in str(raised.value) for secret in (s3.secret, s3.key, value, "\n", "Signature="))


@pytest.mark.parametrize(("kind", "uri", "said"), [
    ("s3", "s3://nothing-here/x", "NoSuchBucket: "), ("gs", "gs://nothing-here/x", "NoSuchBucket: "),
    ("azblob", "azblob://nothing-here/x", "ContainerNotFound: "),
    ("azfile", "azfile://nothing-here/x", "ShareNotFound: "),
])  # fmt: skip
def test_a_bucket_that_is_not_there(kind: str, uri: str, said: str, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue(kind)
    root = open_place(uri)
    for call in (root.files, lambda: (root / "f").put([b"x"]), lambda: (root / "f").create(b"x")):
        with pytest.raises(OSError, match=rf"^{uri}(/f)?: {said}") as raised:
            call()
        assert not isinstance(raised.value, FileNotFoundError), "it is not empty: it is not there"


def test_another_key_of_azure_is_refused_in_a_line(azblob: Azurite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "d3Jvbmc=")
    root = open_place(f"{azblob.bucket('own')}/x")
    for call in (root.files, lambda: (root / "f").put([b"x"])):
        with pytest.raises(OSError, match=r"^azblob://own/x(/f)?: AuthorizationFailure: ") as raised:
            call()
        assert not any(secret in str(raised.value) for secret in (azblob.secret, "d3Jvbmc=", "\n"))


def test_another_account_of_google_is_refused_in_a_line(gs: GcsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with gcs_server.serving() as other:
        monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", other.key)
    root = open_place(f"{gs.bucket('own')}/x")
    for call in (root.files, lambda: (root / "f").put([b"x"])):
        with pytest.raises(OSError, match=r"^gs://own/x(/f)?: AuthenticationRequired: ") as raised:
            call()
        assert not any(secret in str(raised.value) for secret in ("PRIVATE KEY", "Bearer", "\n"))


@pytest.mark.parametrize("key", ["{", "{}", "no JSON", '{"private_key": "sesame", "client_email": "a", "private_key_id": "b"}'])
def test_a_key_of_google_that_is_none_is_told_in_a_line(
    key: str, gs: GcsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    SecretFolder(tmp_path / "secret", {"GOOGLE_SERVICE_ACCOUNT_KEY": key}).lead(monkeypatch)
    with pytest.raises((UserError, OSError), match=r"^gs://own/x") as raised:
        open_place(f"{gs.bucket('own')}/x").files()
    assert not any(part in str(raised.value) for part in ("sesame", "\n"))


def test_what_a_jobs_secret_has_goes_before_the_environment(
    server: StorageServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"{server.bucket('own')}/secret"
    SecretFolder(tmp_path / "secret", server.environment).lead(monkeypatch)
    for name in server.environment:
        monkeypatch.setenv(name, "d3Jvbmc=")
    # Of another credential, or of another place, nothing is mixed in.
    for name, value in {
        "AWS_SESSION_TOKEN": "other",
        "AWS_SKIP_SIGNATURE": "true",
        "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9",
        "AZURE_STORAGE_SAS_TOKEN": "sv=2020&sig=x",
        "AZURE_ENDPOINT": "http://127.0.0.1:9",
        "GOOGLE_SKIP_SIGNATURE": "true",
        "GOOGLE_APPLICATION_CREDENTIALS": "/nonexistent",
        "AZURE_CLIENT_ID": "c",
        "AZURE_TENANT_ID": "t",
        "AZURE_FEDERATED_TOKEN_FILE": "/nonexistent",
    }.items():
        monkeypatch.setenv(name, value)
    (open_place(uri) / "f").put([b"x"])
    assert open_place(uri).files() == ["f"]


@pytest.mark.parametrize(
    "endpoint", ["d3Jvbmc=", "ftp://h", "http://", "http://h:0", "http://h:x", "http://h a", "http://me:sesame@h"]
)
@pytest.mark.parametrize("in_secret", [False, True])
def test_an_endpoint_that_is_none_is_refused(
    endpoint: str, in_secret: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if in_secret:
        SecretFolder(tmp_path / "secret", {"AWS_ENDPOINT_URL": endpoint}).lead(monkeypatch)
    else:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    with pytest.raises(UserError, match=r"^the variable AWS_ENDPOINT_URL\w*: write http:// or https:// and the server's name$"):
        open_place("s3://bucket/x")


def test_no_more_parts_are_held_than_are_under_way(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is slow to take them, or waits for the first, does not have all of a file in memory."""
    file = open_place(f"{s3.bucket('own')}/parts") / "f"
    file.put([LARGE[:50_000]])
    monkeypatch.setattr(adapter, "CHUNK", 1000)
    asked: list[int] = []
    real = adapter.obstore.get_range
    monkeypatch.setattr(adapter.obstore, "get_range", lambda *a, **k: (asked.append(k["start"]), real(*a, **k))[1])
    store = file.store
    assert isinstance(store, adapter.ObjectStore)
    pieces = store._pieces(file.key, 10, 50_000)
    first = next(pieces)
    assert max(asked) <= 10 + 1000 * adapter.PARTS_AT_ONCE
    assert bytes(first) + b"".join(map(bytes, pieces)) == LARGE[10:50_000]


def test_a_consoles_mark_of_a_folder_is_no_file(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"objects": [{"path": "x/ck/"}, {"path": "x/ck/f"}], "common_prefixes": []}
    monkeypatch.setattr(adapter.obstore, "list_with_delimiter", lambda *_: found)
    assert (open_place(s3.bucket("own")) / "x" / "ck").files() == ["f"]


def test_a_setting_that_is_none_is_named_without_its_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    SecretFolder(tmp_path / "secret", {"AWS_SECRET_ACESS_KEY": "sesame"}).lead(monkeypatch)
    with pytest.raises(UserError, match=r"^s3://bucket/x: Configuration key: 'aws_secret_acess_key' is not valid") as raised:
        open_place("s3://bucket/x")
    assert "sesame" not in str(raised.value)


def test_a_system_without_root_certificates(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.setenv(name, "/nonexistent")
    file = open_place(f"{s3.bucket('own')}/x") / "certificates"
    file.put([b"x"])
    assert file.get() == b"x"


def test_a_panic_of_the_library_is_an_error_as_others(s3: S3Server) -> None:
    bucket = S3Store("own", config={"AWS_ENDPOINT_URL": "no-url"}, client_options={"allow_http": True})
    with pytest.raises(OSError, match=r"^s3://own/f: "):
        (Ref(adapter.ObjectStore("s3://own", Renewed(None, lambda given: bucket, lambda given: False))) / "f").put([b"x"])


@pytest.mark.parametrize(
    "uri",
    [
        "s3://",
        "s3://b",
        "s3://Bucket/x",
        "azblob://",
        "azblob://cont/../x",
        "s3://bucket/../x",
        "s3://bucket/a//b",
        "s3://bucket/a/./b",
        "s3://bucket/a\tb",
        "azblob://bucket/a\nb",
        "gs://b",
        "azfile://",
        "azfile://share/../x",
    ],
)
def test_what_is_no_place(uri: str) -> None:
    with pytest.raises(UserError, match=r"write (s3://BUCKET|azblob://CONTAINER|gs://BUCKET|azfile://SHARE)/FOLDER$"):
        open_place(uri)


def test_a_withdrawal_that_was_interrupted_is_finished_by_the_next(root: Ref) -> None:
    place = root / "step-1"
    for name in ("a", "b"):
        (place / name).put([b"x"])
    (root / ".step-1.gone" / "a").put([b"x"])
    (place / "a").delete()
    aside = place.withdraw("manifest")
    assert aside is not None
    assert aside.files() == ["a", "b"]
    assert not place.is_folder()


def test_what_is_finished_while_it_is_withdrawn_stays(
    bucket_server: StorageServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = open_place(f"{bucket_server.bucket('own')}/{tmp_path.name}") / "step-1"
    (place / "part").put([b"x"])
    real = adapter.ObjectStore._move

    def move(store: adapter.ObjectStore, source: str, target: str) -> None:
        real(store, source, target)
        if target.endswith(".gone"):
            (place / "manifest").put([b"x"])

    monkeypatch.setattr(adapter.ObjectStore, "_move", move)
    assert place.withdraw("manifest") is None
    assert place.files() == ["manifest", "part"]


def write(folder: Path, step: int, content: bytes) -> None:
    made = make_folder(folder, step, 1)
    path = made / "rank-0.safetensors"
    path.write_bytes(content)
    file = ManifestFile(name=path.name, size=len(content), xxh128=file_digest(path))
    commit_manifest(made, Manifest(job="j", view=1, step=step, epoch=0.5, state_digest="s", seconds=1, files=[file]))


def test_checkpoints_are_copied_there_and_back(root: Ref, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for step in (10, 20, 30):
        write(tmp_path / "checkpoints", step, LARGE[:step])
    (tmp_path / "checkpoints" / "step-000000020-v1" / "rank-0.safetensors").write_bytes(b"y" * 20)
    uri = str(root / "ck")
    assert main(["checkpoints", str(tmp_path), "--copy-to", uri]) == 0
    assert capsys.readouterr().err.splitlines()[-1] == f"2 copied to {uri}"
    assert main(["checkpoints", uri]) == 0
    _, newest, oldest = capsys.readouterr().out.splitlines()
    assert (newest.split()[0], oldest.split()[0]) == ("30", "10")
    assert newest.endswith("verified")
    (root / "ck" / "step-000000030-v1" / "rank-0.safetensors").put([b"torn"])
    assert main(["checkpoints", str(tmp_path), "--copy-to", uri]) == 0
    assert capsys.readouterr().err.splitlines()[-1] == f"1 copied to {uri}"
    assert main(["checkpoints", uri, "--copy-to", str(tmp_path / "back")]) == 0
    for step in (10, 30):
        assert (tmp_path / "back" / f"step-{step:09}-v1" / "rank-0.safetensors").read_bytes() == LARGE[:step]
