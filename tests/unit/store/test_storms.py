"""A bucket's server that is busy, restarts, or loses answers for a while: what was asked is done all the same, and done once."""

from collections.abc import Callable
from pathlib import Path

import pytest
from bucket_fixture import lead
from storage_server import StorageServer
from way import Fate, Way, way_to

from lmj_trainer.store import buckets, patience
from lmj_trainer.store import objects as adapter
from lmj_trainer.store.port import Ref
from lmj_trainer.store.registry import open_place

pytestmark = pytest.mark.integration
LARGE = bytes(range(256)) * ((2 * adapter.CHUNK + 12_345) // 256)


def all_calls(root: Ref) -> None:
    """Each operation of a store once, with what has to come of it."""
    (root / "small").put([b"one", b"two"])
    assert (root / "small").get(1, 3) == b"net"
    (root / "large").put([LARGE])
    assert (root / "large").entry().size == len(LARGE)
    buffer = bytearray(len(LARGE))
    (root / "large").fill(0, [memoryview(buffer)])
    assert buffer == LARGE
    assert (root / "folder" / "file").create(b"x")
    assert not (root / "folder" / "file").create(b"x")
    assert (root.files(), root.folders()) == (["large", "small"], ["folder"])
    assert (root / "folder").withdraw("manifest.json") is not None
    assert root.folders() == [".folder.gone"]
    (root / ".folder.gone" / "file").delete()
    (root / ".folder.gone").remove()
    (root / "large").delete()
    assert (root.files(), root.folders()) == (["small"], [])


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a pause between two trials."""
    backoff = {"base": 2, "init_backoff": adapter.timedelta(milliseconds=1), "max_backoff": adapter.timedelta(milliseconds=5)}
    monkeypatch.setattr(buckets, "RETRY", {**adapter.RETRY, "backoff": backoff})
    monkeypatch.setattr(patience, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(patience, "LONGEST_PAUSE", 0.005)


def through(
    server: StorageServer,
    fate: Callable[[int], Fate | int],
    monkeypatch: pytest.MonkeyPatch,
    act: Callable[[Ref], None],
    folder: str,
) -> Way:
    """``act`` on a fresh folder, at the end of a way on which ``fate`` decides."""
    with way_to(server, fate) as way:
        lead(way, monkeypatch)
        act(open_place(f"{server.bucket('storms')}/{folder}"))
    return way


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("trouble", [429, 500, 503, Fate.LOST, Fate.UNHEARD], ids=str)
def test_every_other_request_fails(
    server: StorageServer, trouble: Fate | int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    way = through(server, lambda number: trouble if number % 2 else Fate.PASSES, monkeypatch, all_calls, tmp_path.name)
    assert len(way.requests) > 20


@pytest.mark.usefixtures("quick")
def test_a_storm_ends(server: StorageServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    way = through(server, lambda number: 503 if number <= 50 else Fate.PASSES, monkeypatch, all_calls, tmp_path.name)
    assert len(way.requests) > 60


def test_credentials_that_expired_are_told_and_renewed_ones_are_taken(
    server: StorageServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No request is tried again for a minute that is refused."""

    def act(root: Ref) -> None:
        with pytest.raises(OSError, match=r"403|denied|permission"):
            (root / "file").put([b"x"])
        assert not (root / "file").exists()

    way = through(server, lambda number: 403 if number == 1 else Fate.PASSES, monkeypatch, act, tmp_path.name)
    assert len(way.requests) == 2
