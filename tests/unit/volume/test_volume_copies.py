"""Uploads and downloads with the pod's side as a process: what arrives, what is left alone, what goes on, what is refused."""

import asyncio
import os
import random
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from far_process import Watched, far_side

from lmj_operator.client.volume import copying
from lmj_operator.client.volume.download import Download, listed
from lmj_operator.client.volume.far.tree import PART, Found, Tree, part_name
from lmj_operator.client.volume.source import source_of
from lmj_operator.client.volume.talk import Talk
from lmj_operator.client.volume.transfer import Tally
from lmj_operator.client.volume.trouble import Broken, VolumeError
from lmj_operator.client.volume.upload import Upload
from lmj_operator.client.volume.uri import Place

pytestmark = pytest.mark.integration

NAMES = ["plain.txt", "a/b/c.bin", "new\nline", "späce 😀", os.fsdecode(b"no-utf8-\xff"), "-rf", "x" * 255, "empty"]


def upload(source: Path, volume: Path, prefix: str = "", limit: int | None = None, tally: Tally | None = None) -> Tally:
    tally = tally or Tally()

    async def run() -> None:
        found = source_of(source)
        async with far_side(volume, limit) as talk:
            await Upload(found.tree, found.files, lambda path: f"{prefix}{path}", Watched(), tally).run(talk)

    asyncio.run(run())
    return tally


def download(volume: Path, target: Path, prefix: str = "") -> Tally:
    tally = Tally()

    async def run() -> None:
        async with far_side(volume) as talk:
            files = await listed(talk, prefix, tally)
            await Download(Tree(str(target)), files, prefix, Watched(), tally).run(talk)

    asyncio.run(run())
    return tally


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def made(folder: Path, seed: int = 0) -> dict[str, bytes]:
    chance = random.Random(seed)
    for name in NAMES:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"" if name == "empty" else chance.randbytes(chance.randrange(1, 400_000)))
    return files(folder)


@pytest.fixture
def here(tmp_path: Path) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    return folder


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    folder = tmp_path / "volume"
    folder.mkdir()
    return folder


def test_all_arrives_byte_for_byte_and_back_and_a_second_time_nothing_goes(here: Path, volume: Path, tmp_path: Path) -> None:
    wanted = made(here)
    (here / "plain.txt").chmod(0o755)
    tally = upload(here, volume, "data/")
    assert files(volume / "data") == wanted
    assert (tally.sent, tally.there, tally.bytes_sent) == (len(NAMES), 0, sum(map(len, wanted.values())))
    assert os.access(volume / "data" / "plain.txt", os.X_OK)
    again = upload(here, volume, "data/")
    assert (again.sent, again.there, again.bytes_sent) == (0, len(NAMES), 0)
    back = tmp_path / "back"
    back.mkdir()
    assert download(volume, back, "data").sent == len(NAMES)
    assert files(back) == wanted
    again = download(volume, back, "data")
    assert (again.sent, again.there, again.bytes_sent) == (0, len(NAMES), 0)


def test_what_differs_is_sent_again_though_its_size_is_the_same(here: Path, volume: Path) -> None:
    (here / "a").write_bytes(b"new!")
    (volume / "a").write_bytes(b"old!")
    assert upload(here, volume).sent == 1
    assert (volume / "a").read_bytes() == b"new!"
    (here / "a").write_bytes(b"mine")
    assert download(volume, here).sent == 1
    assert (here / "a").read_bytes() == b"new!"


def test_an_upload_that_breaks_goes_on_from_where_it_ended(here: Path, volume: Path) -> None:
    content = random.Random(1).randbytes(6_000_000)
    (here / "large").write_bytes(content)
    tally = Tally()
    with pytest.raises(Broken):
        upload(here, volume, limit=4_000_000, tally=tally)
    there = (volume / part_name("large")).stat().st_size
    assert 1_000_000 < there < 4_000_000
    assert not (volume / "large").exists()
    assert upload(here, volume).bytes_sent == len(content) - there
    assert files(volume) == {"large": content}


@pytest.mark.parametrize("part", [b"wrong" * 1000, b"x" * 2_000_000])
def test_a_part_of_something_else_is_not_gone_on_with(here: Path, volume: Path, part: bytes) -> None:
    content = random.Random(2).randbytes(1_000_000)
    (here / "large").write_bytes(content)
    (volume / part_name("large")).write_bytes(part)
    assert upload(here, volume).bytes_sent == len(content)
    assert files(volume) == {"large": content}
    (here / "large").unlink()
    (here / part_name("large")).write_bytes(part)
    assert download(volume, here).bytes_sent == len(content)
    assert files(here) == {"large": content}


@pytest.mark.parametrize("cut", [1, 300_000, 1_000_000])
def test_a_download_goes_on_from_where_it_ended(here: Path, volume: Path, cut: int) -> None:
    content = random.Random(3).randbytes(1_000_000)
    (volume / "large").write_bytes(content)
    (here / "large").write_bytes(bytes(len(content)))  # an older one of the same size
    (here / part_name("large")).write_bytes(content[:cut])
    assert download(volume, here).bytes_sent == len(content) - cut
    assert files(here) == {"large": content}


def test_a_connection_that_breaks_is_made_again_while_that_brings_something(
    here: Path, volume: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = random.Random(4).randbytes(3_000_000)
    (here / "large").write_bytes(content)
    limits: list[int | None] = [1_000_000, 1_000_000, 0, 0, None]

    class Pod:
        async def alive(self) -> None:
            pass

    def connect(pod: object, place: Place) -> AbstractAsyncContextManager[Talk]:
        return far_side(volume, limits.pop(0))

    monkeypatch.setattr(copying, "_talk", connect)
    monkeypatch.setattr(copying, "AGAIN_SECONDS", 0.0)
    watched, tally = Watched(), Tally()
    found = source_of(here)
    work = Upload(found.tree, found.files, lambda path: path, watched, tally)
    asyncio.run(copying._through(Pod(), Place("reviews"), work.run, tally, watched))  # type: ignore[arg-type]
    assert files(volume) == {"large": content}
    assert len(watched.said) == 4
    assert all(line.endswith("; connecting again") for line in watched.said)
    limits = [0] * copying.TRIES
    with pytest.raises(Broken):
        asyncio.run(copying._through(Pod(), Place("reviews"), work.run, tally, watched))  # type: ignore[arg-type]
    assert limits == []


def test_links_and_special_files_are_left_out_and_counted(here: Path, volume: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    for folder in (here, volume):
        (folder / "link").symlink_to(secret)
        (folder / "folder").symlink_to(tmp_path)
        os.mkfifo(folder / "pipe")
        (folder / f"{PART}0").write_text("cut off")
    assert (found := source_of(here)).files == []
    assert (found.left_out.links, found.left_out.special) == (2, 1)
    target = tmp_path / "target"
    target.mkdir()
    tally = download(volume, target)
    assert (tally.links, tally.special, files(target)) == (2, 1, {})


def test_nothing_is_written_through_a_link(here: Path, volume: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("theirs")
    (here / "folder").mkdir()
    (here / "folder" / "file").write_text("mine")
    (volume / "folder").symlink_to(outside)
    with pytest.raises(VolumeError, match="folder is a link, and links are not followed"):
        upload(here, volume)
    (volume / "folder").unlink()
    (volume / "folder").mkdir()
    (volume / "folder" / "file").symlink_to(outside / "file")
    os.link(outside / "file", volume / "folder" / part_name("file"))
    upload(here, volume)  # takes the link's place, and that of the part that was another file's name
    assert not (volume / "folder" / "file").is_symlink()
    assert files(outside) == {"file": b"theirs"}


def test_a_folder_and_a_file_do_not_take_each_others_place(here: Path, volume: Path) -> None:
    (here / "a").write_text("file")
    (volume / "a").mkdir()
    with pytest.raises(VolumeError, match="claim reviews: a: a folder is here"):
        upload(here, volume)
    (here / "a").unlink()
    (here / "a").mkdir()
    (here / "a" / "b").write_text("file")
    (volume / "a").rmdir()
    (volume / "a").write_text("file")
    with pytest.raises(VolumeError, match="a is a file, where a folder is to be"):
        upload(here, volume)


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../../x", "a//b", ".", "", "a/./b", "a\0b"])
def test_names_that_lead_out_are_refused_on_both_sides(here: Path, volume: Path, path: str) -> None:
    (here / "x").write_text("x")

    class Hostile:
        async def send(self, header: object) -> None:
            pass

        async def receive(self) -> tuple[dict[str, object], bytes]:
            return {"op": "files", "files": [[path, 1, False]]}, b""

    with pytest.raises(VolumeError, match="nothing was written"):
        asyncio.run(listed(Hostile(), "", Tally()))  # type: ignore[arg-type]

    async def put() -> None:
        async with far_side(volume) as talk:
            await Upload(Tree(str(here)), [Found("x", 1)], lambda _: path, Watched(), Tally()).run(talk)

    with pytest.raises(VolumeError, match=r"not a path below a folder|no name of a file"):
        asyncio.run(put())
    assert files(volume) == {}


def test_a_full_disk_and_a_denied_folder_are_told_in_words() -> None:
    from lmj_operator.client.volume.trouble import far_error

    full = far_error({"op": "error", "text": "a: No space left on device", "code": "ENOSPC", "path": "a"}, "reviews")
    assert str(full) == "claim reviews: the volume is full at a: make it larger or remove files, and run the same again"
    denied = str(far_error({"op": "error", "text": "", "code": "EACCES", "path": "a/b"}, "reviews"))
    assert denied.startswith("claim reviews: a/b: permission denied for user 65532")
    assert "mounted read-only" in str(far_error({"op": "error", "code": "EROFS", "path": None}, "reviews"))


def test_a_file_that_changes_while_it_is_sent_is_told(here: Path, volume: Path) -> None:
    (here / "a").write_bytes(b"1234")

    async def run() -> None:
        found = source_of(here)
        (here / "a").write_bytes(b"12")
        async with far_side(volume) as talk:
            await Upload(found.tree, found.files, lambda path: path, Watched(), Tally()).run(talk)

    with pytest.raises(VolumeError, match="a: it changed while it was sent"):
        asyncio.run(run())
    assert not (volume / "a").exists()


def test_a_volume_that_is_not_there_is_told(tmp_path: Path) -> None:
    async def run() -> None:
        async with far_side(tmp_path / "missing") as talk:
            await talk.ask({"op": "walk", "path": ""})

    with pytest.raises(VolumeError, match="No such file or directory"):
        asyncio.run(run())
