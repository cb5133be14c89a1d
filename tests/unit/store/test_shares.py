"""What is peculiar to shares of Azure Files. What every store must do is in the contract."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from azfile_server import AzureFiles
from bucket_fixture import lead
from secret_folder import SecretFolder
from way import Fate, way_to

from lmj_api.buckets import split
from lmj_trainer.errors import UserError
from lmj_trainer.store import partial, patience, shares
from lmj_trainer.store.port import Ref
from lmj_trainer.store.registry import open_place

pytestmark = pytest.mark.integration
LEFT = ".f.0123456789abcdef.partial"
"""What a writer that died leaves."""


@pytest.fixture
def root(azfile: AzureFiles, tmp_path: Path) -> Ref:
    return open_place(f"{azfile.bucket('own')}/{tmp_path.name}")


@pytest.mark.parametrize(("uri", "said"), [
    ("azfile://share/Runs", "Azure Files does not tell capitals from small letters: write runs"),
    ("azfile://share/a:b", "Azure Files takes no : in a name: leave it out"),
    ("azfile://share/a/b?", "Azure Files takes no ? in a name: leave it out"),
    ("azfile://share/a\\b", "Azure Files takes no \\ in a name: leave it out"),
    ("azfile://share/a./b", "Azure Files takes no dot and no space at the end of a name: leave it out"),
    ("azfile://share/x/nul", "Azure Files takes no folder of that name: nul"),
    (f"azfile://share/{'n' * 256}", f"Azure Files takes no folder of that name: {'n' * 20}"),
    ("azfile://a--b/x", "a share's name has small letters, digits and single hyphens alone: write azfile://SHARE/FOLDER"),
    ("azfile://a.b/x", "a share's name has small letters, digits and single hyphens alone: write azfile://SHARE/FOLDER"),
])  # fmt: skip
def test_names_that_cannot_be_kept_apart_are_refused(uri: str, said: str) -> None:
    with pytest.raises(ValueError, match=r"^azfile://") as raised:
        split(uri)
    assert str(raised.value) == f"{uri}: {said}"


def test_a_file_grows_as_its_content_comes(root: Ref, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"FIRST_ROOM": 1500, "MOST_ROOM": 3000}.items():
        monkeypatch.setattr(partial, name, value)
    monkeypatch.setattr(shares, "CHUNK", 1000)
    content = bytes(range(250)) * 50

    def pieces() -> Iterator[bytes]:
        for start in range(0, len(content), 333):
            yield content[start : start + 333]

    (root / "f").put(pieces())
    assert (root / "f").get() == content
    (root / "f").put([b""])
    assert ((root / "f").get(), (root / "f").entry().size) == (b"", 0)


def test_listings_have_pages(root: Ref, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "PAGE", 2)
    names = [f"f{number}" for number in range(5)]
    for name in names:
        (root / name).put([b"x"])
        (root / f"{name}-folder" / "f").put([b"x"])
    assert (root.files(), root.folders()) == (names, [f"{name}-folder" for name in names])


def test_what_a_writer_that_died_left_is_unseen_and_goes_with_its_folder(root: Ref) -> None:
    folder = root / "folder"
    for name in ("f", LEFT):
        (folder / name).put([b"x"])
    assert folder.files() == ["f"]
    with pytest.raises(OSError, match=r"folder is not empty$"):
        folder.remove()
    assert folder.files() == ["f"]
    (folder / "f").delete()
    folder.remove()
    assert not folder.is_folder()


def test_what_is_unfinished_goes_when_it_is_old(root: Ref, azfile: AzureFiles, tmp_path: Path) -> None:
    folder = root / "folder"
    folder.tidy()
    for name in ("f", "g", LEFT):
        (folder / name).put([b"x"])
    folder.tidy()
    assert (folder / LEFT).exists(), "its writer may be alive"
    for node in azfile.shares["own"].values():
        node.time -= 25 * 3600
    folder.tidy()
    assert (folder.files(), (folder / LEFT).exists()) == (["f", "g"], False)


def test_a_folder_that_is_withdrawn_while_a_file_is_written_gets_none(root: Ref) -> None:
    folder = root / "step-1"
    (folder / "part").put([b"x"])

    def content() -> Iterator[bytes]:
        yield bytes(2 * shares.CHUNK)
        assert folder.withdraw("manifest") is not None
        yield b"x"

    with pytest.raises(OSError, match=r"step-1/manifest: its folder was moved or removed while it was written$"):
        (folder / "manifest").put(content())
    assert not folder.is_folder()
    assert (root / ".step-1.gone").files() == ["part"]


def test_a_folder_that_was_made_again_is_withdrawn_again(root: Ref) -> None:
    folder = root / "step-1"
    for name in ("a", "b", LEFT):
        (folder / name).put([b"x"])
        assert folder.withdraw("manifest") is not None
    assert ((root / ".step-1.gone").files(), folder.is_folder()) == (["a", "b"], False)


def test_what_is_finished_while_it_is_withdrawn_stays(root: Ref, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = root / "step-1"
    (folder / "part").put([b"x"])
    real = shares.ShareStore._move

    def move(store: shares.ShareStore, source: str, target: str) -> None:
        if target.endswith(".gone"):
            (folder / "manifest").put([b"x"])
        real(store, source, target)

    monkeypatch.setattr(shares.ShareStore, "_move", move)
    assert folder.withdraw("manifest") is None
    assert folder.files() == ["manifest", "part"]


def test_another_key_is_refused_in_a_line(azfile: AzureFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "d3Jvbmc=")
    root = open_place(f"{azfile.bucket('own')}/x")
    for call in (root.files, root.is_folder, lambda: (root / "f").put([b"x"]), lambda: (root / "f").create(b"x")):
        with pytest.raises(OSError, match=r"^azfile://own/x(/f)?: AuthenticationFailed") as raised:
            call()
        assert not any(secret in str(raised.value) for secret in (azfile.secret, "d3Jvbmc=", "\n", "signature is"))


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:9", "http://nowhere.invalid"])
def test_no_signature_is_told_of_a_server_that_is_not_there(
    endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "RETRY_SECONDS", 0.3)
    given = {"ACCOUNT_NAME": "a", "SAS_TOKEN": "?sv=2022-11-02&sig=sesame", "FILE_ENDPOINT": endpoint}
    SecretFolder(tmp_path / "secret", {f"AZURE_STORAGE_{name}": value for name, value in given.items()}).lead(monkeypatch)
    with pytest.raises(OSError, match=r"^azfile://own/x: ") as raised:
        open_place("azfile://own/x").files()
    assert not any(secret in str(raised.value) for secret in ("sesame", "sig=", "\n"))


@pytest.mark.parametrize(("variables", "said"), [
    ({}, r"azfile://own/x: set AZURE_STORAGE_ACCOUNT_NAME, in the job's Secret or in the environment"),
    ({"AZURE_STORAGE_ACCOUNT_NAME": "a"}, r"azfile://own/x: set AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN, or, .*pip install"),
    ({"AZURE_STORAGE_ACCOUNT_NAME": "a", "AZURE_STORAGE_ACCOUNT_KEY": "sesame!"}, r"the variable AZURE_STORAGE_ACCOUNT_KEY: it is no key"),
    ({"AZURE_STORAGE_ACCOUNT_NAME": "a", "AZURE_STORAGE_FILE_ENDPOINT": "http://me:sesame@h"}, r"the variable AZURE_STORAGE_FILE_ENDPOINT: "),
    ({"AZURE_STORAGE_ACCOUNT_NAME": "a", "AZURE_STORAGE_FILE_ENDPOINT": "http://h/?sig=sesame"}, r"the variable AZURE_STORAGE_FILE_ENDPOINT: "),
])  # fmt: skip
def test_what_does_not_lead_there_is_told_in_a_line(
    variables: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(sys.modules, "azure.identity", None)
    with pytest.raises(UserError, match=f"^{said}") as raised:
        open_place("azfile://own/x")
    assert not any(secret in str(raised.value) for secret in ("sesame", "\n"))


def test_a_key_of_the_secret_that_leads_nowhere_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    SecretFolder(tmp_path / "secret", {"AZURE_STORAGE_ACOUNT_KEY": "sesame"}).lead(monkeypatch)
    with pytest.raises(UserError, match=r"^azfile://own/x: the Secret's key AZURE_STORAGE_ACOUNT_KEY is not known here$"):
        open_place("azfile://own/x")


def test_where_the_library_is_missing_it_is_said_how_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "lmj_trainer.store.azfile", raising=False)
    monkeypatch.delattr("lmj_trainer.store.azfile", raising=False)
    monkeypatch.setitem(sys.modules, "azure.storage.fileshare", None)
    with pytest.raises(UserError, match=r"is not installed here: pip install 'livemigrationjob\[storage\]'$"):
        open_place("azfile://own/x")


def test_answers_of_which_a_part_is_lost_are_asked_for_again(
    azfile: AzureFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "FIRST_PAUSE", 0.001)
    with way_to(azfile, lambda number: Fate.TORN if number % 2 else Fate.PASSES) as way:
        lead(way, monkeypatch)
        root = open_place(f"{azfile.bucket('own')}/{tmp_path.name}")
        (root / "f").put([b"content" * 1000])
        assert (root / "f").get() == b"content" * 1000
        assert (root / "f").get() == b"content" * 1000
        assert (root.files(), root.files()) == (["f"], ["f"])


def test_a_server_that_stays_away_is_waited_for_as_long_as_is_said(
    azfile: AzureFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "RETRY_SECONDS", 0.5)
    with way_to(azfile, lambda number: Fate.LOST) as way:
        lead(way, monkeypatch)
        with pytest.raises(OSError, match=r"^azfile://own/.*/f: "):
            (open_place(f"{azfile.bucket('own')}/{tmp_path.name}") / "f").put([b"x"])
    assert 3 <= len(way.requests) <= 10
