"""The same rows from real servers of object storage, also when they refuse what they took before."""

from __future__ import annotations

from pathlib import Path

import pytest
from bucket_fixture import azblob, azblob_of_session, azfile, azfile_of_session, gs, gs_of_session, s3, s3_of_session, server
from renewable_server import RenewableServer
from secret_folder import SecretFolder
from storage_server import StorageServer

from lmj_trainer.errors import OutageError, UserError
from lmj_trainer.store.registry import open_place
from lmj_trainer.streaming.pin import index_of
from lmj_trainer.streaming.stream import Stream

from .conftest import Specs, parquet_of, rows, silent
from .test_stream import texts

__all__ = ["azblob", "azblob_of_session", "azfile", "azfile_of_session", "gs", "gs_of_session", "s3", "s3_of_session", "server"]

pytestmark = pytest.mark.integration

FILES = {"a b/1.parquet": parquet_of(rows(0, 60), 7), "2.parquet": parquet_of(rows(60, 40), 9)}


def put(place: str) -> str:
    for name, content in FILES.items():
        (open_place(place) / f"train/{name}").put([content])
    return f"{place}/train"


def test_they_are_those_of_a_folder(spec: Specs, server: StorageServer, tmp_path: Path) -> None:
    for name, content in FILES.items():
        path = tmp_path / "train" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    here, there = spec(str(tmp_path / "train")), spec(put(f"{server.bucket('data')}/{tmp_path.name}"))
    indices = [index_of(each, silent) for each in (here, there)]
    assert indices[0].digest == indices[1].digest
    ours, theirs = (Stream(each, index, lambda epoch: 100, silent) for each, index in zip((here, there), indices, strict=True))
    for epoch in range(2):
        assert texts(ours.rows(epoch, 0, 100)) == texts(theirs.rows(epoch, 0, 100))


def test_a_file_that_is_put_again_is_another_one(spec: Specs, server: StorageServer, tmp_path: Path) -> None:
    place = f"{server.bucket('data')}/{tmp_path.name}"
    wanted = spec(put(place))
    index = index_of(wanted, silent)
    stream = Stream(wanted, index, lambda epoch: 100, silent)
    stream.rows(0, 0, 1)
    (open_place(place) / "train/2.parquet").put([parquet_of(rows(61, 40), 9)])
    with pytest.raises(UserError, match=r"2.parquet is not what the run began with"):
        stream.rows(0, 0, 100)
    with pytest.raises(UserError, match=r"2.parquet is not what the run began with"):
        Stream(wanted, index, lambda epoch: 100, silent).rows(0, 0, 100)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["s3", "azblob"])
def test_rows_are_read_with_keys_that_are_renewed_meanwhile(
    kind: str, spec: Specs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RenewableServer(kind, tmp_path) as server:
        secret = SecretFolder(tmp_path / "secret", server.environment)
        secret.lead(monkeypatch)
        wanted = spec(put(f"{server.server.bucket('data')}/x"))
        stream = Stream(wanted, index_of(wanted, silent), lambda epoch: 100, silent)
        before = texts(stream.rows(0, 0, 100))
        stream.close()
        server.renew()
        secret.put(server.environment)
        assert texts(stream.rows(0, 0, 100)) == before


def test_a_server_that_is_not_there(spec: Specs, s3: StorageServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = spec(put(f"{s3.bucket('data')}/{tmp_path.name}"))
    index = index_of(wanted, silent)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    with pytest.raises(UserError, match=r"SignatureDoesNotMatch.*give credentials that may read it"):
        index_of(spec(wanted.dataset.source, label="other"), silent)
    said: list[str] = []
    impatient = wanted.model_copy(update={"recovery": wanted.recovery.model_copy(update={"hang_timeout_seconds": 1.0})})
    with pytest.raises(OutageError, match=r"dataset.source s3://data/.*SignatureDoesNotMatch"):
        Stream(impatient, index, lambda epoch: 100, said.append).rows(0, 0, 1)
