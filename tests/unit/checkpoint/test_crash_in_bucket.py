"""A crash between any two requests to a bucket: a good checkpoint is always found, and the next one is written."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bucket_fixture import (
    azblob,
    azblob_of_session,
    azfile,
    azfile_of_session,
    gs,
    gs_of_session,
    lead,
    s3,
    s3_of_session,
    server,
)
from storage_server import StorageServer
from way import Fate, way_to

from lmj_api.manifest import Manifest, ManifestFile
from lmj_api.names import checkpoint_name, part_file
from lmj_api.run import Run
from lmj_trainer.checkpoint.digest import file_digest
from lmj_trainer.checkpoint.leftovers import clear, sign
from lmj_trainer.checkpoint.owner import Owner
from lmj_trainer.checkpoint.prune import remove
from lmj_trainer.checkpoint.scan import scan
from lmj_trainer.checkpoint.write import commit_manifest, folder_of
from lmj_trainer.store import buckets, objects, patience
from lmj_trainer.store.port import Ref
from lmj_trainer.store.registry import open_place

__all__ = ["azblob", "azblob_of_session", "azfile", "azfile_of_session", "gs", "gs_of_session", "s3", "s3_of_session", "server"]

pytestmark = pytest.mark.integration

DIGEST = "d" * 32
OWNER = Owner("job", DIGEST, Run(id="bbbbbbbb-0000-4000-8000-000000000000", begun=1.0))
LARGE = bytes(range(256)) * ((objects.CHUNK + 12_345) // 256)
"""It goes in two parts, and one more request makes a file of them."""
Act = Callable[[Ref], object]


def put(root: Ref, step: int, content: bytes = b"") -> None:
    """A checkpoint of two ranks, as they write it; the first has ``content`` more."""
    folder = folder_of(root, step, 1, OWNER.run)
    sign(folder, OWNER)
    files = []
    for rank in range(2):
        file = folder / part_file(rank)
        text = f"rank {rank} step {step}".encode() + (content if rank == 0 else b"")
        file.put([text])
        files.append(ManifestFile(name=file.name, size=len(text), xxh128=file_digest(file)))
    manifest = Manifest(job="job", run=OWNER.run, view=1, step=step, epoch=0, state_digest=DIGEST, seconds=0, files=files)
    commit_manifest(folder, manifest)


def good(root: Ref) -> list[int]:
    return [c.step for c in scan(root, DIGEST) if c.problem is None]


def name(step: int) -> str:
    return checkpoint_name(step, 1, OWNER.run)


@pytest.fixture(params=[Fate.LOST, Fate.UNHEARD], ids=["lost", "unheard"])
def every_crash(
    request: pytest.FixtureRequest, server: StorageServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Act], Iterator[tuple[Ref, bool]]]:
    """``act`` in a fresh folder with checkpoints 10 and 20, without a way to the server from each of its requests on; then once to its end.

    The first of these is lost, or done and not heard of.
    """
    bucket = server.bucket("crash")

    def crashes(act: Act) -> Iterator[tuple[Ref, bool]]:
        for count in range(1, 1000):
            place = f"{bucket}/{tmp_path.name}-{count}"
            root = open_place(place)
            put(root, 10)
            put(root, 20)

            def fate(number: int, count: int = count) -> Fate:
                return Fate.PASSES if number < count else request.param if number == count else Fate.LOST

            with way_to(server, fate) as way, monkeypatch.context() as patch:
                lead(way, patch)
                patch.setattr(buckets, "RETRY", {**objects.RETRY, "max_retries": 0})
                patch.setattr(patience, "RETRY_SECONDS", 0)
                try:
                    act(open_place(place))
                except OSError:
                    assert len(way.requests) >= count
            finished = len(way.requests) < count
            yield root, finished
            if finished:
                assert count > 4
                return
        raise AssertionError("it never ends")

    return crashes


@pytest.mark.parametrize("content", [pytest.param(b"", id="small"), pytest.param(LARGE, id="large", marks=pytest.mark.slow)])
def test_while_writing(every_crash: Callable[[Act], Iterator[tuple[Ref, bool]]], content: bytes) -> None:
    seen = set()
    for root, finished in every_crash(lambda root: put(root, 30, content)):
        newest = good(root)[0]
        seen.add(newest)
        assert newest == 30 or not finished
        put(root, 30)
        assert good(root) == [30, 20, 10]
    assert seen == {20, 30}


def test_while_writing_over_a_checkpoint(every_crash: Callable[[Act], Iterator[tuple[Ref, bool]]]) -> None:
    for root, finished in every_crash(lambda root: put(root, 20, b"again")):
        newest = good(root)[0]
        assert newest in (10, 20)
        assert newest == 20 or not finished


def test_while_removing(every_crash: Callable[[Act], Iterator[tuple[Ref, bool]]]) -> None:
    for root, finished in every_crash(lambda root: remove(root, [name(10)])):
        assert good(root)[0] == 20
        assert {c.problem for c in scan(root, DIGEST) if c.problem} <= {"half-written (no manifest)"}
        assert not (finished and (root / name(10)).is_folder())
        remove(root, [name(10)])
        assert not (root / name(10)).is_folder()


def test_while_clearing_what_an_older_view_left(every_crash: Callable[[Act], Iterator[tuple[Ref, bool]]]) -> None:
    def begun(root: Ref) -> None:
        sign(root / name(30), OWNER)
        (root / name(30) / part_file(0)).put([b"half"])

    def act(root: Ref) -> list[str]:
        begun(root)
        return clear(root, 2, OWNER)

    for root, _ in every_crash(act):
        assert good(root) == [20, 10]
        clear(root, 2, OWNER)
        assert good(root) == [20, 10]
        assert root.folders() == [name(10), name(20)], "nothing is left"
